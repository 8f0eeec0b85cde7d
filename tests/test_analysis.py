"""`waitinfo analyse` on the bundled model: its numbers against independent computation."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch

from tests.commands import Done, called
from tests.evaluations import PAIRS, bleu
from tests.oracle import literal_path
from waitinfo.analysis.forced_decoding import ForcedGroup, Weights, decode_given
from waitinfo.evaluation.evaluate import Evaluation
from waitinfo.streaming.decoder import Decoder, Hypothesis
from waitinfo.systems import build_system
from waitinfo.text.special import BOS, EOS
from waitinfo.trained.folder import find_model
from waitinfo.trained.saving import LoadedModel, load_model

TAGGED = {
    "de": "ich/PRON wir/PRON er/PRON das/DET der/DET mit/ADP in/ADP um/ADP haben/AUX ist/AUX "
    "Haus/NOUN Zug/NOUN Mutter/NOUN sprechen/VERB wohnt/VERB ./PUNCT ,/PUNCT !/PUNCT alt/ADJ",
    "en": "I/PRON we/PRON he/PRON the/DET a/DET to/ADP in/ADP at/ADP have/AUX is/AUX house/NOUN "
    "train/NOUN mother/NOUN talk/VERB lives/VERB ./PUNCT ,/PUNCT !/PUNCT n't/PART old/ADJ",
}
DIALS = (1.0, 5.0)


def write_tags(path: Path, words: str) -> Path:
    """The same sentence three times, so that its words are frequent."""
    lines = "".join("\t".join(word.rsplit("/", 1)) + "\n" for word in words.split())
    path.write_text(f"{lines}\n" * 3, "utf-8")
    return path


class Analysed:
    """One analysis by the command, with its files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        for number, side in enumerate(("de", "en")):
            text = "".join(f"{pair[number]}\n" for pair in PAIRS)
            (folder / f"test.{side}").write_text(text, "utf-8")
            write_tags(folder / f"{side}.tsv", TAGGED[side])
        self.done = self.run()
        self.numbers = {
            path.stem: json.loads(path.read_text("utf-8"))[path.stem]
            for path in self.out.glob("*.json")
        }

    def run(self, *more: object, out: Path | None = None) -> Done:
        return called(
            "analyse", "--source", self.folder / "test.de", "--reference", self.folder / "test.en",
            "--k", "1,5", "--against-k", "1,3,7", "--out", out or self.out, "--case", 6,
            "--dtype", "float32", "--system", "wait-info",
            "--source-tags", self.folder / "de.tsv", "--target-tags", self.folder / "en.tsv",
            self.folder / "en.tsv", *more,
        )  # fmt: skip


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Analysed:
    found = Analysed(tmp_path_factory.mktemp("analysis"))
    assert found.done.returncode == 0, found.done.stderr
    return found


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(find_model(None), "cpu", system="wait-info")


def tokens(loaded: LoadedModel) -> tuple[list[list[int]], list[list[int]]]:
    encode = loaded.vocabulary.source.encode
    return [encode(s) for s, _ in PAIRS], [encode(t) for _, t in PAIRS]


@torch.no_grad()
def infos(loaded: LoadedModel, given: list[int], target: bool) -> list[float]:
    """Eq. 4 and 5 for one sentence alone, without padding, in float64."""
    model = loaded.model
    embed = model.embed_target if target else model.embed_source
    x = embed(torch.tensor([[BOS, *given] if target else [*given, EOS]])).x[0].double()
    quantizer = (model.target_info if target else model.source_info).quantizer  # type: ignore[union-attr]
    hidden = torch.tanh(torch.tanh(x) @ quantizer.hidden.weight.double().T)
    found = 2 * torch.sigmoid(hidden @ quantizer.out.weight[0].double())
    return found.tolist()[1 if target else 0 :]


