"""Packed models stream, translate and serve where torch cannot be imported, bit for bit alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import waitinfo
from tests.engines import build
from tests.integers import NEEDS_KERNELS
from tests.torchless import run_without
from waitinfo.model.integers.measuring import measure_inputs
from waitinfo.systems import SYSTEMS
from waitinfo.text.tokenizer import Vocabulary, VocabularySpec, train_tokenizer
from waitinfo.trained.saving import save_model

TEXT = [
    "ein Haus am See steht leer , und niemand geht hinein .",
    "am Morgen geht das Kind zum See .",
    "niemand steht am Haus",
    "das Kind geht , und das Haus steht .",
]
# Shapes of imported models: read again as they grow, and with recurrent units.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "both-sides": ("local-agreement", {"encoder": "bidirectional", "norm": "post"}),
    "recurrent": ("alignatt", {"decoder": "ssru", "encoder": "bidirectional", "output_bias": True}),
    "swish": ("wait-k", {"activation": "swish", "first_position": 1}),
}
STREAMS = """
    import json, sys
    from pathlib import Path

    import waitinfo

    found = {}
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        translator = waitinfo.load(folder, streams=3, capacity=40)
        streams = [translator.stream() for _ in range(3)]
        events = [[] for _ in streams]
        lines = json.loads(sys.argv[2])
        for number, line in enumerate(lines):
            place = number % 3
            for word in line.split():
                events[place] += streams[place].push(word)
        for place, stream in enumerate(streams):
            events[place] += stream.finish()
        found[folder.name] = [[event.as_dict() | {"time": 0} for event in some] for some in events]
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed model of every system, and of every shape."""
    tokenizer, _ = train_tokenizer(TEXT * 3, VocabularySpec("words", 1))
    vocabulary = Vocabulary(tokenizer, tokenizer)
    place = tmp_path_factory.mktemp("packed")
    models: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in SYSTEMS}
    for name, (system, changes) in (models | SHAPES).items():
        model, chosen = build(system, len(tokenizer), **changes)
        weights = {key: tensor.float() for key, tensor in model.weights().items()}
        inputs = measure_inputs(model.float())
        save_model(place / name, model, weights, chosen, vocabulary, "int8", inputs=inputs)
    return place


@pytest.fixture(scope="module")
def here(folders: Path) -> dict[str, Any]:
    """What streams of all models write in this process, where torch is imported."""
    found = {}
    for folder in sorted(folders.iterdir()):
        translator = waitinfo.load(folder, streams=8, capacity=40)
        events: list[list[dict[str, Any]]] = []
        for first in range(3):
            with translator.stream() as stream:
                some = [
                    event
                    for line in TEXT[first::3]
                    for word in line.split()
                    for event in stream.push(word)
                ]
                every = [*some, *stream.finish()]
                events.append([event.as_dict() | {"time": 0} for event in every])
        found[folder.name] = events
    return found


@pytest.mark.parametrize("native", [pytest.param(True, marks=NEEDS_KERNELS), False])
def test_streams_of_every_system_are_the_same(
    native: bool, folders: Path, here: dict[str, Any]
) -> None:
    """By compiled code, and by NumPy; in other company, and without torch."""
    settings = {} if native else {"WAITINFO_NATIVE": "0"}
    done = run_without(("torch",), STREAMS, str(folders), json.dumps(TEXT), **settings)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == here.keys()
    for name, events in here.items():
        assert found[name] == json.loads(json.dumps(events)), name
        assert any(event["kind"] == "WRITE" for some in events for event in some)


COMMAND = "from waitinfo.cli import main; main()"


def test_files_are_translated(folders: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "text", tmp_path / "out"
    text.write_text("\n".join(TEXT) + "\n", "utf-8")
    for name in ("full", "wait-info"):
        arguments = ("--model", str(folders / name), "--input", str(text), "--out", str(out))
        done = run_without(("torch",), COMMAND, "translate", *arguments, "--force")
        assert done.returncode == 0, done.stderr
        expected = waitinfo.load(folders / name).translate(TEXT)
        assert out.read_text("utf-8").splitlines() == expected


def test_the_bundled_model_translates() -> None:
    done = run_without(("torch", "prompt_toolkit"), COMMAND, "translate", "Guten Morgen!")
    assert (done.returncode, done.stdout) == (0, "Good morning.\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("translate", "--dtype", "float32", "a"), "dtype float32: needs torch"),
        (("translate", "--model", "FULL", "--beam", "2", "a"), "this needs torch"),
        (("train", "--help"), None),
        (("train", "--data", "FULL", "--out", "OUT"), "this needs torch"),
        (("models", "--pack", "FULL", "--out", "OUT"), "needs torch"),
    ],
)
def test_what_needs_torch_says_so_in_one_line(
    arguments: tuple[str, ...], what: str | None, folders: Path, tmp_path: Path
) -> None:
    places = {"FULL": str(folders / "full"), "OUT": str(tmp_path / "out")}
    given = [places.get(argument, argument) for argument in arguments]
    done = run_without(("torch",), COMMAND, *given, missing=True)
    if what is None:
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert what in done.stderr and "pip install 'waitinfo[train]'" in done.stderr
