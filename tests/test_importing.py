"""Published models: units against formulas, files against the programs that they are made for."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import tiny_config
from tests.engines import restless, sentences, trickle
from tests.integers import integers
from tests.published import bergamot_lines, firefox_model
from tests.streams import toy_tokenizer
from waitinfo.cli.app import main
from waitinfo.errors import WaitinfoError
from waitinfo.importing import ctranslate2 as reader
from waitinfo.importing.models import build, import_model, read_published
from waitinfo.importing.pieces import PieceFile
from waitinfo.model import Transformer
from waitinfo.model.attention import RecurrentUnit
from waitinfo.model.cache import CacheRows, StateCache
from waitinfo.model.integers.cache import ArrayStateCache
from waitinfo.model.integers.exact import ExactRecurrentUnit
from waitinfo.model.integers.in_torch import as_arrays, as_tensors, in_torch
from waitinfo.model.views import CachePosition, SelfView
from waitinfo.streaming.decoder import Decoder
from waitinfo.systems import build_system
from waitinfo.text.languages import Languages
from waitinfo.text.special import BOS, EOS, SPECIALS
from waitinfo.trained.saving import load_model
from waitinfo.translation.search import GreedySearch

# How many sentences are compared with published programs; a release is checked with 300.
COUNT = int(os.environ.get("WAITINFO_SENTENCES", "12"))

SHAPES = {
    "firefox": {"norm": "post", "decoder": "ssru", "output_bias": True, "epsilon": 1e-6},
    "argos": {"norm": "post", "activation": "swish", "positions": "open", "output_bias": True},
}


def made(kind: str) -> Transformer:
    torch.manual_seed(4)
    model = restless(Transformer(tiny_config(encoder="bidirectional", **SHAPES[kind])).eval())
    torch.nn.init.normal_(model.output_bias)
    return model.requires_grad_(False)


# The recurrent unit


def by_formula(unit: RecurrentUnit, rows: np.ndarray) -> np.ndarray:
    """Number by number."""
    weight, bias = unit.project.weight.numpy(), unit.project.bias.numpy()
    width = rows.shape[-1]
    found, state = np.zeros(rows.shape), [0.0] * width
    for t, x in enumerate(rows):
        for j in range(width):
            forget = 1 / (1 + math.exp(-(float(weight[j] @ x) + float(bias[j]))))
            new = float(weight[width + j] @ x) + float(bias[width + j])
            state[j] = forget * state[j] + (1 - forget) * new
            found[t, j] = max(0.0, state[j])
    return found


@pytest.mark.parametrize("exact", [False, True])
def test_recurrent_unit_equals_its_formula_whole_and_in_pieces(exact: bool) -> None:
    """In torch, and as models with integers compute it, in NumPy."""
    torch.manual_seed(1)
    unit = RecurrentUnit(6).double().requires_grad_(False)
    torch.nn.init.normal_(unit.project.bias)
    x = torch.randn(3, 9, 6, dtype=torch.float64)
    expected = np.stack([by_formula(unit, rows.numpy()) for rows in x])
    near = {"abs": 1e-6} if exact else {}
    call, cache = unit, StateCache(5, 6, x)
    if exact:
        cache = ArrayStateCache(5, 6)
        inner = ExactRecurrentUnit(lambda rows: unit.project(torch.from_numpy(rows)).numpy())

        def call(*given: Any) -> torch.Tensor:
            return as_tensors(inner(*map(as_arrays, given)))

    assert call(x, SelfView(None)).numpy() == pytest.approx(expected, **near)
    cache.states[:] = 7  # of the last source in this slot
    rows = CacheRows.of([1, 4, 2], x.device)
    starts, pieces, unused = [0, 0, 0], [(1, 3, 2), (4, 1, 1), (1, 1, 1), (3, 4, 5)], 99
    for piece in pieces:
        width = max(piece)
        at = torch.full((3, width), unused)
        inputs = torch.randn(3, width, 6, dtype=torch.float64)  # padding is anything
        for row, (start, count) in enumerate(zip(starts, piece, strict=True)):
            at[row, :count] = torch.arange(start, start + count)
            inputs[row, :count] = x[row, start : start + count]
        for _ in range(2 if width == 1 else 1):  # a step that was refused is computed again
            found = call(inputs, SelfView(None, CachePosition(rows, at, 0)), cache)
        for row, (start, count) in enumerate(zip(starts, piece, strict=True)):
            right = pytest.approx(expected[row, start : start + count], **near)
            assert found[row, :count].numpy() == right
        starts = [start + count for start, count in zip(starts, piece, strict=True)]


# Streams


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("system", ["local-agreement", "alignatt"])
def test_integer_streams_are_the_same_however_words_arrive(kind: str, system: str) -> None:
    model, chosen = integers(made(kind)), build_system(system)
    sources, k = sentences(7, seed=3), 1.0
    records = trickle("", sources, [k] * len(sources), 3, 5, (model, chosen))
    together = Decoder(model, chosen).decode(sources, k)
    for record, hypothesis in zip(records, together, strict=True):
        assert [e.token for e in record.writes if e.token != EOS] == hypothesis.tokens
        assert [e.read for e in record.writes] == hypothesis.path


@pytest.mark.parametrize("kind", SHAPES)
def test_integers_write_about_what_floats_do(kind: str) -> None:
    model = made(kind)
    sources = sentences(6, seed=2)
    tokens = torch.tensor([[*source[:1], *[9] * 6, EOS] for source in sources])
    targets = torch.tensor([[BOS, 5, 9, 11, 30]] * len(sources))
    lengths = torch.full((len(sources),), tokens.shape[1])
    logits = []
    for network in (model, in_torch(integers(model))):
        encoded = network.encode(network.embed_source(tokens), lengths)
        seen = lengths[:, None].expand(targets.shape)
        states = network.decode(network.embed_target(targets), encoded, seen).states
        logits.append(network.logits(states))
    spread = logits[0].std()
    assert (logits[1] - logits[0]).abs().mean() < 0.1 * spread


# Vocabularies


def test_pieces_in_another_order_split_text_as_before() -> None:
    tokenizer = toy_tokenizer()
    file = PieceFile(tokenizer.model)
    texts = [piece.text for piece in file.pieces][SPECIALS:][::-1]
    other = type(tokenizer)(file.reordered(texts))
    for text in ("bab dudo geg.", "babe", "ü bo"):
        before = [tokenizer.piece(token) for token in tokenizer.encode(text)]
        assert [other.piece(token) for token in other.encode(text)] == before
    assert other.encode("bab")[0] != tokenizer.encode("bab")[0]


# CTranslate2's files, made and computed by CTranslate2


SIZES = [  # of products that do not go from 32 to 32; the vocabulary is 0
    ("ffn/linear_0", 48, 32),
    ("ffn/linear_1", 32, 48),
    ("self_attention/linear_0", 96, 32),
    ("/attention/linear_1", 64, 32),
    ("projection", 0, 32),
]


def converted(folder: Path, quantization: str | None, pre_norm: bool, activation: str) -> Path:
    """A model of random weights in its format, with a tokenizer beside it."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    specs = ctranslate2.specs
    spec = specs.TransformerSpec.from_config(
        (2, 2), 4, pre_norm=pre_norm, activation=getattr(specs.Activation, activation)
    )
    tokenizer = toy_tokenizer()
    words = ["</s>", "<unk>", "<s>", *(tokenizer.piece(t) for t in range(SPECIALS, len(tokenizer)))]
    width, draw = 32, np.random.default_rng(1)
    shared = draw.normal(size=(len(words), width), scale=0.3).astype(np.float32)

    def array(path: str) -> np.ndarray:
        if "embeddings" in path or path.endswith("projection/weight"):
            return shared
        if path.endswith("encodings"):
            at, rates = np.arange(64)[:, None], 10_000.0 ** -(np.arange(16) / 15)
            return np.concatenate([np.sin(at * rates), np.cos(at * rates)], 1)
        found = (sizes for pattern, *sizes in SIZES if re.search(pattern, path))
        out, inside = next(found, [width, width])
        shape = (out or len(words), inside) if path.endswith("weight") else (out or len(words),)
        return draw.normal(size=shape, scale=0.4)

    def fill(part: object, name: str) -> None:
        for key, value in list(vars(part).items()):
            path = f"{name}/{key}"
            for number, one in enumerate(value if isinstance(value, list) else []):
                fill(one, f"{path}_{number}")
            if isinstance(value, specs.model_spec.LayerSpec):
                fill(value, path)
            elif key in ("weight", "bias", "gamma", "beta", "encodings"):
                setattr(part, key, array(path).astype(np.float32))

    fill(spec, "")
    spec.config.add_source_eos = True
    spec.config.decoder_start_token = "<s>"
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.validate()
    if quantization is not None:
        spec.optimize(quantization=quantization)
    folder.mkdir()
    spec.save(str(folder))
    tokenizer.save(folder / "sentencepiece.model")
    return folder