@cache
def decodes(loaded: LoadedModel, ending: str, k: float, system: str | None = None) -> list:
    """All sentences translated again, without what the analysis keeps."""
    chosen = build_system(system) if system else loaded.system
    return Decoder(loaded.model, chosen, ending).decode(tokens(loaded)[0], k)


def texts(loaded: LoadedModel, found: list[Hypothesis]) -> list[str]:
    return [loaded.vocabulary.target.decode(h.tokens) for h in found]


REFERENCES = [target for _, target in PAIRS]


# What is written


def test_everything_is_written(analysed: Analysed) -> None:
    names = {"pos-words", "pos-single-tokens", "ratio", "early-stop", "attention", "case",
             "case-staircase", "difficulty", "significance"}  # fmt: skip
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        found = {path.stem: path.read_bytes() for path in analysed.out.glob(f"*{suffix}")}
        assert set(found) == names and all(text.startswith(start) for text in found.values())
    assert len(analysed.numbers) == 7
    assert "written:" in analysed.done.stderr and "READ" in analysed.done.stdout
    assert "accuracy" in analysed.numbers["pos"]["target"]["tagger"]
    assert "100.0% of the words of en.tsv" in analysed.done.stdout


def test_the_report_needs_no_other_file(analysed: Analysed) -> None:
    text = (analysed.out / "report.html").read_text("utf-8")
    assert text.count("<h2") == 7 and text.count("data:image/svg+xml;base64,") == 9
    assert set(re.findall(r'(?:src|href)="(data:|#|\w+:?)', text)) == {"data:"}
    assert "http" not in re.sub(r"base64,[^\"]*", "", text)


def test_the_same_command_translates_nothing_again(
    analysed: Analysed, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    real = Evaluation._results

    def counting(self: Any, sentences: Any, decoding: Any) -> Any:
        decoded.append(len(sentences))
        return real(self, sentences, decoding)

    monkeypatch.setattr(Evaluation, "_results", counting)
    before = (analysed.out / "early-stop.json").read_bytes()
    assert analysed.run("--what", "early-stop").returncode == 0
    assert sum(decoded) == 0 and (analysed.out / "early-stop.json").read_bytes() == before


def test_models_of_integers_are_analysed_too(analysed: Analysed, tmp_path: Path) -> None:
    """They translate with integers; their attention is computed with floats."""
    more = ("--dtype", "int8", "--sentences", 1, "--what", "ratio,attention")
    done = analysed.run(*more, out=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "attention.json").read_text())["facts"]
    assert facts["subjects"][0]["settings"]["dtype"] == "int8"


# Numbers


def test_ratio(analysed: Analysed, loaded: LoadedModel) -> None:
    found = analysed.numbers["ratio"]
    sources, targets = tokens(loaded)
    left = [infos(loaded, s, target=False) for s in sources]
    right = [infos(loaded, t, target=True) for t in targets]
    n, m = sum(map(len, sources)), sum(map(len, targets))
    total_left, total_right = sum(sum(i[:-1]) for i in left), sum(map(sum, right))
    assert found["length_ratio"] == pytest.approx(n / m)
    assert found["info_ratio"] == pytest.approx((total_right / m) / (total_left / n), rel=1e-5)
    assert found["difference"]["mean"] == pytest.approx(
        (total_left - total_right) / len(PAIRS), abs=1e-4
    )
    assert found["difference"]["count"] == sum(found["difference"]["histogram"]) == len(PAIRS)
    means = found["mean_info"]
    for at in found["reference_path_ends"]:
        off = []
        for i, j in zip(left, right, strict=True):
            even = [means["source"]] * len(i), [means["target"]] * len(j)
            paths = (
                literal_path(*side, at["k"], len(i), found["floor"]) for side in ((i, j), even)
            )
            off += [abs(a - b) for a, b in zip(*paths, strict=True) if a < len(i) > b]
        assert at["from_even_path"]["mean"] == pytest.approx(np.mean(off))
        assert at["from_even_path"]["within_1"] == pytest.approx(np.mean(np.array(off) <= 1))
        unread = [
            len(i) - literal_path(i, j, at["k"], len(i), found["floor"])[-1]
            for i, j in zip(left, right, strict=True)
        ]
        assert at["before_end_of_sentence"] == pytest.approx(np.mean([u > 0 for u in unread]))
        assert at["before_last_token"] == pytest.approx(np.mean([u > 1 for u in unread]))


