"""`waitinfo distill`: pairs of a teacher, mixed, marked and resumed."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import HashStore

from tests.conftest import tiny_config, toy_pairs, write_pairs
from tests.engines import restless
from tests.processes import Interrupt, die, in_a_process, leftovers
from tests.streams import toy_model, toy_tokenizer
from waitinfo.cli.app import main
from waitinfo.distillation import distill as module
from waitinfo.distillation.distill import DistillOptions, distill
from waitinfo.distillation.filters import Filters
from waitinfo.distillation.mixing import Data
from waitinfo.errors import WaitinfoError
from waitinfo.model import Transformer
from waitinfo.streaming.translator import Translator
from waitinfo.systems import build_system
from waitinfo.text.corpus import Corpus
from waitinfo.text.files import ParallelText, normalise
from waitinfo.text.languages import Languages
from waitinfo.text.prepare import PrepareOptions, prepare
from waitinfo.text.tokenizer import Vocabulary
from waitinfo.trained.saving import LoadedModel, save_model
from waitinfo.translation import file_translation
from waitinfo.translation.decoding import TranslationOptions
from waitinfo.translation.lines import LineTranslator
from waitinfo.translation.sharing import Processes

ANY = Filters(max_tokens=10_000, max_ratio=1000)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_translation, "SMALLEST_BLOCK", 8)
    monkeypatch.setattr(file_translation, "LARGEST_BLOCK", 8)
    monkeypatch.setattr(file_translation, "POLL", 0.01)
    monkeypatch.setattr(file_translation, "fingerprint", str)


def save(folder: Path, system: str, seed: int = 0, **changes: object) -> Path:
    """A model folder with random weights that writes varied text."""
    tokenizer, chosen = toy_tokenizer(), build_system(system)
    torch.manual_seed(seed)
    sizes = {"source_vocabulary": len(tokenizer), "target_vocabulary": len(tokenizer)}
    model = restless(Transformer(tiny_config(**sizes | {**chosen.model_defaults} | changes)))
    languages = Languages("xx", "yy")
    save_model(folder, model, model.weights(), chosen, Vocabulary(tokenizer, tokenizer),
               languages=languages)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distill")
    Vocabulary(toy_tokenizer(), toy_tokenizer()).save(folder)
    tsv = write_pairs(folder / "toy.tsv", toy_pairs(60, 5))
    options = PrepareOptions(vocabulary_from=folder, holdout=6)
    prepare(ParallelText(tsv=[tsv]), folder / "corpus", options)
    return folder / "corpus"


def pairs(folder: Path) -> list[tuple[str, str, str]]:
    """The training pairs of a corpus with their origins, read from its arrays."""
    corpus = Corpus(folder)
    names, origins = corpus.origins() or (["original"], np.zeros(len(corpus.train), np.uint8))
    found = []
    for index, origin in enumerate(origins):
        sides = [corpus.train.gather(np.array([index]), side)[0].tolist() for side in (0, 1)]
        source = corpus.vocabulary.source.decode(sides[0])
        found.append((source, corpus.vocabulary.target.decode(sides[1]), names[origin]))
    return found


def expected_pairs(old: list[tuple[str, str, str]], new: list[str], made: str) -> list:
    """Each old pair, followed by its translation unless that is empty or goes round in circles."""
    found = []
    for pair, written in zip(old, new, strict=True):
        translation = normalise(written)
        found.append(pair)
        if ANY.of_pair(pair[0], translation, (1, 1), pair[1]) is None:
            found.append((pair[0], translation, made))
    return found


@pytest.mark.parametrize(
    ("system", "made"), [("full", "distilled"), ("wait-k", "monotone"), ("wait-info", "monotone")]
)
def test_pairs_are_what_the_teacher_writes(
    corpus: Path, system: str, made: str, tmp_path: Path
) -> None:
    """Both kinds of teacher, against streams of the same model."""
    teacher, old = toy_model(system), pairs(corpus)
    k = None if system == "full" else 3.0
    options = DistillOptions(TranslationOptions(k=k), filters=ANY)
    report = distill([teacher], Data(corpus), tmp_path / "out", options)
    translations = Translator(teacher, 8).translate([source for source, _, _ in old], k)
    assert pairs(tmp_path / "out") == expected_pairs(old, translations, made)
    assert report is not None and report.pairs["original"] == len(old)
    assert report.pairs[made] + report.dropped.total() == len(old)
    assert leftovers(tmp_path) == []
    manifest = Corpus(tmp_path / "out").manifest
    assert manifest["distillation"]["dropped"] == dict(report.dropped)
    assert manifest["origins"][made] == report.pairs[made]


def test_the_corpus_is_complete(corpus: Path, tmp_path: Path) -> None:
    """Everything that training reads: dev text, vocabulary, counts, lengths."""
    teacher = toy_model("full")
    distill([teacher], Data(corpus), tmp_path / "out", DistillOptions(filters=ANY))
    before, after = Corpus(corpus), Corpus(tmp_path / "out")
    assert after.dev_text() == before.dev_text() and len(after.dev) == len(before.dev)
    assert after.vocabulary == before.vocabulary and after.languages == before.languages
    for side, name in enumerate(("source", "target")):
        flat, _ = after.train.gather(np.arange(len(after.train)), side)
        counts = np.bincount(flat, minlength=len(after.vocabulary.source))
        assert after.token_counts(name).tolist() == counts.tolist()
        assert after.manifest["splits"]["train"][f"{name}_tokens"] == len(flat)


def test_shares_text_and_a_second_round(corpus: Path, tmp_path: Path) -> None:
    full, simultaneous = toy_model("full"), toy_model("wait-k")
    text = tmp_path / "more.txt"
    text.write_text("ba be bi\nbo bu du da\n", "utf-8")
    half = DistillOptions(filters=ANY, mix={"original": 1, "distilled": 0.5})
    distill([full], Data(corpus, [text]), tmp_path / "one", half)
    first = pairs(tmp_path / "one")
    old, sources = pairs(corpus), [source for source, _, _ in first]
    assert [pair for pair in first if pair[2] == "original"] == old
    made = [pair for pair in first if pair[2] == "distilled"]
    assert 0 < len(made) < len(old) and {"original", "distilled"} == {pair[2] for pair in first}
    again = DistillOptions(TranslationOptions(k=2), filters=ANY, mix={"original": 0})
    distill([simultaneous], Data(tmp_path / "one"), tmp_path / "two.tsv", again)
    lines = (tmp_path / "two.tsv").read_text("utf-8").splitlines()
    second = [tuple(line.split("\t")) for line in lines]
    assert [pair for pair in second if pair[2] == "distilled"] == made
    monotone = [pair for pair in second if pair[2] == "monotone"]
    assert len(made) + len(monotone) == len(second)
    assert {source for source, _, _ in monotone} <= {source for source, _, _ in old}
    assert len(sources) == len(first)
    none = DistillOptions(TranslationOptions(k=2), filters=ANY, mix={"distilled": 0.5})
    with pytest.raises(WaitinfoError, match="those of this teacher are called monotone"):
        distill([simultaneous], Data(corpus), tmp_path / "none", none)
    distill([simultaneous], Data(tmp_path / "one"), tmp_path / "some.tsv", none)
    assert not list(tmp_path.glob("*none*"))


def test_the_best_of_several(corpus: Path, tmp_path: Path) -> None:
    """By similarity, the chosen one is at least as similar as the teacher's first."""
    from waitinfo.distillation.filters import chrf

    teacher, old = toy_model("full"), pairs(corpus)
    found = {}
    for name, options in (
        ("first", DistillOptions(TranslationOptions(beam=4), filters=ANY)),
        ("chrf", DistillOptions(TranslationOptions(beam=4, best=4), "chrf", filters=ANY)),
        ("sampled", DistillOptions(
            TranslationOptions(temperature=1.0, top_k=5, best=3, scores=True), filters=ANY)),
    ):  # fmt: skip
        alone = replace(options, mix={"original": 0})
        distill([teacher], Data(corpus), tmp_path / name, alone)
        found[name] = {source: target for source, target, _ in pairs(tmp_path / name)}
    both = [pair for pair in old if pair[0] in found["first"]]
    scores = [
        [chrf(reference)(found[name][source]) for name in ("chrf", "first")]
        for source, reference, _ in both
    ]
    assert all(chosen >= first for chosen, first in scores)
    assert any(chosen > first for chosen, first in scores)
    # Sampled: the one with the highest score of the three that the file translation gives.
    options = TranslationOptions(temperature=1.0, top_k=5, best=3, scores=True)
    numbered = list(enumerate(source for source, _, _ in old))
    for complete in LineTranslator(teacher, options).translate(numbered):
        for translations in complete:
            passing = [
                t for t in translations
                if ANY.of_pair(*old[t.line][:1], normalise(t.text), (1, 1), old[t.line][1]) is None
            ]  # fmt: skip
            if passing and sum(s == old[translations[0].line][0] for s, _, _ in old) == 1:
                best = max(passing, key=lambda t: round(t.score, 4))
                assert found["sampled"][old[best.line][0]] == normalise(best.text)


