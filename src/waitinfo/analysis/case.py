"""Case study: what each policy had read when it wrote each token of one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from waitinfo.analysis.study import Decoded, Study, Subject
from waitinfo.analysis.summaries import Numbers, Table, cell
from waitinfo.errors import WaitinfoError
from waitinfo.text.tokenizer import SPACE, Tokenizer

NAME, TITLE = "case", "Case study"
LENGTHS = range(10, 25)  # tokens of a sentence that fits on a page
END = "⏎"  # end-of-sentence
CONTINUED = "·"  # a byte after the first of a character


def choose(study: Study) -> int:
    """The sentence asked for, or the first of a length that fits on a page."""
    lengths = [len(tokens) for tokens in study.main.evaluation.tokenized]
    if study.case is None:
        return next((i for i, n in enumerate(lengths) if n in LENGTHS), 0)
    for index in range(len(lengths)):
        if study.line(index) == study.case:
            return index
    raise WaitinfoError(
        f"--case {study.case}: is not among the {len(lengths):,} sentences analysed"
    )


def pieces(tokenizer: Tokenizer, tokens: Sequence[int], infos: Sequence[float]) -> list[Numbers]:
    """Tokens as text, with their info; a token that continues a word begins with a hyphen."""
    found = [
        {"token": text, "info": infos[number] if number < len(infos) else None}
        for number, text in enumerate(spelt(tokenizer, tokens))
    ]
    return [*found, {"token": END, "info": None}]


def spelt(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """The text of each token. Of a character's bytes, the first shows the character."""
    found: list[str] = []
    for are_bytes, run in groupby(tokens, tokenizer.is_byte):
        if are_bytes:
            code = bytes(int(tokenizer.piece(token)[3:-1], 16) for token in run)
            found += [f"-{text}" if text else CONTINUED for text in characters(code)]
            continue
        for token in run:
            piece = tokenizer.piece(token)
            text = piece.removeprefix(SPACE) if tokenizer.starts_word(token) else f"-{piece}"
            found.append(text or "␣")
    return found


def characters(code: bytes) -> list[str]:
    """The character at its first byte, nothing at the others; U+FFFD for what is none."""
    found: list[str] = []
    while len(found) < len(code):
        rest = code[len(found) :]
        text, length = next(
            ((rest[:n].decode(), n) for n in range(1, 5) if is_character(rest[:n])), ("\ufffd", 1)
        )
        if not text.isprintable():
            text = f"U+{ord(text):04X}"
        found += [text, *[""] * (length - 1)]
    return found


def is_character(code: bytes) -> bool:
    try:
        return len(code.decode()) == 1
    except UnicodeDecodeError:
        return False


def compute(study: Study) -> Numbers:
    index = choose(study)
    return {
        "line": study.line(index),
        "latency": study.x,
        "subjects": [
            told(subject, decoded, index)
            for subject, decoded in zip(study.subjects, study.matched(), strict=True)
        ],
        "reference": study.references[index],
    }


def told(subject: Subject, decoded: Decoded, index: int) -> Numbers:
    evaluation, hypothesis = subject.evaluation, decoded.hypotheses[index]
    vocabulary = evaluation.loaded.vocabulary
    written = pieces(vocabulary.target, hypothesis.tokens, hypothesis.target_info)
    return {
        "name": subject.name,
        "dial": (dial.name if (dial := evaluation.loaded.system.dial) else ""),
        "k": subject.shown(decoded.k),
        "latency": float(decoded.latencies[index]),
        "text": decoded.texts[index],
        "source": pieces(vocabulary.source, evaluation.tokenized[index], hypothesis.source_info),
        "written": [
            {**piece, "read": read} for piece, read in zip(written, hypothesis.path, strict=False)
        ],
    }


def steps(subject: Numbers) -> list[tuple[Numbers, list[Numbers]]]:
    """Every source token, and the tokens written when it was the last one read."""
    return [
        (token, [each for each in subject["written"] if each["read"] == position])
        for position, token in enumerate(subject["source"], 1)
    ]


def shown(piece: Numbers) -> str:
    return piece["token"] if piece["info"] is None else f"{piece['token']}({piece['info']:.2f})"


def title(subject: Numbers, latency: str) -> str:
    at = f"{subject['dial']} = {subject['k']:g}, " if subject["dial"] else ""
    return f"{subject['name']}, {at}{latency} {cell(subject['latency'], 1) or 'undefined'}"


def tables(found: Numbers) -> list[Table]:
    made = []
    for subject in found["subjects"]:
        rows = [
            [str(number), shown(token), " ".join(map(shown, written))]
            for number, (token, written) in enumerate(steps(subject), 1)
        ]
        name = f"Line {found['line']}: {title(subject, found['latency'])}: {subject['text']}"
        made.append(Table(name, ["", "READ", "WRITE"], rows, textual=True))
    return made
