"""Models written for other programs: these load them and write the same, and so does what is read
back.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.conftest import tiny_config
from tests.engines import restless
from tests.streams import lines_of_text, toy_tokenizer
from waitinfo.cli.app import main
from waitinfo.importing.exporting import obstacle
from waitinfo.importing.models import import_model
from waitinfo.importing.pieces import PieceFile
from waitinfo.model import Transformer
from waitinfo.systems import build_system
from waitinfo.text.languages import Languages
from waitinfo.text.special import EOS, SPECIALS
from waitinfo.text.tokenizer import Tokenizer, Vocabulary
from waitinfo.trained.saving import load_model, save_model
from waitinfo.translation.search import GreedySearch

LENGTH = 10  # of a translation that does not end; ours may be longer
OURS = {"norm": "pre", "positions": "closed", "epsilon": 1e-3}  # 1e-3: another one would be seen
MARIAN = {"norm": "post", "positions": "open", "activation": "swish", "output_bias": True}
SHAPE = {"norm", "positions", "activation", "epsilon", "width", "ffn", "heads", "decoder_layers"}
FORMATS = [("ctranslate2", OURS), ("ctranslate2", MARIAN), ("transformers", MARIAN)]


def two_tokenizers() -> Vocabulary:
    """One for each side, as OPUS-MT has them: the same first pieces, and then one more each."""
    file = PieceFile(toy_tokenizer().model)
    texts = [piece.text for piece in file.pieces][SPECIALS:]
    return Vocabulary(Tokenizer(file.reordered([*texts, "x"])), Tokenizer(file.reordered(texts)))


def saved(folder: Path, **shape: object) -> Vocabulary:
    """A folder with a full-sentence model of random weights."""
    joint = Vocabulary(toy_tokenizer(), toy_tokenizer())
    vocabulary = joint if shape.get("norm") == "pre" else two_tokenizers()
    size = max(len(vocabulary.source), len(vocabulary.target))
    sizes = {"source_vocabulary": size, "target_vocabulary": size, "decoder_layers": 3}
    torch.manual_seed(6)
    config = tiny_config(**({"encoder": "bidirectional"} | sizes | shape))
    model = restless(Transformer(config).eval())
    for layer in (*model.encoder_layers, *model.decoder_layers):
        torch.nn.init.normal_(layer.attention.project.bias, std=0.1)
        torch.nn.init.normal_(layer.feed_forward.inner.bias, std=0.1)
        torch.nn.init.normal_(layer.around_feed_forward.norm.bias, std=0.1)
    if model.output_bias is not None:
        torch.nn.init.normal_(model.output_bias, std=0.1)
    system, languages = build_system("full"), Languages("de", "en")
    save_model(folder, model, model.weights(), system, vocabulary, languages=languages)
    return vocabulary


def written(folder: Path, lines: list[str]) -> list[list[str]]:
    """Pieces of the greedy translations of a model folder of ours, in float32."""
    loaded = load_model(folder, "cpu", system="full")
    source, target = loaded.vocabulary.source, loaded.vocabulary.target
    given = [source.encode(line) for line in lines]
    found = GreedySearch(loaded.floats, given).run()
    return [[target.piece(t) for t in some[0].tokens if t != EOS][:LENGTH] for some in found]


def by_ctranslate2(folder: Path, vocabulary: Vocabulary, lines: list[str]) -> list[list[str]]:
    ctranslate2 = pytest.importorskip("ctranslate2")
    source = vocabulary.source
    given = [[source.piece(token) for token in source.encode(line)] for line in lines]
    theirs = ctranslate2.Translator(str(folder), compute_type="float32")
    found = theirs.translate_batch(given, beam_size=1, max_decoding_length=LENGTH)
    return [result.hypotheses[0] for result in found]


def by_transformers(folder: Path, vocabulary: Vocabulary, lines: list[str]) -> list[list[str]]:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    given = tokenizer(lines, return_tensors="pt", padding=True)
    found = theirs.generate(**given, max_new_tokens=LENGTH, do_sample=False)
    rows = [[token for token in row[1:] if token >= SPECIALS] for row in found.tolist()]
    return [tokenizer.convert_ids_to_tokens(row) for row in rows]


THEIRS = {"ctranslate2": by_ctranslate2, "transformers": by_transformers}


@pytest.mark.parametrize(("kind", "shape"), FORMATS)
def test_others_write_what_the_model_writes_and_so_does_what_comes_back(
    kind: str, shape: dict, tmp_path: Path
) -> None:
    vocabulary = saved(tmp_path / "model", **shape)
    with pytest.raises(SystemExit) as stop:
        main(["models", str(tmp_path / "model"), "--export", kind, "--out", str(tmp_path / "out")])
    assert not stop.value.code
    lines = [line for line in lines_of_text() if line.strip() and "x" not in line]
    expected = written(tmp_path / "model", lines)
    assert len({piece for pieces in expected for piece in pieces}) > 5  # not one word for ever
    assert THEIRS[kind](tmp_path / "out", vocabulary, lines) == expected
    import_model(tmp_path / "out", tmp_path / "back", "float32")
    back = load_model(tmp_path / "back", "cpu")
    assert back.languages == Languages("de", "en")
    assert written(tmp_path / "back", lines) == expected
    shapes = [
        {k: v for k, v in asdict(some.model.config).items() if k in SHAPE}
        for some in (back, load_model(tmp_path / "model", "cpu"))
    ]
    assert shapes[0] == shapes[1]


def test_a_packed_model_is_written_as_it_computes_with_floats(tmp_path: Path) -> None:
    saved(tmp_path / "model", **OURS)
    for arguments in (
        ["--pack", str(tmp_path / "model"), "--out", str(tmp_path / "packed")],
        [str(tmp_path / "packed"), "--export", "ctranslate2", "--out", str(tmp_path / "out")],
    ):
        with pytest.raises(SystemExit) as stop:
            main(["models", *arguments])
        assert not stop.value.code
    import_model(tmp_path / "out", tmp_path / "back", "float32")
    floats = load_model(tmp_path / "packed", "cpu").floats.weights()
    back = load_model(tmp_path / "back", "cpu").floats.weights()
    for name, weight in floats.items():
        assert np.array_equal(weight.numpy(), back[name].numpy()), name


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("ctranslate2", {"encoder": "causal"}, "reads word by word"),
        ("ctranslate2", {"info": "attention"}, "it has info"),
        ("ctranslate2", {"write_head": True}, "a write head"),
        ("ctranslate2", {"cross_attention": "gma"}, "its cross-attention is gma"),
        ("transformers", {"decoder": "ssru"}, "a recurrent unit"),
        ("transformers", {"joint": False}, "two vocabularies are separate"),
        ("transformers", {"norm": "pre"}, "norms stand before"),
        ("transformers", {"positions": "closed"}, "rates of its positions"),
        ("transformers", {"epsilon": 1e-6}, "its norms add 1e-06"),
    ],
)
def test_what_a_format_has_no_place_for_is_named(kind: str, change: dict, reason: str) -> None:
    config = tiny_config(**({"encoder": "bidirectional"} | MARIAN | change))
    loaded = SimpleNamespace(language_tokens={}, model=SimpleNamespace(config=config))
    assert reason in str(obstacle(loaded, kind))  # type: ignore[arg-type]


def test_a_refusal_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "model", norm="post", decoder="ssru")
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as stop:
        main(["models", str(tmp_path / "model"), "--export", "transformers", "--out", str(out)])
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert stop.value.code == 2 and "its decoder has a recurrent unit" in message
    assert not out.exists()
