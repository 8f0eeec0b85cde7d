"""Settings are typed and checked, and errors name them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.oracle import batch_of
from waitinfo.config import apply_settings, from_mapping
from waitinfo.errors import WaitinfoError
from waitinfo.model.config import ModelConfig
from waitinfo.systems import SYSTEMS, LossContext, build_system, check_dial
from waitinfo.systems.wait_k import MultipathOptions
from waitinfo.text.corpus import Corpus
from waitinfo.training.config import RunConfig, TrainingConfig


def test_settings_go_into_sections() -> None:
    values = apply_settings({"training": {"lr": 1.0}}, ["training.updates=7", "size=tiny"])
    assert values == {"training": {"lr": 1.0, "updates": "7"}, "size": "tiny"}


def test_removed_options_are_ignored_unless_they_were_used() -> None:
    """As in models and runs of earlier releases; a system's own option of that name is kept."""
    unused = {
        "confidence": "none", "confidence_after": 4000, "confidence_power": 1.0,
        "sentence_power": 0.0, "curriculum_updates": 0, "k_max": 5,
    }  # fmt: skip
    assert build_system("multipath", unused).options == MultipathOptions(k_max=5)
    sizes = {"source_vocabulary": 9, "target_vocabulary": 9}
    assert from_mapping(ModelConfig, {**sizes, "info_from": "embedding"}, "model") == ModelConfig(
        **sizes
    )

    @dataclass
    class Own:
        confidence: str

    assert from_mapping(Own, {"confidence": "none"}, "system").confidence == "none"
    for changes, name in (
        ({"confidence": "prefix"}, "system.confidence prefix"),
        ({"curriculum_updates": "100"}, "system.curriculum_updates 100"),
    ):
        with pytest.raises(WaitinfoError, match=f"{name}: .*; use waitinfo 0.3.0, the last"):
            build_system("multipath", unused | changes)
    with pytest.raises(WaitinfoError, match="model.info_from context: .* use waitinfo 0.3.0"):
        from_mapping(ModelConfig, {**sizes, "info_from": "context"}, "model")


def test_text_is_converted_to_the_type_of_the_field() -> None:
    given = {"updates": "7", "lr": "1e-3", "validate_k": "2", "average": "last"}
    config = from_mapping(TrainingConfig, given, "training")
    assert (config.updates, config.lr, config.validate_k, config.average) == (7, 1e-3, 2.0, "last")
    assert build_system("wait-info", {"floor": "false"}).options.floor is False


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lrr": 1}, r"unknown setting 'training.lrr'; choose one of: .*lr"),
        ({"updates": "many"}, "setting training.updates: 'many' is not a valid int"),
        ({"updates": "1.5"}, "not a valid int"),
        ({"updates": 0}, "must be above 0"),
        ({"schedule": "stepwise"}, "unknown training.schedule 'stepwise'; choose one of"),
        ({"cooldown": 2}, r"must be in \[0, 1\]"),
        ({"label_smoothing": 3}, r"training.label_smoothing 3.0: must be in \[0, 1\]"),
        ({"max_minutes": -5}, "training.max_minutes -5.0: must be 0 or more"),
        ({"lr": "nan"}, "training.lr nan: must be above 0"),
        ({"seed": -1}, "must be 0 or more"),
        ({"updates": math.inf}, "setting training.updates: 'inf' is not a valid int"),
        ({"updates": math.nan}, "setting training.updates: 'nan' is not a valid int"),
        ({"updates": 10**400}, "is not a valid int"),
        ({"seed": 2**63}, f"setting training.seed: '{2**63}' is not a valid int"),
        ({"lr": 10**400}, "is not a valid float"),
        ({"device": [1, 2]}, r"setting training.device: '\[1, 2\]' is not a valid str"),
        ({"device": {"a": 1}}, "setting training.device: '{'a': 1}' is not a valid str"),
        ({"device": True}, "setting training.device: 'True' is not a valid str"),
        ({"kernels": "perhaps"}, "setting training.kernels: 'perhaps' is not a valid bool"),
        ({"kernels": 1}, "setting training.kernels: '1' is not a valid bool"),
        ({"validate_k": [3]}, r"setting training.validate_k: '\[3\]' is not a valid float or None"),
        ({"epsilon": -1}, "training.epsilon -1.0: must be 0 or more"),
        ({"beta2": 1}, r"training.beta2 1.0: must be in \[0, 1\)"),
        ({"threads": 10**12}, "training.threads 1000000000000: must be at most 1024"),
    ],
)
def test_bad_settings_are_named(values: dict, message: str) -> None:
    with pytest.raises(WaitinfoError, match=message):
        from_mapping(TrainingConfig, values, "training")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "no corpus was given"),
        ({"data": "x"}, "no system was given"),
        (
            {"data": "x", "system": {"name": "wait-j"}},
            "unknown system 'wait-j'; choose one of: full",
        ),
        ({"data": "x", "system": {"name": "wait-k", "k": 0}}, "system.k 0: must be at least 1"),
        ({"data": "x", "system": {"name": "wait-k", "zeta": 1}}, "unknown setting 'system.zeta'"),
        ({"data": "x", "system": {"name": "full"}, "size": "huge"}, "unknown size 'huge'"),
        ({"data": "x", "system": {"name": "full"}, "model": 3}, "model '3': is a section"),
        ({"dtaa": "x"}, "unknown section or setting 'dtaa'"),
        ({"data": ["x"], "system": "full"}, r"setting data: '\['x'\]' is not a valid str"),
        ({"data": "x", "system": "full", "size": ["tiny"]}, "setting size: .* not a valid str"),
        ({"data": "x", "system": ["full"]}, r"system '\['full'\]': is a section"),
        ({"data": "x", "system": {"name": 3}}, "setting system.name: '3' is not a valid str"),
    ],
)
def test_bad_runs_are_named(values: dict, message: str) -> None:
    with pytest.raises(WaitinfoError, match=message):
        RunConfig.from_values(values)


