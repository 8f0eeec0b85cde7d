"""HTML as passages to translate, with everything else kept.

lxml reads the markup, piece by piece and in time proportional to its length. A block element ends a
passage. Inline elements stay inside: a passage is translated as a whole, and each element is put
around those words of the translation that lie where its own words lay. Words that are the same on
both sides, such as names, and the ends of sentences say where that is.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from lxml import etree

from waitinfo.errors import WaitinfoError
from waitinfo.text.scripts import UNSPACED

SLICE = 4_096  # characters parsed at a time: other tasks of the event loop run in between
DEPTH = 200  # of nested elements
TAGS = 50_000  # of a document
PARTS = 40_000  # of a tag, which is read at once: each attribute is one, its value perhaps another
PARTING = b" \t\n\r\f/=\"'"  # stand around attributes
LONG = 1_000  # words of a passage, from which on only sentence ends count
_BLOCKS = """address article aside base blockquote body br caption center col colgroup dd details
    dialog dir div dl dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6
    head header hr html legend li link main menu meta nav noframes noscript ol optgroup option p
    plaintext pre search section select summary table tbody td template textarea tfoot th thead
    title tr ul xmp"""
_RAW = "iframe noembed noframes plaintext script style xmp"
BLOCKS = frozenset(_BLOCKS.split())
RAW = frozenset(_RAW.split())  # their text is not escaped
KEPT = RAW | {"code", "pre", "textarea", "svg", "math"}  # stay as they are
_VOID = "area base br col embed frame hr img input link meta source track wbr"
VOID = frozenset(_VOID.split())
IMPLIED = ("html", "head", "body")  # the parser adds them where they are not written
UNIT = re.compile(f"{UNSPACED.pattern}|(?:(?!{UNSPACED.pattern})\\S)+")  # a word, or a character
EMPTY = "ERR_DOCUMENT_EMPTY"

Anchor = tuple[int, int]  # numbers of words of the source and of the translation


@dataclass(slots=True)
class Node:
    """An inline element, and which characters of its passage are inside."""

    markup: str  # '' if it began before the passage
    at: int
    to: int
    end: str = ""  # '' if it goes on after the passage
    children: list[Node] = field(default_factory=list)


class Passage:
    """Text between two block elements, with the inline elements in it."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0
        self._open = [Node("", 0, 0)]
        self.raw = ""

    def add(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)

    def start(self, markup: str) -> None:
        node = Node(markup, self._length, self._length)
        self._open[-1].children.append(node)
        self._open.append(node)

    def end(self, markup: str) -> None:
        if len(self._open) == 1:  # it began before the passage
            root = self._open[0]
            root.children = [Node("", 0, 0, children=root.children)]
            self._open.append(root.children[0])
        node = self._open.pop()
        node.to, node.end = self._length, markup

    def keep(self, markup: str) -> None:
        """Something that has no text to translate."""
        self.start(markup)
        self._open.pop()

    def close(self) -> None:
        """The passage is complete."""
        for node in self._open:
            node.to = self._length
        self.raw = "".join(self._parts)
        self._parts = []

    @property
    def text(self) -> str:
        """What is to be translated."""
        return " ".join(self.raw.split())

    def fill(self, translation: str, anchors: Sequence[Anchor] = ()) -> str:
        """The translation with all elements. `anchors` belong to each other on both sides."""
        source, root = self.raw, self._open[0]
        first, last = len(source) - len(source.lstrip()), len(source.rstrip())
        for child in root.children:  # one without text may stand before or after all words
            first, last = min(first, child.at), max(last, child.at)
        layout = _Layout(source, translation.strip(), anchors)
        return source[:first] + layout.render(root) + source[max(first, last) :]


