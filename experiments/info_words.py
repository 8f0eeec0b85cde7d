"""Which words carry info: `python experiments/info_words.py MODEL TEXT TAGS [--target]`.

The info of every word of a text (the sum over its tokens, and their mean), averaged over words of a
kind, and that of words that are one token alone. TAGS (.tsv or .tsv.xz) has a word and its part of
speech a line; a word has the part of speech it has most often there, and words that are not there
are left out. Prints a table and a few of the sentences with the info of every word.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections import Counter, defaultdict
from pathlib import Path
from statistics import mean

import torch

from waitinfo.model.saving import LoadedModel, load_model
from waitinfo.text.files import normalise
from waitinfo.text.special import BOS
from waitinfo.text.tokenizer import SPACE

CONTENT = ("NOUN", "PROPN", "VERB", "ADJ", "ADV", "NUM")
FUNCTION = ("DET", "ADP", "PRON", "AUX", "CCONJ", "SCONJ", "PART")


def read_tags(path: Path) -> dict[str, str]:
    """The most frequent part of speech of each word."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open() as lines:
        for line in lines:
            word, _, tag = line.rstrip("\n").partition("\t")
            if tag:
                counts[word][tag] += 1
    return {word: found.most_common(1)[0][0] for word, found in counts.items()}


def token_infos(loaded: LoadedModel, tokens: list[int], target: bool) -> list[float]:
    model = loaded.model
    with torch.inference_mode():
        if target:  # what the decoder is given: begin-of-sequence first
            info = model.embed_target(torch.tensor([[BOS, *tokens]])).info
        else:
            info = model.embed_source(torch.tensor([tokens])).info
    assert info is not None, "the model has no info"
    return info[0].tolist()[1 if target else 0 :]


def word_infos(loaded: LoadedModel, text: str, target: bool) -> list[tuple[str, list[float]]]:
    """Words of a sentence with the info of their tokens."""
    vocabulary = loaded.vocabulary
    tokenizer = vocabulary.target if target else vocabulary.source
    tokens = tokenizer.encode(text)
    words: list[tuple[str, list[float]]] = []
    for token, value in zip(tokens, token_infos(loaded, tokens, target), strict=True):
        piece = tokenizer.piece(token)
        if piece.startswith(SPACE) or not words:
            words.append(("", []))
        word, infos = words[-1]
        words[-1] = word + piece.removeprefix(SPACE), [*infos, value]
    return words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("tags", type=Path)
    parser.add_argument("--target", action="store_true", help="TEXT is of the target language")
    parser.add_argument("--sentences", type=int, default=5, help="to print")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    loaded, tags = load_model(arguments.model), read_tags(arguments.tags)
    lines = [normalise(line) for line in arguments.text.read_text("utf-8").splitlines()]
    found: dict[str, list[list[float]]] = defaultdict(list)
    for number, line in enumerate(lines):
        words = word_infos(loaded, line, arguments.target)
        for word, infos in words:
            tag = tags.get(word.strip(".,;:!?()\"'"))
            if tag:
                found[tag].append(infos)
        if number < arguments.sentences:
            print(" ".join(f"{word}[{sum(infos):.1f}]" for word, infos in words))
    kinds = {
        "content words": [infos for tag in CONTENT for infos in found[tag]],
        "function words": [infos for tag in FUNCTION for infos in found[tag]],
        **{tag: found[tag] for tag in (*CONTENT, *FUNCTION)},
    }
    rows = {
        kind: {
            "words": len(words),
            "info_a_word": mean(sum(infos) for infos in words),
            "info_a_token": mean(value for infos in words for value in infos),
            "info_of_whole_tokens": mean(infos[0] for infos in words if len(infos) == 1),
        }
        for kind, words in kinds.items()
        if words
    }
    print("\n| kind | words | info a word | a token | words of one token |\n|---|---|---|---|---|")
    for kind, row in rows.items():
        count, *infos = row.values()
        print(f"| {kind} | {count:,} | " + " | ".join(f"{info:.2f}" for info in infos) + " |")
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
