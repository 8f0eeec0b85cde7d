"""The tokeniser of the English-Vietnamese experiment, on cases worked by hand."""

import lzma
import sys
from pathlib import Path

import pytest

from experiments import tokenise as script


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('He said, "Nothing To Envy."', 'He said , " Nothing To Envy . "'),
        ("They don't know the child's name", "They do n't know the child 's name"),
        ("They do n't know the child 's name", "They do n't know the child 's name"),  # as it was
        ("It’s 1,000.50 dollars – or 3.5%...", "It 's 1,000.50 dollars -- or 3.5 % ..."),
        ("Dr. Lee of the U.S. left (well-known).", "Dr. Lee of the U.S. left ( well-known ) ."),
        ("Tôi đã rất tự hào.", "Tôi đã rất tự hào ."),
        ("tie\u0302\u0301ng", "tiếng"),  # composed
        ("", ""),
    ],
)
def test_lines(line: str, expected: str) -> None:
    assert script.tokenise(line) == expected
    assert script.tokenise(expected) == expected


def test_training_pairs_of_a_held_out_sentence_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case and punctuation do not matter; lines of fewer than four words are kept."""
    pairs = [("This is the test.", "a b"), ("Thank you.", "c"), ("Other words.", "Một hai ba bốn!")]
    for side, name in enumerate(("train.en", "train.vi")):
        text = "".join(f"{pair[side]}\n" for pair in [*pairs, ("Kept, too.", "d")])
        with lzma.open(tmp_path / f"{name}.xz", "wt", encoding="utf-8") as file:
            file.write(text)
    (tmp_path / "test.en").write_text("this is the test\nthank you\n", "utf-8")
    (tmp_path / "test.vi").write_text("một hai, ba bốn\nc\n", "utf-8")
    names = ("train.en.xz", "train.vi.xz", "out.en", "out.vi", "test.en", "test.vi")
    files = [str(tmp_path / name) for name in names]
    monkeypatch.setattr(sys, "argv", ["tokenise.py", *files[:4], "--without", *files[4:]])
    script.main()
    assert (tmp_path / "out.en").read_text("utf-8") == "Thank you .\nKept , too .\n"
    assert (tmp_path / "out.vi").read_text("utf-8") == "c\nd\n"
    assert capsys.readouterr().out == "2 of 4 pairs kept\n"