def test_info_of_words(analysed: Analysed, loaded: LoadedModel) -> None:
    """All words together have the info of all tokens (of each tag: test_analysis_parts)."""
    found = analysed.numbers["pos"]["source"]["tags"]
    total = sum(each["words"] * each["info_per_word"]["mean"] for each in found.values())
    every = [i for s in tokens(loaded)[0] for i in infos(loaded, s, target=False)[:-1]]
    assert total == pytest.approx(sum(every), rel=1e-5)  # each token belongs to one word
    counted = sum(each["words"] * each["tokens_per_word"] for each in found.values())
    assert counted == pytest.approx(len(every))
    words = sum(len(re.findall(r"\w+|[^\w\s]", source)) for source, _ in PAIRS)
    assert sum(each["words"] for each in found.values()) == words


def test_early_stop(analysed: Analysed, loaded: LoadedModel) -> None:
    for number, (system, dials) in enumerate(((None, DIALS), ("multipath", (1.0, 3.0, 7.0)))):
        subject = analysed.numbers["early-stop"]["subjects"][number]
        assert [at["k"] for at in subject["dials"]] == list(dials)
        for at in subject["dials"]:
            allowed = decodes(loaded, "allow", at["k"], system)
            guarded = decodes(loaded, "guard", at["k"], system)
            early = [h.path[-1] < h.source_length for h in allowed]
            assert at["early_stop"] == pytest.approx(np.mean(early))
            assert at["BLEU"]["allow"] == pytest.approx(bleu(texts(loaded, allowed), REFERENCES))
            assert at["BLEU"]["guard"] == pytest.approx(bleu(texts(loaded, guarded), REFERENCES))
            for part, wanted in (("early", True), ("complete", False)):
                rows = [i for i, e in enumerate(early) if e is wanted]
                if rows:
                    written = [texts(loaded, allowed)[i] for i in rows]
                    score = bleu(written, [REFERENCES[i] for i in rows])
                    assert at["split"][part]["allow"] == pytest.approx(score)
                else:
                    assert at["split"][part] is None


def seen_weights(loaded: LoadedModel, *pairs: Any) -> list[tuple[ForcedGroup, Weights]]:
    sources, targets, *paths = pairs
    found: list[tuple[ForcedGroup, Weights]] = []
    list(decode_given(loaded, sources, targets, lambda *seen: found.append(seen), *paths))
    return found