class _Layout:
    """Where the elements of a passage lie in its translation."""

    def __init__(self, source: str, target: str, anchors: Sequence[Anchor]) -> None:
        self.source, self.target = source, target
        self._spans = [match.span() for match in UNIT.finditer(source)]
        self._units = [match.span() for match in UNIT.finditer(target)]
        self._starts = [start for start, _ in self._spans]
        self._ends = [end for _, end in self._spans]
        points = self._points(anchors)
        self._from, self._to = [x for x, _ in points], [y for _, y in points]

    def _points(self, anchors: Sequence[Anchor]) -> list[tuple[float, float]]:
        """Places in the source and in the translation, in units; both rise."""
        ends = len(self._spans), len(self._units)
        whole = anchors[-1] if anchors and min(anchors[-1]) > 0 else (0, 0)
        points: list[tuple[float, float]] = [(0, 0)]
        if min(whole) > 0:
            points += [(x * ends[0] / whole[0], y * ends[1] / whole[1]) for x, y in anchors[:-1]]
        points.append(ends)
        same = self._same_words()
        for (low, left), (high, right) in zip(points.copy(), points[1:], strict=False):
            inside = [(i, j) for i, j in same if low <= i < high and left <= j < right]
            points += [(i + step, j + step) for i, j in _rising(inside) for step in (0, 1)]
        return sorted(points)

    def _same_words(self) -> list[tuple[int, int]]:
        """Words that both sides have exactly once."""
        if len(self._spans) > LONG:
            return []
        mine = [_core(self.source[slice(*span)]) for span in self._spans]
        theirs = [_core(self.target[slice(*span)]) for span in self._units]
        once, there = Counter(mine), Counter(theirs)
        places = {word: place for place, word in enumerate(theirs)}
        return [
            (place, places[word])
            for place, word in enumerate(mine)
            if word and once[word] == 1 == there[word]
        ]

    def _place(self, unit: int, end: bool) -> int:
        """The unit of the translation at a place of the source, before it or after (`end`)."""
        look = bisect_left if end else bisect_right
        right = min(look(self._from, unit), len(self._from) - 1)
        left = max(right - 1, 0)
        width = self._from[right] - self._from[left]
        share = 0.0 if width <= 0 else (unit - self._from[left]) / width
        share = min(1.0, max(0.0, share)) if width > 0 else float(end)
        found = self._to[left] + share * (self._to[right] - self._to[left])
        return min(len(self._units), max(0, int(found + 0.5)))

    def _range(self, node: Node) -> tuple[int, int]:
        """The characters of the translation that a node with text is put around."""
        first = bisect_right(self._ends, node.at)
        last = bisect_left(self._starts, node.to) - 1
        begin = min(self._place(first, end=False), len(self._units) - 1)
        final = max(self._place(last + 1, end=True) - 1, begin)
        start, end = self._units[begin][0], self._units[final][1]
        if _is_punctuation(self.source[self._starts[first] : node.at]):
            while start < end - 1 and not self.target[start].isalnum():
                start += 1
        if _is_punctuation(self.source[node.to : self._ends[last]]):
            while start < end - 1 and not self.target[end - 1].isalnum():
                end -= 1
        return start, end

    def _spot(self, node: Node) -> tuple[int, str, str]:
        """Where a node without text is put, and the spaces around it."""
        unit = self._place(bisect_left(self._starts, node.at), end=False)
        at, text = node.at, self.source
        before, after = at > 0 and text[at - 1].isspace(), text[at : at + 1].isspace()
        if unit >= len(self._units):
            return len(self.target), " " * (before and unit > 0), ""
        if after and not before and unit:
            return self._units[unit - 1][1], "", ""
        return self._units[unit][0], "", " " * after

    def render(self, node: Node, low: int = 0, high: int | None = None) -> str:
        """The characters from `low` to `high` with the elements in them."""
        high = len(self.target) if high is None else high
        found: list[str] = []
        for child in node.children:
            before = after = ""
            if not self._units or not self.source[child.at : child.to].strip():
                spot, before, after = self._spot(child)
                start = end = min(max(spot, low), high)
            else:
                start, end = self._range(child)
                if start < low or end > high:
                    start, end = self._free(max(start, low), end, high)
            found += [escape(self.target[low:start], quote=False), before, child.markup]
            found += [self.render(child, start, end), child.end, after]
            low = end
        return "".join([*found, escape(self.target[low:high], quote=False)])

    def _free(self, low: int, end: int, high: int) -> tuple[int, int]:
        """A range from `low` on; the next unit if another element has taken all of it."""
        if low < min(end, high):
            return low, min(end, high)
        unit = bisect_left(self._units, (low, 0))
        if unit < len(self._units) and self._units[unit][1] <= high:
            return self._units[unit]
        return min(low, high), min(low, high)


def _parts(piece: bytes) -> int:
    """As many attributes as these bytes can have, or more."""
    return len(piece) - len(piece.translate(None, PARTING))


def _core(word: str) -> str:
    """A word without punctuation and capitals; '' for a single letter."""
    core = word.strip("".join(char for char in set(word) if not char.isalnum())).lower()
    return core if len(core) > 1 or core.isdigit() else ""


def _is_punctuation(text: str) -> bool:
    return bool(text) and not any(map(str.isalnum, text))


