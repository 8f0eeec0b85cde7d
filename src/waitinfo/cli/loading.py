"""Loading a model for a command, and reading its latency dial."""

from __future__ import annotations

from pathlib import Path

from waitinfo.errors import WaitinfoError
from waitinfo.folder import LoadedModel, load_model
from waitinfo.systems import System


def load(path: Path | None, device: str) -> LoadedModel:
    if path is None:
        raise WaitinfoError("no model was given; use --model with a model or run folder")
    return load_model(path, device)


def check_dial(system: System, k: float | None) -> float:
    """The dial value to use for what `--k` gave."""
    dial = system.dial
    if dial is None:
        if k is not None:
            raise WaitinfoError(f"--k {k:g}: {system.name} translates whole sentences, without k")
        return 1.0
    trained = float(getattr(system.options, "k", dial.default))
    return dial.check(trained if k is None else k)


def check_beam(system: System, beam: int) -> None:
    if beam != 1 and system.name != "full":
        raise WaitinfoError(f"--beam {beam}: only full-sentence models search with a beam")