def test_attention(analysed: Analysed, loaded: LoadedModel) -> None:
    """Weights of the first encoder layer and of every cross-attention, sentence by sentence."""
    found = analysed.numbers["attention"]
    hypotheses = decodes(loaded, "guard", found["k"])
    layers = len(loaded.model.decoder_layers)
    own, counted, near, mass = [], 0, np.zeros(layers), np.zeros(layers)
    attention = loaded.model.encoder_layers[0].attention
    for source, hypothesis in zip(tokens(loaded)[0], hypotheses, strict=True):
        info = infos(loaded, source, target=False)
        with torch.no_grad():
            x = loaded.model.embed_source(torch.tensor([[*source, EOS]])).x
            q, k, _ = (p[0].double() for p in attention.project(x).chunk(3, dim=-1))
        for i in range(1, len(source)):
            weights = []
            for head in range(attention.heads):
                part = slice(head * q.shape[1] // attention.heads,
                             (head + 1) * q.shape[1] // attention.heads)  # fmt: skip
                scores = [float(q[i, part] @ k[j, part]) / (part.stop - part.start) ** 0.5
                          for j in range(i + 1)]  # fmt: skip
                scores[i] += info[i] - 1  # Eq. 8
                weights.append(np.exp(scores[i]) / np.exp(scores).sum())
            own.append(np.mean(weights))
        # Eq. 10, from the weights without info
        recorded = seen_weights(loaded, [source], [hypothesis.tokens], [hypothesis.path])
        target = infos(loaded, hypothesis.tokens, target=True)
        for each in (w for _, w in recorded if w.kind == "cross"):
            for i, read in enumerate(hypothesis.path[1:], 1):
                alpha = each.plain[0, :, i, :read].double().numpy()
                gamma = alpha * (2 - np.abs(target[i - 1] - np.array(info[:read])))
                gamma = (gamma / gamma.sum(1, keepdims=True)).mean(0)
                seen = min(read, len(source))
                gaps = np.abs(target[i - 1] - np.array(info[:seen]))
                near[each.layer] += (gamma[:seen] * gaps).sum()
                mass[each.layer] += gamma[:seen].sum()
                counted += seen * (each.layer == 0)
    assert found["encoder"][0]["tokens"] == len(own)
    assert found["encoder"][0]["weight"] == pytest.approx(np.mean(own), rel=1e-4)
    assert [each["pairs"] for each in found["cross"]] == [counted] * layers
    attended = [each["attended_distance"] for each in found["cross"]]
    assert attended == pytest.approx((near / mass).tolist(), rel=1e-3)


def test_observing_changes_nothing(loaded: LoadedModel) -> None:
    (sources, targets), model = tokens(loaded), loaded.model
    before = [layer.attention.attend for layer in model.encoder_layers]
    weights = seen_weights(loaded, sources[:3], targets[:3])
    assert len(weights) == len(model.encoder_layers) + 2 * len(model.decoder_layers)
    for forced, each in weights:
        assert torch.allclose(each.biased.sum(-1), torch.ones(()), atol=1e-5)
        if each.kind == "cross":
            columns = torch.arange(each.biased.shape[-1])
            unseen = columns >= forced.visible[:, None, :, None]
            assert not each.biased[unseen.expand_as(each.biased)].any()
    assert [layer.attention.attend for layer in model.encoder_layers] == before


def test_case(analysed: Analysed, loaded: LoadedModel) -> None:
    """Every token is written as soon as the policy allows it, and not before."""
    found = analysed.numbers["case"]
    assert found["line"] == 6 and found["reference"] == PAIRS[5][1]
    info_policy, lag_policy = found["subjects"]
    source = [token["info"] for token in info_policy["source"]]
    assert source[:-1] == pytest.approx(infos(loaded, tokens(loaded)[0][5], False)[:-1], rel=1e-5)
    floor = loaded.system.options.floor  # type: ignore[attr-defined]
    written = [token["info"] for token in info_policy["written"][:-1]]
    reads = [token["read"] for token in info_policy["written"]]
    path = literal_path([*source[:-1], 0.0], written, info_policy["k"], len(source), floor=floor)
    assert reads == path
    n = len(lag_policy["source"])
    lags = [min(int(lag_policy["k"]) + i, n) for i in range(len(lag_policy["written"]))]
    assert [token["read"] for token in lag_policy["written"]] == lags


def test_difficulty(analysed: Analysed, loaded: LoadedModel) -> None:
    found = analysed.numbers["difficulty"]
    hypotheses = texts(loaded, decodes(loaded, "guard", found["subjects"][0]["k"]))
    lengths = [len(source.split()) for source, _ in PAIRS]
    assert sum(b["sentences"] for b in found["length"]) == len(PAIRS)
    for b in found["length"]:
        rows = [i for i, n in enumerate(lengths) if b["from"] <= n <= b["to"]]
        assert len(rows) == b["sentences"]
        score = bleu([hypotheses[i] for i in rows], [REFERENCES[i] for i in rows])
        assert b["subjects"][0]["BLEU"] == pytest.approx(score)
    others = texts(loaded, decodes(loaded, "guard", found["subjects"][1]["k"], "multipath"))
    gaps = {}
    for i, (one, two) in enumerate(zip(hypotheses, others, strict=True)):
        scores = [sacrebleu.sentence_chrf(text, [REFERENCES[i]]).score for text in (one, two)]
        gaps[i + 1] = scores[0] - scores[1]
    assert found["differences"]["chrF"] == pytest.approx(np.mean(list(gaps.values())), abs=1e-6)
    shown = found["differences"]["best_for_first"]
    assert [each["line"] for each in shown] == [
        line for line in sorted(gaps, key=lambda line: -gaps[line]) if gaps[line] > 0
    ]


@torch.no_grad()
def aligned(loaded: LoadedModel, source: list[int], target: list[int]) -> list[int]:
    """The source token with most attention, from queries and keys of each layer in float64."""
    model, read, total = loaded.model, len(source) + 1, 0.0
    encoded = model.encode(model.embed_source(torch.tensor([[*source, EOS]])), torch.tensor([read]))
    crosses = [layer.cross for layer in model.decoder_layers]
    seen: list[Any] = []
    hooks = [c.register_forward_pre_hook(lambda _, given: seen.append(given)) for c in crosses]
    given = model.embed_target(torch.tensor([[BOS, *target]]))
    model.decode(given, encoded, torch.full((1, len(target) + 1), read))
    for hook in hooks:
        hook.remove()
    for cross, (x, memory, view) in zip(crosses, seen, strict=True):
        queries = cross.queries(x)[0].double()
        width = queries.shape[-1] // cross.heads
        for head in range(cross.heads):
            keys = memory.keys[0, head].double()
            scores = queries[:, head * width : (head + 1) * width] @ keys.T / width**0.5
            bias = view.bias[0, head if view.bias.shape[1] > 1 else 0].double()
            total = total + (scores + bias).softmax(-1)
    return total[:-1, :-1].argmax(-1).tolist()


def test_word_order(analysed: Analysed, loaded: LoadedModel) -> None:
    """Crossings counted pair by pair, of alignments from the model's attention."""
    shares = []
    for source, target in zip(*tokens(loaded), strict=True):
        at = aligned(loaded, source, target)
        pairs = [(a, b) for i, a in enumerate(at) for b in at[i + 1 :] if a != b]
        shares.append(sum(a > b for a, b in pairs) / len(pairs))
    assert len(set(shares)) > 3
    found = analysed.numbers["difficulty"]["crossings"]
    assert sum(b["sentences"] for b in found) == len(PAIRS)
    total = sum(b["sentences"] * b["mean"] for b in found)
    assert total == pytest.approx(sum(shares), abs=1e-4)
    for b in found:
        inside = [s for s in shares if b["from"] - 1e-5 <= s <= b["to"] + 1e-5]
        assert len(inside) == b["sentences"]
        assert b["mean"] == pytest.approx(np.mean(inside), abs=1e-5)


# Significance


def test_significance_of_the_command(analysed: Analysed, loaded: LoadedModel) -> None:
    found = analysed.numbers["significance"]
    ends = []
    (other,) = found["against"]
    assert (found["subject"], other["name"]) == ("wait-info", "multipath")
    for system, dials, points in (
        (None, DIALS, found["points"]),
        ("multipath", (1.0, 3.0, 7.0), other["points"]),
    ):
        assert [p["k"] for p in points] == list(dials)
        scores = [
            bleu(texts(loaded, decodes(loaded, "guard", k, system)), REFERENCES) for k in dials
        ]
        ends.append(([p["latency"] for p in points], scores))
    for at in other["at"]:
        wanted = [np.interp(at["latency"], xs, ys) for xs, ys in ends]
        assert at["BLEU"] == pytest.approx(wanted)


def test_significance_against_several_systems(analysed: Analysed, tmp_path: Path) -> None:
    """Each value of a setting is a system of its own, with its own paths and its own place."""
    given = ["--what", "significance", "--against-system", "multipath"]
    done = analysed.run(*given, "--against-set", "catch_up=0,2", out=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "significance.json").read_text("utf-8"))["significance"]
    assert [other["name"] for other in found["against"]] == [
        "multipath", "multipath catch_up=2",
    ]  # fmt: skip
    plain, faster = found["against"]
    (alone,) = analysed.numbers["significance"]["against"]
    assert plain["points"] == alone["points"]
    # Round latencies for all of them, so that the steps may be others; the figures are the same.
    seen, before = ({at["latency"]: at for at in each["at"]} for each in (plain, alone))
    assert set(seen) & set(before) and {at["latency"] for at in faster["at"]} & set(seen)
    assert all(seen[x] == before[x] for x in set(seen) & set(before))
    for one, other in zip(plain["points"], faster["points"], strict=True):
        assert other["latency"] > one["latency"]  # one more READ after every second token
    assert (tmp_path / "significance.png").exists()


