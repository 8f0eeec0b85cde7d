"""Examples in the documentation are run, and must print what they say."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.parametrize("page", ["metrics.md"])
def test_examples(page: str) -> None:
    found = doctest.testfile(
        str(DOCS / page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert found.attempted and not found.failed
