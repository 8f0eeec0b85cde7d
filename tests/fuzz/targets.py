"""What is fuzzed: a target takes bytes; any error but a `WaitinfoError` of one line is a find."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.fuzz import streams
from tests.streams import toy_model, toy_tokenizer
from waitinfo.errors import WaitinfoError
from waitinfo.serving.bodies import parse_fields
from waitinfo.serving.guards import Refusal
from waitinfo.serving.html import Document
from waitinfo.serving.rest import TranslateRequest
from waitinfo.streaming.segmenter import Segmentation
from waitinfo.streaming.words import Reader
from waitinfo.text.tokenizer import Tokenizer
from waitinfo.trained.saving import load_model, save_model

CORPUS = Path(__file__).parent / "corpus"
Target = Callable[[bytes], None]


def refuses(function: Target) -> Target:
    """An error of one line is a proper answer."""

    def target(data: bytes) -> None:
        try:
            function(data)
        except Refusal as refusal:
            assert "\n" not in refusal.message
        except WaitinfoError as error:
            assert "\n" not in str(error), error

    return target


@refuses
def html(data: bytes) -> None:
    """Any document is filled, and read again with as many passages."""
    document = Document()
    for _ in document.read(data.decode("utf-8", "replace")):
        pass
    found = "".join(document.fill((passage.text, ()) for passage in document.passages))
    "".join(document.fill(("a b", [(1, 1), (2, 2)]) for _ in document.passages))
    assert isinstance(found, str)


@refuses
def body(data: bytes) -> None:
    """A request: the first line is the type of its content."""
    kind, _, rest = data.partition(b"\n")
    parse_fields(kind.decode("latin-1"), rest, TranslateRequest, texts=256)


@cache
def tokenizer() -> Tokenizer:
    return toy_tokenizer()


@refuses
def tokens(data: bytes) -> None:
    """Text gives the same tokens however it arrives."""
    text = data.decode("utf-8", "replace").replace("\r", " ")
    found = []
    for size in (len(text) + 1, 1, 3):
        reader = Reader(tokenizer(), raw=True, segmentation=Segmentation("whole"))
        for at in range(0, len(text), size):
            reader.add(text[at : at + size])
        reader.end()
        found.append([token for piece in reader.queue if piece for token in piece.tokens])
    assert found[0] == found[1] == found[2]


@cache
def folder() -> Path:
    place = Path(tempfile.mkdtemp(prefix="fuzz-"))
    loaded = toy_model("wait-k")
    weights = {name: tensor.float() for name, tensor in loaded.model.state_dict().items()}
    save_model(place / "model", loaded.model, weights, loaded.system, loaded.vocabulary)
    return place / "model"


@refuses
def model(data: bytes) -> None:
    """A model folder: the first byte chooses a file, whose beginning the others replace."""
    files = sorted(path.name for path in folder().iterdir() if path.is_file())
    name = files[data[0] % len(files)] if data else files[0]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as made:
        place = Path(made) / "model"
        shutil.copytree(folder(), place)
        whole = (place / name).read_bytes()
        given = data[1:]
        alone = name.endswith(".json") or not given
        (place / name).write_bytes(given if alone else given + whole[len(given) :])
        load_model(place, "cpu")


TARGETS: dict[str, Target] = {
    "html": html, "body": body, "tokens": tokens, "model": model,
    "messages": streams.messages, "replay": streams.replay, "frames": streams.frames,
}  # fmt: skip


def corpus(name: str) -> list[bytes]:
    """Telling inputs of a target, from its file: a list of texts, each a byte per character."""
    path = CORPUS / f"{name}.json"
    return [text.encode("latin-1") for text in json.loads(path.read_text("utf-8"))]