# Several teachers


def ensemble(seeds: int) -> list[LoadedModel]:
    first = toy_model("full")
    models = [first]
    for seed in range(1, seeds):
        torch.manual_seed(seed)
        other = restless(Transformer(first.model.config)).double().eval()
        models.append(replace(first, model=other, folder=Path(f"toy{seed}")))
    return models


@pytest.mark.parametrize("beam", [1, 3])
def test_several_teachers_write_by_their_mean_probability(beam: int) -> None:
    """Against a search that runs every prefix through every model from the start."""
    first, *others = ensemble(3)
    text = "ba be bi du. da"
    options = TranslationOptions(beam=beam, segment="whole")
    (translation,) = next(LineTranslator(first, options, others=others).translate([(0, text)]))[0]
    source = torch.tensor([[*first.vocabulary.source.encode(text), 3]])
    lengths = torch.tensor([source.shape[1]])

    @torch.inference_mode()
    def log_p(prefix: list[int]) -> torch.Tensor:
        shares = []
        for loaded in (first, *others):
            model = loaded.model
            encoded = model.encode(model.embed_source(source), lengths)
            target = model.embed_target(torch.tensor([[2, *prefix]]))
            visible = lengths[:, None].expand(1, len(prefix) + 1)
            states = model.decode(target, encoded, visible).states[0, -1]
            shares.append(model.logits(states[None])[0].softmax(-1))
        found = torch.stack(shares).mean(0).log()
        found[[0, 2]] = -torch.inf  # padding and begin-of-sentence are never written
        return found

    limit = 2 * source.shape[1] + 200
    beams, ended = [([], 0.0)], []
    for _ in range(limit):
        grown = [
            ([*tokens, token], score + value)
            for tokens, score in beams
            for value, token in zip(
                *(v.tolist() for v in log_p(tokens).topk(2 * beam)), strict=True
            )
        ]
        grown.sort(key=lambda item: -item[1])
        ended += [item for item in grown[:beam] if item[0][-1] == 3]
        beams = [item for item in grown if item[0][-1] != 3][:beam]
        if len(ended) >= beam:
            break
    else:
        pytest.skip("the random models do not end")
    best = max(ended, key=lambda item: item[1] / len(item[0]))
    assert translation.text == first.vocabulary.target.decode(best[0])


