"""A sentence being translated, as an animated SVG: `python -m experiments.moving_picture`.

    python -m experiments.moving_picture --out docs/translation.svg
    python -m experiments.moving_picture "Ich kann dir morgen helfen." --k 3 --pace 2 --out mine.svg

Source words appear at the pace of a speaker, and each translated word when a stream has written
it. The times are those of the words: computing takes about a millisecond of each.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from waitinfo.streaming.translator import Translator, load

SENTENCE = (
    "Die Kommission hat in Brüssel einen neuen Vorschlag zur Verbesserung der Luftqualität "
    "vorgelegt."
)
WIDTH, MARGIN, SIZE, LEADING = 760, 24, 18, 30  # pixels
ADVANCE = 0.6 * SIZE  # of a character in a monospaced font
AFTERWARDS = 4.0  # seconds that the whole remains before it begins again
COLOURS = ("#57606a", "#0550ae")
STYLE = (
    "text{font:%dpx ui-monospace,Menlo,Consolas,monospace}"
    "@media(prefers-reduced-motion:reduce){text{animation:none!important}}"
)


@dataclass(frozen=True)
class Shown:
    """A word, and when it appears."""

    text: str
    seconds: float


def follow(
    translator: Translator, sentence: str, k: float | None, pace: float
) -> tuple[list[Shown], list[Shown]]:
    """Source words at `pace` words a second, and the words that a stream writes."""
    source: list[Shown] = []
    written: list[Shown] = []
    words = sentence.split()
    with translator.stream(k=k) as stream:
        for number, word in enumerate(words, 1):
            at = number / pace
            source.append(Shown(word, at))
            events = stream.push(f"{word} ")
            if number == len(words):
                events += stream.finish()
            text = "".join(event.text for event in events if event.text)
            written += [Shown(each, at) for each in text.split()]
    return source, written


def lines(words: list[Shown]) -> Iterator[list[Shown]]:
    """Words, as many in a line as fit."""
    room = int((WIDTH - 2 * MARGIN) / ADVANCE)
    line: list[Shown] = []
    for word in words:
        if line and len(" ".join(w.text for w in (*line, word))) > room:
            yield line
            line = []
        line.append(word)
    if line:
        yield line


def draw(source: list[Shown], written: list[Shown]) -> str:
    """The picture. Every word has its own animation, because each appears at its own time."""
    length = max(word.seconds for word in (*source, *written)) + AFTERWARDS
    rules, texts = [STYLE % SIZE], []
    y = MARGIN + SIZE
    for words, colour in zip((source, written), COLOURS, strict=True):
        for line in lines(words):
            x = float(MARGIN)
            for word in line:
                name = f"w{len(texts)}"
                start = 100 * word.seconds / length
                rules.append(
                    f"@keyframes {name}{{0%,{start:.2f}%{{opacity:0}}{start + 0.01:.2f}%,"
                    f"100%{{opacity:1}}}}#{name}{{animation:{name} {length:.2f}s infinite}}"
                )
                texts.append(
                    f'<text id="{name}" x="{x:.1f}" y="{y}" fill="{colour}">'
                    f"{escape(word.text)}</text>"
                )
                x += (len(word.text) + 1) * ADVANCE
            y += LEADING
        y += LEADING // 3
    height = y - LEADING + MARGIN // 2
    whole = " ".join(word.text for word in written)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">\n'
        f"<title>{escape(whole)}</title>\n<style>{''.join(rules)}</style>\n"
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#f6f8fa"/>\n'
        + "\n".join(texts)
        + "\n</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sentence", nargs="?", default=SENTENCE)
    parser.add_argument("--model", type=Path, help="[default: the bundled de-en]")
    parser.add_argument("--k", type=float, help="the dial [default: that of the model]")
    parser.add_argument("--pace", type=float, default=2.5, help="source words a second")
    parser.add_argument("--out", type=Path, default=Path("docs/translation.svg"))
    given = parser.parse_args()
    translator = load(given.model, streams=1)
    given.out.write_text(draw(*follow(translator, given.sentence, given.k, given.pace)), "utf-8")


if __name__ == "__main__":
    main()
