"""Wait-info's policy at another rate, and with the mean of info instead of each token's own."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import batch_of, literal_path, uncached_decodes
from waitinfo.errors import WaitinfoError
from waitinfo.streaming.decoder import Decoder
from waitinfo.systems import build_system
from waitinfo.systems.base import PolicyState, System
from waitinfo.text.special import EOS

exact = st.integers(1, 63).map(lambda n: n / 32)  # sums of these are not rounded
powers = st.sampled_from([0.125, 0.25, 0.5, 1.0, 2.0])  # nor is a division by these
infos = st.lists(exact, min_size=1, max_size=9)


def path_of(system: System, source: list[float], target: list[float], k: float) -> list[int]:
    """The training path: `source` includes end-of-sentence, `target` no begin-of-sequence."""
    batch = batch_of([(list(range(4, 3 + len(source))), list(range(4, 4 + len(target))))])
    assert batch.source.shape[1] == len(source) and batch.target_in.shape[1] == len(target) + 1
    given = (torch.tensor([info]) for info in (source, [1.0, *target]))
    return system.path(batch, *given, k)[0].tolist()


@settings(max_examples=200, deadline=None)
@given(infos, st.lists(exact, max_size=9), powers, powers, st.integers(0, 16), st.booleans())
def test_paths_with_a_mean_equal_the_algorithm(
    source: list[float], target: list[float], received: float, used: float, half: int, floor: bool
) -> None:
    """As if all tokens of a side had the mean; a rate is as if the target had more info."""
    means = [received] * len(source), [used] * len(target)
    for options, given_infos in (
        ({"source_mean": received}, (means[0], target)),
        ({"target_mean": used}, (source, means[1])),
        ({"source_mean": received, "target_mean": used}, means),
        ({"rate": 1.25}, (source, [1.25 * info for info in target])),
        ({"rate": 0.5, "source_mean": received}, (means[0], [info / 2 for info in target])),
        ({"rate": 4.0, "target_mean": used}, (source, [4 * info for info in means[1]])),
    ):
        system = build_system("wait-info", {**options, "floor": floor})
        expected = literal_path(*given_infos, half / 2, len(source), floor)
        assert path_of(system, source, target, half / 2) == expected, options


@pytest.mark.parametrize("rate", [0.7, 1.1, 1.2, 1.3])
def test_means_of_one_are_infos_of_one(rate: float) -> None:
    """Whole dials are not rounded away from what all infos 1 need."""
    means = build_system(
        "wait-info", {"rate": rate, "source_mean": 1, "target_mean": 1, "floor": False}
    )
    ones = build_system("wait-info", {"rate": rate, "floor": False})
    for k in range(1, 16):
        assert path_of(means, [1.0] * 30, [1.0] * 12, k) == path_of(ones, [1.0] * 30, [1.0] * 12, k)
        assert path_of(means, [1.0] * 30, [], k) == [k]


@settings(max_examples=200, deadline=None)
@given(
    infos,
    st.lists(exact, max_size=9),
    st.fixed_dictionaries(
        {
            "source_mean": st.sampled_from([0.0, 0.1, 0.3, 0.7, 0.96, 1.1, 1.9]),
            "target_mean": st.sampled_from([0.0, 0.1, 0.3, 0.7, 0.96, 1.1, 1.9]),
            "rate": st.sampled_from([0.7, 1.0, 1.1, 1.2]),
        }
    ),
    st.floats(0, 8),
)
def test_decisions_follow_the_path_to_the_last_digit(
    source: list[float], target: list[float], options: dict[str, float], k: float
) -> None:
    """With tensors and with NumPy's numbers; 0.1 and the like are rounded in every sum."""
    system = build_system("wait-info", options)
    expected = path_of(system, source, target, k)
    for make in (lambda value, kind: torch.tensor([value], dtype=kind), numpy_number):
        read, found = 1, []
        for written in range(len(target) + 1):
            while not system.ready(state_at(source, target, read, written, k, make)):
                read += 1
            found.append(read)
        assert found == expected


def numpy_number(value: float, kind: torch.dtype) -> np.generic:
    return {torch.float64: np.float64, torch.int64: np.int64, torch.bool: np.bool_}[kind](value)


def state_at(source, target, read, written, k, make) -> PolicyState:
    received, used = (
        float(np.cumsum([0.0, *info], dtype=np.float64)[count])
        for info, count in ((source, read), (target, written))
    )
    return PolicyState(
        k=make(k, torch.float64),
        read=make(read, torch.int64),
        written=make(written, torch.int64),
        complete=make(read == len(source), torch.bool),
        source_info=make(received, torch.float64),
        target_info=make(used, torch.float64),
    )


@pytest.mark.parametrize(
    "options",
    [{"source_mean": 0.75}, {"target_mean": 1.3, "source_mean": 0.9}, {"rate": 1.3}, {"rate": 0.6}],
)
def test_streams_decode_with_means_and_rates(tiny_model, options: dict[str, float]) -> None:
    system = build_system("wait-info", options)
    model = tiny_model(seed=3, **system.model_defaults)
    draw = random.Random(1)
    sources = [[draw.randint(4, 39) for _ in range(draw.randint(1, 12))] for _ in range(8)]
    found = Decoder(model, system, "guard", slots=3).decode(sources, 2)
    expected = uncached_decodes(model, system, sources, [2] * len(sources))
    for (tokens, path), hypothesis in zip(expected, found, strict=True):
        assert hypothesis.tokens == [token for token in tokens if token != EOS]
        assert hypothesis.path == path


@pytest.mark.parametrize("name", ["source_mean", "target_mean"])
@pytest.mark.parametrize("value", ["-0.1", "2.1", "nan"])
def test_a_mean_is_an_info(name: str, value: str) -> None:
    with pytest.raises(WaitinfoError, match=rf"system.{name} \S+: must be from 0 to 2"):
        build_system("wait-info", {name: value})


@pytest.mark.parametrize("value", ["0", "-1", "11", "nan"])
def test_a_rate_is_a_positive_number(value: str) -> None:
    with pytest.raises(WaitinfoError, match=r"system.rate \S+: must be above 0, and 10 at most"):
        build_system("wait-info", {"rate": value})