def test_a_combination_of_settings_that_changes_nothing_is_left_out(
    analysed: Analysed, tmp_path: Path
) -> None:
    """Nobody wants to compare a system with itself."""
    given = ["--what", "significance", "--against-system", "wait-info", "--against-set"]
    done = analysed.run(*given, "source_mean=0,0.9", "target_mean=0,1", out=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "significance.json").read_text("utf-8"))["significance"]
    assert [other["name"] for other in found["against"]] == [
        "wait-info target_mean=1",
        "wait-info source_mean=0.9",
        "wait-info source_mean=0.9 target_mean=1",
    ]
    done = analysed.run(*given, "rate=1,1.0", out=tmp_path / "none")
    assert done.returncode == 2 and "--against-set rate=1,1.0: changes nothing" in done.stderr


def test_paths_of_references_follow_the_options(analysed: Analysed, tmp_path: Path) -> None:
    found = []
    for options in ([], ["--set", "rate=3"], ["--system", "veto", "--set", "rate=3"]):
        done = analysed.run("--what", "ratio", *options, out=tmp_path)
        assert done.returncode == 0, done.stderr
        ratio = json.loads((tmp_path / "ratio.json").read_text("utf-8"))["ratio"]
        found.append([at["before_end_of_sentence"] for at in ratio["reference_path_ends"]])
    assert sum(found[1]) < sum(found[0])  # it reads faster
    assert found[2] == found[0]  # the path of wait-info