def test_teachers_that_cannot_translate_together(corpus: Path, tmp_path: Path) -> None:
    full, simultaneous = toy_model("full"), toy_model("wait-k")
    with pytest.raises(WaitinfoError, match="toy: wait-k reads word by word; only full-sentence"):
        distill([full, simultaneous], Data(corpus), tmp_path / "out")
    other = replace(full, vocabulary=Corpus(corpus).vocabulary)
    distill([full, other], Data(corpus), tmp_path / "same", DistillOptions(filters=ANY))
    with pytest.raises(WaitinfoError, match="toy: has another vocabulary than toy"):
        strange = replace(full, vocabulary=Vocabulary(_another(), _another()))
        distill([full, strange], Data(corpus), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _another():
    from waitinfo.text.tokenizer import VocabularySpec, train_tokenizer

    return train_tokenizer(["ba be bi"] * 9, VocabularySpec("words", 1))[0]


# Interruptions


@pytest.mark.parametrize("after", [3, 6, 12])
def test_after_a_kill_nothing_is_lost_or_twice(corpus: Path, after: int, tmp_path: Path) -> None:
    teacher, options = toy_model("full"), DistillOptions(filters=ANY, mix={"distilled": 0.7})
    distill([teacher], Data(corpus), tmp_path / "right", options)
    out = tmp_path / "out"
    status = in_a_process(
        lambda: distill([teacher], Data(corpus), out, options, rows=1,
                        progress=Interrupt(after, die))
    )  # fmt: skip
    assert os.WTERMSIG(status()) == signal.SIGKILL and not out.exists()
    with pytest.raises(WaitinfoError, match="was begun before; continue it with resume"):
        distill([teacher], Data(corpus), out, options)
    with pytest.raises(WaitinfoError, match="begun with another choose and mix"):
        changed = DistillOptions(choose="chrf", filters=ANY)
        distill([teacher], Data(corpus), out, changed, resume=True)
    distill([teacher], Data(corpus), out, options, resume=True)
    assert pairs(out) == pairs(tmp_path / "right")
    assert leftovers(tmp_path) == []
    assert distill([teacher], Data(corpus), out, options, resume=True) is None  # complete
    with pytest.raises(WaitinfoError, match="already in use"):
        distill([teacher], Data(corpus), out, options)
    distill([teacher], Data(corpus), out, replace(options, mix={}), force=True)
    assert len(pairs(out)) > len(pairs(tmp_path / "right"))


def test_killed_while_the_mixture_is_written(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, options, out = toy_model("full"), DistillOptions(filters=ANY), tmp_path / "out.tsv"
    monkeypatch.setattr("waitinfo.distillation.mixing.CHUNK", 20)
    distill([teacher], Data(corpus), tmp_path / "right.tsv", options)

    class Dying(Interrupt):
        def stage(self, name: str, total: float | None = None) -> None:
            self.left = 2 if name == "mixing" else 10**9

    child = in_a_process(
        lambda: distill([teacher], Data(corpus), out, options, progress=Dying(10**9, die))
    )
    assert os.WTERMSIG(child()) == signal.SIGKILL and not out.exists()
    distill([teacher], Data(corpus), out, options, resume=True)
    assert out.read_bytes() == (tmp_path / "right.tsv").read_bytes()


def test_several_processes_share_the_work(corpus: Path, tmp_path: Path) -> None:
    teacher, options = toy_model("full"), DistillOptions(filters=ANY)
    store = HashStore()
    alone = distill([teacher], Data(corpus), tmp_path / "alone", options)
    lead = Processes(0, 2, 0, store)
    report = distill([teacher], Data(corpus), tmp_path / "out", options, processes=lead)
    other = Processes(1, 2, 1, store)  # it comes too late, which is no error
    assert distill([teacher], Data(corpus), tmp_path / "out", options, processes=other) is None
    assert report == alone and pairs(tmp_path / "out") == pairs(tmp_path / "alone")


def test_many_translations_are_chosen_by_several_processes(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, options = toy_model("full"), DistillOptions(filters=ANY)
    distill([teacher], Data(corpus), tmp_path / "one", options)
    used = []

    class Pool:
        def __init__(self, **given: object) -> None: ...
        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...
        def map(self, call, slices):
            used.append(len(slices))
            return [call(some) for some in slices]

    monkeypatch.setattr(module, "PARALLEL", 10)
    monkeypatch.setattr(module, "SLICE", 7)
    monkeypatch.setattr(module, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    distill([teacher], Data(corpus), tmp_path / "two", options)
    assert used and used[0] > 1 and pairs(tmp_path / "one") == pairs(tmp_path / "two")


# The command line


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


def test_the_command(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = save(tmp_path / "full", "full")
    causal = save(tmp_path / "causal", "full", encoder="causal")
    multipath = save(tmp_path / "multipath", "multipath")
    common = ("--data", corpus, "--max-ratio", 100, "--max-tokens", 5000, "--threads", 1)
    assert call("distill", "--teacher", full, causal, *common, "--out", tmp_path / "a") == 0
    shown = capsys.readouterr().err
    assert "pairs (" in shown and "54 original" in shown
    shares = ("--mix", "original=0", "monotone=0.5")
    assert call("distill", "--teacher", multipath, "--system", "wait-k", "--k", 5, *common,
                *shares, "--out", tmp_path / "b.tsv.xz") == 0  # fmt: skip
    assert "monotone)" in capsys.readouterr().err
    assert call("distill", "--teacher", causal, "--system", "wait-k", "--k", 3, *common,
                "--out", tmp_path / "c") == 0  # fmt: skip
    assert "was trained on whole sentences" in capsys.readouterr().err
    manifest = json.loads((tmp_path / "c" / "corpus.json").read_text("utf-8"))
    assert manifest["distillation"]["teacher"]["k"] == 3
    for arguments, message in (
        (("--teacher", full, "--system", "wait-info", "--k", 5), "requires a causal encoder"),
        (("--teacher", multipath, "--beam", 4), "only full-sentence models offer it"),
        (("--teacher", multipath, "--choose", "chrf", "--best", 3), "more translations than beams"),
        (("--teacher", full, "--k", 5), "has no k"),
        (("--teacher", full, "--choose", "bert"), "choose one of: score, chrf, bleu"),
        (("--teacher", full, "--mix", "original=2"), "from 0 to 1"),
        (("--teacher", multipath, "--k", 5, "--lag", 3), "leave out --k"),
        (("--teacher", multipath, "--lag", 3), "calibrat"),
        (("--teacher", tmp_path / "nowhere"), "no such model"),
        (("--teacher", full, "--text", tmp_path / "nowhere"), "no such file"),
    ):
        assert call("distill", *arguments, *common, "--out", tmp_path / "d") == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
        assert not (tmp_path / "d").exists()
    tsv = write_pairs(tmp_path / "pairs.tsv", toy_pairs(5))
    for data, out, message in (
        (tsv, tmp_path / "d", "name a .tsv file"),
        (tsv, tsv, "is the data"),
        (corpus, tmp_path / "a", "already in use"),
        (tmp_path / "full", tmp_path / "d", "not a prepared corpus"),
    ):
        assert call("distill", "--teacher", full, "--data", data, "--out", out) == 2
        assert message in capsys.readouterr().err