def _rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The most pairs whose second numbers rise, too; the first ones do."""
    least: list[int] = []  # by length: the smallest last number
    ends: list[int] = []  # and the pair that it belongs to
    before: list[int] = []
    for number, (_, value) in enumerate(pairs):
        length = bisect_left(least, value)
        before.append(ends[length - 1] if length else -1)
        least[length : length + 1], ends[length : length + 1] = [value], [number]
    found, number = [], ends[-1] if ends else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]


class Document:
    """A document in pieces: markup that stays, and passages."""

    def __init__(self) -> None:
        self.passages: list[Passage] = []  # that have text
        self._pieces: list[str | Passage] = []
        self._passage: Passage | None = None
        self._tags = 0
        self._told = 0  # what the parser has called so far
        self._inside: list[str] = []  # open elements
        self._kept = 0  # how many of them are inside one that stays as it is
        self._copy: list[str] = []  # of that element
        self._written: set[str] = set()  # elements that are not implied

    def read(self, html: str) -> Iterator[None]:
        """Read the document, a slice at each step."""
        lower = html.lower()
        self._written = {name for name in IMPLIED if re.search(rf"<{name}[\s/>]", lower)}
        if not html.strip():
            self._pieces.append(html)
            return
        parser = etree.HTMLParser(target=self, encoding="utf-8")
        data = html.encode("utf-8", "replace")
        try:
            parts = 0
            for at in range(0, len(data), SLICE):
                told, piece = self._told, data[at : at + SLICE]
                parser.feed(piece)
                parts = 0 if self._told > told else parts + _parts(piece)
                if parts > PARTS:
                    raise WaitinfoError(
                        f"a tag or a comment may have {PARTS:,} attributes or words"
                    )
                yield
            parser.close()
        except etree.XMLSyntaxError:
            if any(error.type_name != EMPTY for error in parser.error_log):
                raise WaitinfoError("the HTML cannot be read; send text, or mend it") from None
        self._end_passage()
        if html[0].isspace():
            self._pieces.insert(0, html[: len(html) - len(html.lstrip())])

    # What the parser calls

    def start(self, tag: str, attributes: Any) -> None:
        self._tags += 1
        self._told += 1
        self._inside.append(tag)
        if self._tags > TAGS:
            raise WaitinfoError(f"a document may have {TAGS:,} tags")
        if len(self._inside) > DEPTH:
            raise WaitinfoError(f"elements may be nested {DEPTH} deep")
        markup = self._markup(tag, attributes)
        if self._kept or tag in KEPT or attributes.get("translate", "").lower() == "no":
            self._kept += tag not in VOID
            self._copy.append(markup)
            if tag in VOID:
                self._end_copy(tag)
        elif tag in BLOCKS:
            self._block(markup)
        elif tag in VOID:
            self._inline().keep(markup)
        else:
            self._inline().start(markup)

    def end(self, tag: str) -> None:
        self._told += 1
        self._inside.pop()
        if tag in VOID:
            return
        markup = f"</{tag}>" if tag not in IMPLIED or tag in self._written else ""
        if self._kept:
            self._copy.append(markup)
            self._kept -= 1
            self._end_copy(tag)
        elif tag in BLOCKS:
            self._block(markup)
        else:
            self._inline().end(markup)

    def data(self, text: str) -> None:
        self._told += 1
        if self._kept:
            raw = self._inside[-1] in RAW
            self._copy.append(text if raw else escape(text, quote=False))
        else:
            self._inline().add(text)

    def comment(self, text: str) -> None:
        self._told += 1
        if self._kept:
            self._copy.append(f"<!--{text}-->")
        else:
            self._inline().keep(f"<!--{text}-->")

    def doctype(self, name: str, public: str | None, system: str | None) -> None:
        kind = f' PUBLIC "{public}"' if public else " SYSTEM" if system else ""
        self._pieces.append(f"<!DOCTYPE {name}{kind}" + (f' "{system}">' if system else ">"))

    def close(self) -> None:
        pass

    # Pieces

    def _markup(self, tag: str, attributes: Any) -> str:
        if tag in IMPLIED and tag not in self._written:
            return ""
        values = [f'{n}="{escape(v)}"' if v else n for n, v in attributes.items()]
        return f"<{' '.join([tag, *values])}>"

    def _inline(self) -> Passage:
        if self._passage is None:
            self._passage = Passage()
        return self._passage

    def _block(self, markup: str) -> None:
        self._end_passage()
        self._pieces.append(markup)

    def _end_copy(self, tag: str) -> None:
        """An element that stays as it is may be over."""
        if self._kept:
            return
        copy, self._copy = "".join(self._copy), []
        if tag in BLOCKS:
            self._block(copy)
        else:
            self._inline().keep(copy)

    def _end_passage(self) -> None:
        passage, self._passage = self._passage, None
        if passage is not None:
            passage.close()
            self._pieces.append(passage)
            if passage.raw.strip():
                self.passages.append(passage)

    def fill(self, translations: Iterable[tuple[str, Sequence[Anchor]]]) -> Iterator[str]:
        """The document with the translation of each passage and its anchors, in pieces."""
        rest = iter(translations)
        for piece in self._pieces:
            if isinstance(piece, str):
                yield piece
            elif piece.raw.strip():
                yield piece.fill(*next(rest))
            else:
                yield piece.fill("")
