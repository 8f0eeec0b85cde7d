"""Wait-k's path, by hand."""

import pytest
import torch

from waitinfo.errors import WaitinfoError
from waitinfo.systems import build_system
from waitinfo.systems.wait_k import lag_path


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        (0, [2, 3, 4, 5, 6, 7, 8]),
        (3, [2, 3, 4, 6, 7, 8, 10]),  # one more READ after three and after six written tokens
        (-3, [2, 3, 4, 4, 5, 6, 6]),  # one fewer
        (-2, [2, 3, 3, 4, 4, 5, 5]),
    ],
)
def test_path_with_catch_up(catch_up: int, expected: list[int]) -> None:
    assert lag_path(torch.arange(7), 2, catch_up).tolist() == expected


def test_a_path_that_stops_reading_is_rejected() -> None:
    with pytest.raises(WaitinfoError, match="catch_up -1"):
        build_system("multipath", {"catch_up": -1})
