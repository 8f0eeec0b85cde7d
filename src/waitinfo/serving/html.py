"""HTML as a list of texts to translate, with everything else kept."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from html.parser import HTMLParser

KEPT = frozenset({"script", "style", "code", "pre", "textarea", "svg", "math"})
VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "wbr"}
)


class Document(HTMLParser):
    """Text between tags is translated, each piece by itself; the rest stays as it is."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self._pieces: list[str | int] = []  # markup, or the number of a text
        self._kept: list[str] = []  # open elements whose text stays
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._pieces.append(self.get_starttag_text() or "")
        fixed = ("translate", "no") in attrs
        if tag not in VOID and (self._kept or tag in KEPT or fixed):
            self._kept.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._pieces.append(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        self._pieces.append(f"</{tag}>")
        if tag in self._kept:
            while self._kept.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not self._kept and self._pieces and isinstance(self._pieces[-1], int):
            self.texts[-1] += data  # the parser may give one text in several parts
            return
        if self._kept or not data.strip():
            raw = self._kept and self._kept[-1] in ("script", "style")
            self._pieces.append(data if raw else escape(data, quote=False))
            return
        self._pieces.append(len(self.texts))
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self._pieces.append(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self._pieces.append(f"<!{decl}>")

    def handle_pi(self, data: str) -> None:
        self._pieces.append(f"<?{data}>")

    def unknown_decl(self, data: str) -> None:
        self._pieces.append(f"<![{data}]>")

    def fill(self, translations: Sequence[str]) -> str:
        """The document with translated texts."""
        return "".join(
            piece if isinstance(piece, str) else escape(translations[piece], quote=False)
            for piece in self._pieces
        )