# Errors


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--what", "pos,colour"], "unknown --what 'colour'; choose one of: pos, ratio"),
        (["--case", "9"], "--case 9: .* has lines 1 to 7"),
        (["--sentences", "-1"], "--sentences -1: must be 0, for all, or more"),
        (["--x", "BLEU"], "--x BLEU: must be a latency"),
        (["--k", "a"], "--k a: give numbers"),
        (["--source-tags", "test.de"], "line 1: not a word, a tab and a tag"),
        (["--source-tags", "gone.tsv"], "gone.tsv: no such file"),
        (["--source-tags", "spacy:none"], "spacy:none: "),
        (["--against", "gone"], "gone: no such model"),
        (["--against-system", "moe-wait-k"], "model.cross_attention plain: moe-wait-k requires"),
        (["--out", "test.de"], "test.de: is a file"),
    ],
)
def test_errors_are_one_line(
    analysed: Analysed, given: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(analysed.folder)
    start = ["--source", "test.de", "--reference", "test.en", "--out", "other"]
    done = called("analyse", *start, *given)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("waitinfo: ") and re.search(message, last)


def test_a_tagger_is_asked_for(analysed: Analysed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(analysed.folder)
    start = ["--source", "test.de", "--reference", "test.en", "--out", "other"]
    done = called("analyse", *start, "--what", "pos")
    assert done.returncode == 2 and "needs --source-tags or --target-tags" in done.stderr