@pytest.mark.parametrize(
    ("quantization", "pre_norm", "activation"),
    [
        (None, False, "SWISH"),
        (None, True, "RELU"),
        ("int8", False, "RELU"),
        ("float16", True, "SWISH"),
    ],
)
def test_ctranslate2_scores_what_it_saved_as_the_import_does(
    tmp_path: Path, quantization: str | None, pre_norm: bool, activation: str
) -> None:
    folder = converted(tmp_path / "m", quantization, pre_norm, activation)
    import ctranslate2

    theirs = ctranslate2.Translator(str(folder), compute_type="float32")
    published = read_published(folder)
    model, vocabulary = build(published), published.vocabulary
    for text, other in (("bab dudo geg.", "duda"), ("ge", "babs gogu bi bo."), ("du " * 20, "be")):
        source, target = vocabulary.source.encode(text), vocabulary.target.encode(other)
        pieces = [[vocabulary.source.piece(t) for t in some] for some in (source, target)]
        (scored,) = theirs.score_batch([pieces[0]], [pieces[1]])
        length = torch.tensor([len(source) + 1])
        encoded = model.encode(model.embed_source(torch.tensor([[*source, EOS]])), length)
        inputs = model.embed_target(torch.tensor([[BOS, *target]]))
        states = model.decode(inputs, encoded, length[:, None].expand(1, len(target) + 1)).states
        logits = model.logits(states)[0].detach()
        logits[:, [0, 1, 2]] = -torch.inf
        ours = logits.log_softmax(-1)[range(len(target) + 1), [*target, EOS]]
        # Theirs counts the scores of <unk> and <s>, which are never written here.
        weight = model.target_embedding.weight.detach()
        all_logits = states[0].detach() @ weight.T
        bias = ctranslate2_bias(folder)
        total = torch.logsumexp(all_logits[:, 1:] + bias, -1)
        plain = (logits[range(len(target) + 1), [*target, EOS]]) - total
        assert plain.numpy() == pytest.approx(scored.log_probs, abs=1e-3)
        assert bool((ours >= plain - 1e-4).all())


