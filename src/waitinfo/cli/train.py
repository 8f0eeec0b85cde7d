"""`waitinfo train`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from waitinfo.cli.flags import Option
from waitinfo.cli.options import PluginOptions, listed, suggest
from waitinfo.model.config import SIZES
from waitinfo.systems import SYSTEMS

if TYPE_CHECKING:
    from waitinfo.training.display import Display


@dataclass(kw_only=True)
class TrainArguments(PluginOptions):
    """What `train` is given."""

    out: Annotated[Path, Option(help="Folder of the run.")]
    system: Annotated[
        str | None,
        Option(help=f"The system to train: {listed(SYSTEMS)}.", autocompletion=suggest(SYSTEMS)),
    ] = None
    data: Annotated[Path | None, Option(help="A corpus made by prepare.")] = None
    size: Annotated[
        str | None,
        Option(
            help=f"Size of the model: {listed(SIZES)} [default: what learns most in the time].",
            autocompletion=suggest(SIZES),
        ),
    ] = None
    config: Annotated[Path | None, Option(help="A recipe in TOML.")] = None
    settings: Annotated[list[str], Option("--set", help="section.key=value, over the recipe.")] = (
        field(default_factory=list)
    )
    start_from: Annotated[
        Path | None,
        Option(
            help="A model whose weights the run begins with; a veto trains its head alone.",
        ),
    ] = None
    like: Annotated[
        Path | None,
        Option(help="Repeat this run, with what else is given: another --system or seed."),
    ] = None
    max_minutes: Annotated[
        float | None, Option(help="Finish within this time, with the learning rate decayed.")
    ] = None
    pause_minutes: Annotated[
        float | None, Option(help="Stop after this time; continue later with --resume.")
    ] = None
    compile: Annotated[
        bool | None,
        Option("--compile", help="Compile the model first; worth it for long runs."),
    ] = None
    device: Annotated[str | None, Option(help="cpu, cuda, … [default: a GPU if there is one].")] = (
        None
    )
    threads: Annotated[
        int | None, Option(help="CPU threads [default: as many as the model can use].")
    ] = None
    resume: Annotated[bool, Option("--resume", help="Continue the run in --out.")] = False


def train(options: TrainArguments) -> None:
    """Train a system on a corpus.

    The run folder gets the best and the last model (`best`, `last`), checkpoints to resume from,
    `metrics.jsonl` and `run.json`. On several GPUs, start it with torchrun:
    torchrun --nproc-per-node 8 -m waitinfo train …

    Examples:

        waitinfo train --system wait-info --data corpus --out run --size small

        waitinfo train --system wait-k --set system.k=5 --data corpus --out run --max-minutes 30

        waitinfo train --config recipes/de-en.toml --data corpus --out run

        waitinfo train --like run --system multipath --out multipath-run

        waitinfo train --system veto --start-from run --data corpus --out veto

        waitinfo train --out run --resume
    """
    started = time.monotonic()  # before torch is loaded
    from waitinfo import training
    from waitinfo.config import apply_settings, read_toml
    from waitinfo.training.run_folder import merge, settings_like

    options.load_plugins()
    flags: dict[str, Any] = {
        "data": None if options.data is None else str(options.data.absolute()),
        "size": options.size,
        "system": {"name": options.system} if options.system else None,
        "training": _given(
            {
                "start_from": None if options.start_from is None else str(options.start_from),
                "max_minutes": options.max_minutes,
                "pause_minutes": options.pause_minutes,
                "compile": options.compile or None,
                "device": options.device,
                "threads": options.threads,
            }
        )
        or None,
    }
    values = settings_like(options.like, options.system) if options.like else {}
    values = merge(values, read_toml(options.config) if options.config else {})
    values = merge(values, _given(flags))
    values = apply_settings(values, options.settings)
    training.train(values, options.out, options.resume, _display(), options.config, started)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _display() -> Display:
    from waitinfo.cli.console import LiveDisplay, console
    from waitinfo.training.display import LineDisplay

    return LiveDisplay() if console.is_terminal and sys.stderr.isatty() else LineDisplay()
