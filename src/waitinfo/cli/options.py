"""Options that several verbs share, and what they ask for: a model, threads, numbers.

A verb writes its options once, as the fields of a dataclass. Those that it shares with others it
inherits: an option added to `DecodingOptions` is an option of every verb that decodes with a model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from waitinfo.cli.flags import Option
from waitinfo.errors import WaitinfoError
from waitinfo.systems import SYSTEMS
from waitinfo.threads import set_thread_count, usable_cores

if TYPE_CHECKING:
    from waitinfo.progress import Progress
    from waitinfo.systems import System
    from waitinfo.trained.saving import LoadedModel

Paths = list[Path]


def suggest(names: Iterable[str]) -> Callable[[str], list[str]]:
    """What the tab key offers for a value."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def suggest_models(incomplete: str) -> list[str]:
    from waitinfo.trained.folder import bundled_models

    return suggest(bundled_models())(incomplete)


Beam = Annotated[int, Option(help="Beam width, for full-sentence models.")]
Ending = Annotated[
    str, Option(help="guard: never end before the source does; allow: end at any time.")
]


@dataclass(kw_only=True)
class ComputeOptions:
    """What a model computes on."""

    device: Annotated[str, Option(help="cpu, cuda, …")] = "cpu"
    dtype: Annotated[
        str,
        Option(
            help="float32, bfloat16, float16, or int8 on a CPU [default: int8 for packed models "
            "on a CPU, else float32].",
        ),
    ] = "auto"
    threads: Annotated[int, Option(help="CPU threads [default: one for each core].")] = 0


@dataclass(kw_only=True)
class PluginOptions:
    """Systems that are not part of this package."""

    plugins: Annotated[
        Paths, Option("--plugin", help="A Python file that defines systems; may be repeated.")
    ] = field(default_factory=list)

    def load_plugins(self) -> None:
        """Make their systems known by name."""
        from waitinfo.systems import load_plugins

        load_plugins(self.plugins)


@dataclass(kw_only=True)
class SystemChoice(PluginOptions):
    """The system that decides when to write."""

    system: Annotated[
        str | None,
        Option(
            help="Decode with this system [default: the one it was trained with].",
            autocompletion=suggest(SYSTEMS),
        ),
    ] = None
    settings: Annotated[
        list[str],
        Option("--set", help="An option of the system, for example rho_last=0.2."),
    ] = field(default_factory=list)


@dataclass(kw_only=True)
class DecodingOptions(ComputeOptions, SystemChoice):
    """How models are decoded."""

    source_language: Annotated[
        str | None, Option("--from", help="Source language, for a model of many.")
    ] = None
    target_language: Annotated[
        str | None, Option("--to", help="Target language, for a model of many.")
    ] = None

    def load(self, path: Path | None) -> LoadedModel:
        """A model, decoded and computed as these options say; None is the bundled one."""
        from waitinfo.config import system_options
        from waitinfo.importing.sources import find_source
        from waitinfo.trained.saving import load_model

        self.load_plugins()
        options = system_options(self.settings)
        folder = find_source(path, self.dtype, _bar)
        loaded = load_model(folder, self.device, self.dtype, self.system, options)
        return loaded.between(self.source_language, self.target_language)


@dataclass(kw_only=True)
class ModelOptions(DecodingOptions):
    """One model."""

    model: Annotated[
        Path | None,
        Option(
            help="A model or run folder, a bundled one's name, a published model, or a name on the "
            "Hugging Face hub [default: de-en].",
            autocompletion=suggest_models,
        ),
    ] = None


@dataclass(kw_only=True)
class LatencyOptions:
    """How far a translation is behind."""

    k: Annotated[
        float | None,
        Option(help="Latency: a larger value waits longer [default: the system's own]."),
    ] = None
    lag: Annotated[
        float | None,
        Option(help="Hold this lag in words instead of --k (calibrated models)."),
    ] = None

    def check_dial(self) -> None:
        if self.k is not None and self.lag is not None:
            raise WaitinfoError("--lag: chooses the dial; leave out --k")


@dataclass(kw_only=True)
class BatchOptions(LatencyOptions, DecodingOptions):
    """Text of any length, translated in large batches."""

    temperature: Annotated[
        float, Option(help="Sample translations at this temperature, instead of a beam.")
    ] = 0.0
    top_k: Annotated[int, Option(help="Sample from the best tokens only.")] = 0
    seed: Annotated[int, Option(help="Random seed of samples.")] = 1
    resume: Annotated[bool, Option("--resume", help="Continue an interrupted call.")] = False
    force: Annotated[bool, Option("--force", help="Replace --out, or start it again.")] = False
    rows: Annotated[int | None, Option(help="Sentences of a batch [default: by the device].")] = (
        None
    )
    dtype: Annotated[
        str,
        Option(
            help="float32, bfloat16, float16, or int8 on a CPU [default: int8 for packed models "
            "on a CPU, bfloat16 for files on a GPU, else float32].",
        ),
    ] = "auto"

    def dial(self, loaded: LoadedModel) -> float | None:
        """The dial that was asked for, or that has the lag that was asked for."""
        from waitinfo.streaming.lag import Dials

        return self.k if self.lag is None else Dials(loaded.folder, loaded.system).at_lag(self.lag)

    def load_for_batches(self, path: Path | None, device: str) -> LoadedModel:
        """A model on this device, with numbers half as wide on a GPU."""
        halves = self.dtype == "auto" and self.device.startswith("cuda")
        dtype = "bfloat16" if halves else self.dtype
        return replace(self, device=device, dtype=dtype).load(path)


def _bar() -> AbstractContextManager[Progress]:
    from waitinfo.cli.console import progress_bar

    return progress_bar()


def use_threads(count: int) -> None:
    """Compute with this many CPU threads; 0 leaves the choice alone.

    At most one for each core that this process may use: more would only take turns.
    """
    if count < 0:
        raise WaitinfoError(f"--threads {count}: must be 0 or more")
    if count:
        set_thread_count(min(count, usable_cores()))


def check_beam(system: System, beam: int) -> None:
    if beam < 1:
        raise WaitinfoError(f"--beam {beam}: must be at least 1")
    if beam > 1 and system.name != "full":
        raise WaitinfoError(f"--beam {beam}: only full-sentence models search with a beam")


def numbers(option: str, text: str) -> list[float]:
    """`1,3,5` as numbers, each once."""
    try:
        return list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise WaitinfoError(
            f"{option} {text}: give numbers separated by commas, as 1,3,5"
        ) from None


def listed(names: Iterable[str]) -> str:
    """`a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}"


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