def ctranslate2_bias(folder: Path) -> torch.Tensor:
    """The bias of <unk>, <s>, </s> and all others, in our order."""
    from waitinfo.importing.ctranslate2 import _arrays

    bias = _arrays(folder / "model.bin")["decoder/projection/bias"].astype(np.float32)
    return torch.from_numpy(np.concatenate([bias[[1, 2, 0]], bias[3:]]))


@pytest.mark.skipif("WAITINFO_ARGOS" not in os.environ, reason="WAITINFO_ARGOS names no package")
def test_an_argos_package_writes_what_ctranslate2_writes(tmp_path: Path) -> None:
    """Token for token, greedily, in float32, on the first lines of the file WAITINFO_LINES."""
    package = Path(os.environ["WAITINFO_ARGOS"])
    lines = Path(os.environ["WAITINFO_LINES"]).read_text("utf-8").splitlines()[:200]
    ctranslate2 = pytest.importorskip("ctranslate2")
    published = read_published(package)
    source, target = published.vocabulary.source, published.vocabulary.target
    model, tokens = build(published), [published.vocabulary.source.encode(line) for line in lines]
    found = [c[0].tokens for i in range(0, len(tokens), 32)
             for c in GreedySearch(model, tokens[i : i + 32]).run()]  # fmt: skip
    folder = package
    if package.is_file():
        with zipfile.ZipFile(package) as packed:
            packed.extractall(tmp_path)
        folder = tmp_path
    theirs = ctranslate2.Translator(str(reader.find(folder)), compute_type="float32")
    pieces = [[source.piece(token) for token in some] for some in tokens]
    expected = theirs.translate_batch(
        pieces, beam_size=1, max_decoding_length=400, disable_unk=True, max_batch_size=16
    )
    ours = [[target.piece(token) for token in some] for some in found]
    assert ours == [result.hypotheses[0] for result in expected]


# OPUS-MT's files, made and computed by transformers


def test_a_marian_folder_computes_what_transformers_computes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    tokenizer = toy_tokenizer()
    words = ["</s>", "<unk>", *(tokenizer.piece(t) for t in range(SPECIALS, len(tokenizer)))]
    vocabulary = {word: number for number, word in enumerate([*words, "<pad>"])}
    pad = vocabulary["<pad>"]
    config = transformers.MarianConfig(
        vocab_size=len(vocabulary), d_model=32, encoder_layers=2, decoder_layers=3,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
        decoder_ffn_dim=48, activation_function="swish", scale_embedding=True, pad_token_id=pad,
        eos_token_id=0, decoder_start_token_id=pad, max_position_embeddings=70, init_std=0.3,
        forced_eos_token_id=None,
    )  # fmt: skip
    theirs = transformers.MarianMTModel(config).eval().requires_grad_(False)
    theirs.final_logits_bias.normal_()
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    for side in ("source", "target"):
        tokenizer.save(tmp_path / f"{side}.spm")
    named = json.dumps({"source_lang": "zho", "target_lang": "en"})
    (tmp_path / "tokenizer_config.json").write_text(named, "utf-8")
    published = read_published(tmp_path)
    assert published.languages == Languages("zh", "en")
    model = build(published).requires_grad_(False)
    size = len(words) - 2
    their_ids = torch.tensor([pad, 1, pad, 0, *range(2, 2 + size)])
    lengths = torch.tensor([1, 2, 17, 60])
    draw = torch.Generator().manual_seed(1)
    sources = torch.randint(SPECIALS, SPECIALS + size, (4, 60), generator=draw)
    targets = torch.randint(SPECIALS, SPECIALS + size, (4, 60), generator=draw)
    targets[:, 0] = BOS
    for row, length in enumerate(lengths.tolist()):
        sources[row, length - 1] = EOS
        sources[row, length:] = 0
    encoded = model.encode(model.embed_source(sources), lengths)
    states = model.decode(model.embed_target(targets), encoded, lengths[:, None].expand(4, 60))
    mask = (torch.arange(60) < lengths[:, None]).long()
    expected = theirs(
        input_ids=their_ids[sources], attention_mask=mask, decoder_input_ids=their_ids[targets]
    ).logits[..., their_ids]
    kept = [EOS, *range(SPECIALS, SPECIALS + size)]
    ours = model.logits(states.states)[..., kept]
    assert (ours - expected[..., kept]).abs().max() < 1e-4 * expected.abs().max()


