"""M2M100 and NLLB: one model, many directions, against transformers; and streams of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.many_languages import NAMES, pieces, saved
from tests.streams import toy_model
from waitinfo.errors import WaitinfoError
from waitinfo.importing.m2m100 import _codes
from waitinfo.importing.models import import_model
from waitinfo.importing.pieces import PieceFile
from waitinfo.streaming.decoder import Decoder
from waitinfo.streaming.translator import Translator
from waitinfo.systems import build_system
from waitinfo.text.languages import Languages, find_code
from waitinfo.text.special import BOS, EOS, SPECIALS
from waitinfo.trained.saving import LoadedModel, load_model
from waitinfo.translation.decoding import SentenceDecoder, TranslationOptions


def their_ids(loaded: LoadedModel, kind: str, folder: Path) -> torch.Tensor:
    """The row in their matrix of each of our tokens."""
    count = len(loaded.vocabulary.source) - SPECIALS - 3
    found = [1, 3, 2, 2]
    for token in range(SPECIALS, SPECIALS + count):
        piece = loaded.vocabulary.source.piece(token)
        if kind == "m2m100":
            found.append(json.loads((folder / "vocab.json").read_text("utf-8"))[piece])
        else:
            found.append([p.text for p in PieceFile(pieces()).pieces].index(piece) + 1)
    return torch.tensor([*found, *range(4 + count, 4 + count + 3)])


@pytest.fixture(params=NAMES)
def imported(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """What transformers has, what was imported from it, and the rows of our tokens there."""
    theirs = saved(tmp_path / "published", request.param)
    languages = Languages("de", "en")
    import_model(tmp_path / "published", tmp_path / "m", "float32", languages=languages)
    loaded = load_model(tmp_path / "m", "cpu", system="wait-k")
    return theirs, loaded, their_ids(loaded, request.param, tmp_path / "published")


def test_logits_are_those_of_transformers(imported: Any) -> None:
    theirs, loaded, rows = imported
    model, size = loaded.model.requires_grad_(False), len(rows) - 3
    lengths = torch.tensor([1, 2, 17, 60])
    draw = torch.Generator().manual_seed(1)
    sources = torch.randint(SPECIALS, size, (4, 60), generator=draw)
    targets = torch.randint(SPECIALS, size, (4, 60), generator=draw)
    targets[:, 0], targets[:, 1] = BOS, loaded.opening.target
    for row, length in enumerate(lengths.tolist()):
        sources[row, 0] = loaded.opening.source
        sources[row, length - 1] = EOS
        sources[row, length:] = 0
    encoded = model.encode(model.embed_source(sources), lengths)
    states = model.decode(model.embed_target(targets), encoded, lengths[:, None].expand(4, 60))
    mask = (torch.arange(60) < lengths[:, None]).long()
    expected = theirs(
        input_ids=rows[sources], attention_mask=mask, decoder_input_ids=rows[targets]
    ).logits[..., rows]
    kept = [EOS, *range(SPECIALS, size)]
    ours = model.logits(states.states)[..., kept]
    assert (ours - expected[..., kept]).abs().max() < 1e-4 * expected.abs().max()


def test_greedy_translations_are_those_of_transformers(imported: Any) -> None:
    theirs, loaded, rows = imported
    back = {row: token for token, row in enumerate(rows.tolist()) if token != BOS}
    full = replace(loaded, system=build_system("full"))
    sources = [loaded.vocabulary.source.encode(text) for text in ("bab dudo geg.", "ge", "du " * 9)]
    for codes in (("de", "en"), ("en", "de")):
        chosen = full.between(*codes)
        decoder = SentenceDecoder(chosen, TranslationOptions())
        (found,) = decoder.decode(sources, [(0, 0)] * len(sources))
        ours = dict(zip(*found, strict=True))
        beams = SentenceDecoder(chosen, TranslationOptions(beam=3))
        (searched,) = beams.decode(sources, [(0, 0)] * len(sources))
        for number, source in enumerate(sources):
            given = rows[[chosen.opening.source, *source, EOS]]
            never = [[int(row)] for row in rows[-3:]] + [[0], [1], [3]]
            unused = [[row] for row in range(theirs.config.vocab_size) if row not in back]
            expected = theirs.generate(
                given[None], num_beams=1, do_sample=False, max_new_tokens=12,
                forced_bos_token_id=int(rows[chosen.opening.target]),
                bad_words_ids=[*never[3:], *unused, *never[:3]],
            )[0].tolist()[2:]  # fmt: skip
            wanted = [back[row] for row in expected if row != 2]
            assert ours[number][0].tokens[: len(wanted)] == wanted
            assert searched[1][searched[0].index(number)][0].tokens[:1] != [chosen.opening.target]


@pytest.mark.parametrize("system", ["wait-k", "local-agreement", "alignatt", "confidence", "veto"])
def test_streams_of_several_directions_share_a_batch(tmp_path: Path, system: str) -> None:
    """Each writes what its own direction writes alone, in a batch, and with the prefix literal."""
    saved(tmp_path / "published", "nllb")
    import_model(tmp_path / "published", tmp_path / "m", "float32")
    loaded = load_model(tmp_path / "m", "cpu", system=system)
    with pytest.raises(WaitinfoError, match="give two of them"):
        Translator(loaded).stream()
    directions = [Languages(*pair) for pair in (("de", "en"), ("en", "zh"), ("de", "zh"))]
    texts = ["bab dudo geg. du gogu", "ge", "du dudo bab " * 3]
    translator = Translator(loaded, streams=3)
    streams = [translator.stream(languages=each) for each in directions]
    shown = dict.fromkeys(streams, "")
    words = [text.split() for text in texts]
    for turn in range(max(map(len, words))):
        pushed = {s: w[turn] for s, w in zip(streams, words, strict=True) if turn < len(w)}
        for stream, events in translator.push_many(pushed).items():
            shown[stream] += "".join(event.text for event in events)
    for stream, events in translator.finish_many(streams).items():
        shown[stream] += "".join(event.text for event in events)
    for stream, languages, text in zip(streams, directions, texts, strict=True):
        chosen = loaded.between(languages.source, languages.target)
        decoder = Decoder(chosen.model, chosen.system, opening=chosen.opening)
        tokens = [chosen.vocabulary.source.encode(part) for part in sentences_of(text)]
        found = decoder.decode(tokens, chosen.system.trained_dial())
        expected = " ".join(
            filter(None, (chosen.vocabulary.target.decode(h.tokens) for h in found))
        )
        assert shown[stream].strip() == expected
        for hypothesis, source in zip(found, tokens, strict=True):
            assert hypothesis.source_length == len(source) + 1 >= max(hypothesis.path)
            assert min(hypothesis.path) >= 1
            assert chosen.opening.target not in hypothesis.tokens


def sentences_of(text: str) -> list[str]:
    head, stop, rest = text.partition(".")
    return [head + stop, rest.strip()] if stop else [text]


def test_codes_of_languages() -> None:
    names = dict.fromkeys(["__pt__", "zho_Hans", "zho_Hant", "por_Latn", "ace_Latn"], 0)
    found = _codes(names)
    assert list(found.values()) == ["pt", "zh-Hans", "zh-Hant", "pt", "ace"]
    known = dict.fromkeys(found.values(), 0)
    assert find_code("pt", known) == "pt" and find_code("pt-BR", known) == "pt"
    with pytest.raises(WaitinfoError, match="give one of zh-Hans, zh-Hant"):
        find_code("zh", known)
    with pytest.raises(WaitinfoError, match="'de'"):
        find_code("de", known)


def test_other_models_have_one_direction(tmp_path: Path) -> None:
    loaded = replace(toy_model(), languages=Languages("de", "en"))
    assert loaded.between("de", None) is loaded and loaded.opening is None
    with pytest.raises(WaitinfoError, match="its target is en, not pt"):
        loaded.between(None, "pt")


def test_a_server_offers_every_direction(tmp_path: Path) -> None:
    testing = pytest.importorskip("starlette.testclient", reason="needs the extra serve")
    pytest.importorskip("fastapi", reason="needs the extra serve")
    from waitinfo.serving.app import build_app
    from waitinfo.serving.hub import Plan

    saved(tmp_path / "published", "m2m100")
    import_model(tmp_path / "published", tmp_path / "many", "float32")
    plan = Plan(models=(tmp_path / "many",), streams=2, device="cpu", system="wait-k")
    shutil.copytree(tmp_path / "many", tmp_path / "same")
    hub = replace(plan, models=(tmp_path / "many", tmp_path / "same")).build()
    assert len(hub.models.engines) == 2 and len(hub.models.main) == 12
    with testing.TestClient(build_app(hub)) as client:
        offered = {each["code"]: each["targets"] for each in client.get("/languages").json()}
        assert {code: sorted(targets) for code, targets in offered.items()} == {
            "de": ["en", "pt"], "en": ["de", "pt"], "pt": ["de", "en"],
        }  # fmt: skip
        asked = {"q": "bab dudo geg.", "source": "en", "target": "pt"}
        found = client.post("/translate", json=asked).json()["translatedText"]
    loaded = load_model(tmp_path / "many", "cpu", system="wait-k").between("en", "pt")
    assert found == Translator(loaded, streams=1).translate("bab dudo geg.")


def test_one_choice_of_languages_for_several_models(tmp_path: Path) -> None:
    """Each model offers what it has of the choice; what no model has is an error."""
    pytest.importorskip("fastapi", reason="needs the extra serve")
    from waitinfo.serving.hub import Plan

    for kind in NAMES:
        saved(tmp_path / kind, kind)
        import_model(tmp_path / kind, tmp_path / f"{kind}-many", "float32")
    folders = tuple(tmp_path / f"{kind}-many" for kind in NAMES)  # de en pt; de en zh

    def offered(sources: str, targets: str) -> list[str]:
        sides = (tuple(sources.split()), tuple(targets.split()))
        plan = Plan(models=folders, streams=1, device="cpu", system="wait-k", offered=sides)
        return [each.name.replace("-many", "") for each in plan.build().models]

    assert offered("de", "pt zh en-GB") == [
        "m2m100.de-pt", "m2m100.de-en", "nllb.de-zh", "nllb.de-en",
    ]  # fmt: skip
    assert offered("pt de", "en") == ["m2m100.pt-en", "m2m100.de-en", "nllb.de-en"]
    with pytest.raises(WaitinfoError, match="nllb-many: has no direction of from de to pt; .*"):
        offered("de", "pt")
    with pytest.raises(WaitinfoError, match="nllb-many: .* its languages are de, en, zh"):
        offered("pt", "")
    with pytest.raises(WaitinfoError, match="to fr: no model served has it"):
        offered("de", "en fr")
    with pytest.raises(WaitinfoError, match="m2m100-many: has no direction of from de to de"):
        offered("de", "de")
