"""Text and corpora for experiments: `python -m experiments.corpora VERB --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.corpora import pairs, text, tokens
from waitinfo.errors import WaitinfoError
from waitinfo.text.corpus import Corpus

VERBS = {  # and what they do
    "tokenise": "punctuation split off the words, for a vocabulary of words",
    "german": "the German part of a text",
    "balance": "lines of many files in chosen numbers, to learn a vocabulary from",
    "pair": "back-translated text as pairs, without pairs that do not look like translations",
    "swap": "a corpus, or TSV files, for the other direction",
    "join": "several corpora with one vocabulary as one",
    "pack": "a corpus in compressed parts, to bring it to another machine",
    "unpack": "such parts as a corpus",
    "shorten": "a small copy of the data, to rehearse with",
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="experiments.corpora", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    made = {name: verbs.add_parser(name, help=what) for name, what in VERBS.items()}

    def paths(verb: str, *names: str) -> None:
        for name in names:
            made[verb].add_argument(name, type=Path)

    made["tokenise"].add_argument("texts", type=Path, nargs=4, metavar="FILE",
                                  help="SOURCE TARGET OUT_SOURCE OUT_TARGET")  # fmt: skip
    made["tokenise"].add_argument("--without", type=Path, nargs="*", default=[])
    paths("german", "train", "source", "target", "out")
    paths("balance", "out")
    for side in ("--source", "--target"):
        made["balance"].add_argument(side, nargs="+", required=True, metavar="FILE:LINES")
    made["balance"].add_argument("--spoken", type=int, default=4, help="every n-th line [4]")
    made["balance"].add_argument("--seed", type=int, default=1)
    paths("pair", "chunks", "out")
    made["pair"].add_argument("files", type=Path, nargs="+")
    made["pair"].add_argument("--chunk", type=int, default=100_000, help="lines in a chunk")
    made["pair"].add_argument("--every", action="store_true", help="keep all but empty lines")
    made["pair"].add_argument("--without", type=Path, nargs="*", default=[])
    made["pair"].add_argument("--language", choices=pairs.FOREIGN, default="de",
                              help="of the translations")  # fmt: skip
    made["swap"].add_argument("corpus", type=Path, nargs="+", help="a corpus, or TSV files")
    paths("swap", "out")
    paths("join", "out")
    made["join"].add_argument("corpora", type=Path, nargs="+", metavar="CORPUS")
    paths("pack", "corpus", "parts")
    made["pack"].add_argument("--mib", type=float, default=32)
    paths("unpack", "parts", "corpus")
    paths("shorten", "data", "small")
    made["shorten"].add_argument("--lines", type=int, default=400)
    return parser.parse_args(arguments)


def swap(given: argparse.Namespace) -> None:
    if all(path.is_file() for path in given.corpus):
        text.swap_tables(given.corpus, given.out)
    elif len(given.corpus) == 1:
        tokens.swap(Corpus(given.corpus[0]), given.out)
    else:
        sys.exit("give one corpus, or TSV files")


def pair(given: argparse.Namespace) -> None:
    known = pairs.known_lines(given.without)
    choice = pairs.Choice(given.language, known, given.every)
    pairs.pair(given.chunks, given.out, given.files, given.chunk, choice)


RUN = {
    "tokenise": lambda o: text.tokenise(o.texts, o.without),
    "german": lambda o: text.german(o.train, o.source, o.target, o.out),
    "balance": lambda o: text.balance(o.out, o.source, o.target, o.spoken, o.seed),
    "pair": pair,
    "swap": swap,
    "join": lambda o: tokens.join(o.out, o.corpora),
    "pack": lambda o: tokens.pack(o.corpus, o.parts, o.mib),
    "unpack": lambda o: tokens.unpack(o.parts, o.corpus),
    "shorten": lambda o: text.shorten(o.data, o.small, o.lines),
}


def main(arguments: Sequence[str] | None = None) -> None:
    given = parse(arguments)
    try:
        RUN[given.verb](given)
    except WaitinfoError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