# Firefox's models


@pytest.mark.parametrize("pair", ["enpt", "pten"])
def test_firefox_students_write_what_bergamot_writes(pair: str, tmp_path: Path) -> None:
    """Greedily. Bergamot rounds inputs of products to 8 bits, which floats do not.

    So along its translations, its token is either the best here, or close to it.
    """
    lines = bergamot_lines(pair, COUNT)
    for file in firefox_model(pair).iterdir():  # as they are offered for download
        (tmp_path / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), 1))
    import_model(tmp_path / f"model.{pair}.intgemm.alphas.bin.gz", tmp_path / "m", "float32")
    loaded = load_model(tmp_path / "m", "cpu", system="full")
    source, target = loaded.vocabulary.source, loaded.vocabulary.target
    model, gaps, count = loaded.model, [], 0
    for line, wanted in lines:
        tokens, out = source.encode(line), target.encode(wanted)
        length = torch.tensor([len(tokens) + 1])
        with torch.inference_mode():
            encoded = model.encode(model.embed_source(torch.tensor([[*tokens, EOS]])), length)
            inputs = model.embed_target(torch.tensor([[BOS, *out]]))
            seen = length[:, None].expand(1, len(out) + 1)
            logits = model.logits(model.decode(inputs, encoded, seen).states)[0]
        chosen = logits[range(len(out) + 1), [*out, EOS]]
        gaps += (logits.amax(-1) - chosen).tolist()
        count += len(out) + 1
    differ = [gap for gap in gaps if gap > 0]
    print(f"{pair}: {len(differ)} of {count} tokens differ, by at most {max(gaps):.2f}")
    assert len(differ) < 0.03 * count
    assert sum(gap > 2 for gap in gaps) < 0.001 * count
    found = GreedySearch(model, [source.encode(line) for line, _ in lines]).run()
    texts = [target.decode(candidates[0].tokens) for candidates in found]
    same = sum(text == wanted for text, (_, wanted) in zip(texts, lines, strict=True))
    print(f"{pair}: {same} of {len(lines)} translations are equal")


# What is refused


def test_refusals_name_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    cases = {
        "pytorch_model.bin": "a pickle",
        "model.bin": "not a model of CTranslate2, or not complete",
        "a.argosmodel": "not a zip file",
    }
    for name, message in cases.items():
        (folder / name).write_bytes(b"\x06\0\0\0\xff\xff")
        asked = folder / name if name.endswith("argosmodel") else folder
        with pytest.raises(WaitinfoError, match=message):
            read_published(asked)
        (folder / name).unlink()
    (folder / "model.x.bin").write_bytes(b"nothing")
    (folder / "vocab.spm").write_bytes(toy_tokenizer().model)
    for given in (folder, folder / "model.x.bin"):
        with pytest.raises(WaitinfoError, match="not a binary file of Marian"):
            read_published(given)
    for ending, message in ((".gz", "cannot be unpacked"), (".zst", "zstd -d")):
        next(folder.glob("model*")).rename(folder / f"model.x.bin{ending}")
        with pytest.raises(WaitinfoError, match=message):
            read_published(folder)
    (folder / "model.x.bin.zst").rename(folder / "model.x.bin")
    for arguments, message in (
        (["--import", "nowhere", "--out", str(tmp_path / "o")], "no such"),
        (["--import", str(folder)], "give --out"),
        (["--import", str(folder), "--out", str(folder)], "exists already"),
        (["--import", str(folder), "--pack", "x", "--out", "y"], "give one of them"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["models", *arguments])
        assert stop.value.code == 2 and message in capsys.readouterr().err