@pytest.mark.parametrize(
    ("name", "model", "message"),
    [
        ("multipath", {"encoder": "bidirectional"}, "requires a causal encoder"),
        ("wait-info", {"info": "none"}, "wait-info requires info"),
        ("full", {"heads": 0}, "model.heads 0: must be at least 1"),
    ],
)
def test_incompatible_models_are_rejected(
    toy_corpus: Path, name: str, model: dict, message: str
) -> None:
    values = {"data": str(toy_corpus), "system": name, "size": "tiny", "model": model}
    with pytest.raises(WaitinfoError, match=message):
        RunConfig.from_values(values).model_config(Corpus(toy_corpus))


@pytest.mark.parametrize(
    ("k", "limits"),
    [
        (float("nan"), "of at least 1"),
        (0, "of at least 1"),
        (1.5, "of at least 1"),
        (float("inf"), "from 1 to 100000"),
        (1e30, "from 1 to 100000"),
    ],
)
def test_bad_dials(k: float, limits: str) -> None:
    with pytest.raises(WaitinfoError, match=f"must be a whole number {limits}"):
        check_dial(build_system("wait-k"), k)


def test_every_dial_has_an_upper_limit() -> None:
    for system in map(build_system, SYSTEMS):
        if system.dial:
            with pytest.raises(WaitinfoError, match=f"{system.dial.name} must be a"):
                check_dial(system, 1e30)


def test_settings_without_equals() -> None:
    with pytest.raises(WaitinfoError, match="section.key=value"):
        apply_settings({}, ["training.lr"])


def test_every_system_has_a_summary_and_a_readable_dial() -> None:
    for name, system in SYSTEMS.items():
        assert system.name == name and system.summary
        assert system.dial is None or system.dial.help


@pytest.mark.parametrize("name", ["wait-info", "multipath", "moe-wait-k"])
@pytest.mark.parametrize(
    ("options", "drawn"),
    [({"k_min": 2, "k_max": 4}, {2, 3, 4}), ({}, {1, 2, 3, 4, 5}), ({"k_min": 7}, {7})],
)
def test_dials_are_drawn_from_their_range(name: str, options: dict, drawn: set[int]) -> None:
    system, batch = build_system(name, options), batch_of([([5] * 4, [6]), ([5], [6, 7])])
    found = {system.draw_dial(batch, LossContext(0, random.Random(seed))) for seed in range(80)}
    assert found == drawn
    with pytest.raises(WaitinfoError, match="need 1 <= k_min <= k_max"):
        build_system(name, {"k_min": 5, "k_max": 2})
