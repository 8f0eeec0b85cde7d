"""The run folder: everything needed to continue a run or to publish what came of it."""

from __future__ import annotations

import fcntl
import json
import platform
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

import waitinfo
from waitinfo.errors import WaitinfoError
from waitinfo.systems import check_dial
from waitinfo.text.corpus import Corpus
from waitinfo.training.building import starting_model
from waitinfo.training.config import RunConfig, check_same_run, given_names, resumed_choices
from waitinfo.training.defaults import (
    Circumstances,
    choose_settings,
    choose_size,
    may_choose_size,
    observe,
)
from waitinfo.training.distributed import ProcessGroup
from waitinfo.training.schedule import TIMED_COOLDOWN

RUN = "run.json"
LOCK = ".lock"


@contextmanager
def begin_run(
    values: dict[str, Any], out: Path, resume: bool, recipe: Path | None, processes: ProcessGroup
) -> Iterator[tuple[RunConfig, Corpus]]:
    """Check the settings against the folder, lock it, and record them in it.

    Nothing is written before the settings are known to be good and the lock is held.
    """
    values, recorded = full_settings(values, out, resume)
    run = RunConfig.from_values(values)
    check_dial(run.system, run.training.validate_k)
    corpus = Corpus(run.data)
    if recorded is None:
        starting_model(run, corpus)  # fails if it cannot start from it
    chosen = resumed_choices(recorded) if recorded else fit_settings(values, run, corpus, processes)
    run = RunConfig.from_values(values, chosen)
    record = {
        "given": _without_pause(values),
        "chosen": chosen,
        "resolved": run.resolved(corpus),
        "corpus": corpus.manifest,
        "processes": processes.size,
        "environment": environment(),
    }
    if recorded is not None:
        check_same_run(recorded, record)
    processes.wait()  # every process has looked before the first one writes
    with sole_user(out, processes):
        if processes.leads:
            if full_settings({}, out, resume)[1] != recorded:
                raise WaitinfoError(f"{out}: the run changed just now; try again")
            _write(out, record, corpus, recipe)
        processes.wait()
        yield run, corpus


def settings_like(run: Path, system: str | None = None) -> dict[str, Any]:
    """The settings of a run, to train another one on the same text, in as many updates.

    A timed run becomes one of its number of updates. Another system has its own options.
    """
    try:
        record = json.loads((run / RUN).read_text("utf-8"))
        resolved = record["resolved"]
        training = {**resolved["training"], "pause_minutes": 0}
        if training["max_minutes"]:
            lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
            training["updates"] = max(json.loads(line)["update"] for line in lines)
            training["cooldown"] = training["cooldown"] or TIMED_COOLDOWN
            training["max_minutes"] = 0
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise WaitinfoError(f"--like {run}: is no folder of a run (no {missing})") from None
    except (OSError, ValueError, KeyError) as error:
        raise WaitinfoError(f"--like {run}: is no folder of a run ({error})") from None
    same = system in (None, resolved["system"]["name"])
    return {
        "data": resolved["data"],
        "size": resolved["size"],
        "system": resolved["system"] if same else {"name": system},
        "model": record["given"].get("model", {}),
        "training": training,
    }


def fit_settings(
    values: dict[str, Any], run: RunConfig, corpus: Corpus, processes: ProcessGroup
) -> dict[str, Any]:
    """Settings that fit the corpus, the machine and the time, for those that were not given."""
    names = given_names(values)
    open_names = {"batch_tokens", "warmup", "validate_every", "log_every"} - names["training"]
    open_stages = set(run.system.milestones) - names["system"]
    open_size = "size" not in values and may_choose_size(run)
    timed = bool(run.training.max_minutes and (open_names or open_stages or open_size))
    free = "threads" not in names["training"]

    def chosen(run: RunConfig) -> tuple[dict[str, Any], Circumstances]:
        seen = observe(run, corpus, processes, timed, free)
        return choose_settings(run, names, seen), seen

    return choose_size(run, chosen) if open_size else chosen(run)[0]


def full_settings(
    values: dict[str, Any], out: Path, resume: bool
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The settings of a run, those it was started with included, and its record so far.

    Raises if the folder has no run to resume, or has one that would be lost.
    """
    if out.exists() and not out.is_dir():
        raise WaitinfoError(f"{out}: is a file; --out must be a folder")
    recorded = recorded_run(out)
    if resume and recorded is None:
        raise WaitinfoError(f"{out}: no run to resume")
    if not resume and out.exists() and any(path.name != LOCK for path in out.iterdir()):
        if recorded is None:
            raise WaitinfoError(f"{out}: already in use, and not by a run; give a new folder")
        raise WaitinfoError(f"{out}: already in use; add --resume to continue the run in it")
    return merge(recorded["given"] if recorded else {}, values), recorded


def _without_pause(values: dict[str, Any]) -> dict[str, Any]:
    """A pause is for one call; a resumed run must not pause again by itself."""
    training = {k: v for k, v in (values.get("training") or {}).items() if k != "pause_minutes"}
    return {**values, "training": training}


def recorded_run(out: Path) -> dict[str, Any] | None:
    """What a run folder says of itself; None in a folder without a run."""
    path = out / RUN
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise WaitinfoError(f"{path}: damaged ({error})") from None


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Values with others on top, section by section."""
    merged = dict(old)
    for key, value in new.items():
        known = merged.get(key)
        both = isinstance(value, dict) and isinstance(known, dict)
        merged[key] = merge(known, value) if both and isinstance(known, dict) else value
    return merged


def _write(out: Path, record: dict[str, Any], corpus: Corpus, recipe: Path | None) -> None:
    try:
        text = json.dumps(record, indent=2, ensure_ascii=False, default=str) + "\n"
        fresh = out / f".{RUN}.partial"
        fresh.write_text(text, "utf-8")
        fresh.replace(out / RUN)
        if recipe is not None and recipe.resolve() != (out / "recipe.toml").resolve():
            shutil.copyfile(recipe, out / "recipe.toml")
        corpus.vocabulary.save(out)
    except OSError as error:
        raise WaitinfoError(f"{out}: cannot be written ({error.strerror})") from None


@contextmanager
def sole_user(out: Path, processes: ProcessGroup) -> Iterator[None]:
    """Hold the folder's lock, or refuse in every process if another run holds it."""
    with ExitStack() as stack:
        locked = processes.leads and _lock(out, stack)
        if not processes.agree(float(locked)):
            raise WaitinfoError(f"{out}: another process is training in it")
        yield


def _lock(out: Path, stack: ExitStack) -> bool:
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = stack.enter_context((out / LOCK).open("w"))
    except OSError as error:
        raise WaitinfoError(f"{out}: cannot be written ({error.strerror})") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def stop_politely(stop: Callable[..., None]) -> Iterator[None]:
    """Have Ctrl-C and SIGTERM call `stop`; only a main thread can be told."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, stop) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def environment() -> dict[str, Any]:
    """What a run was made with."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "waitinfo": waitinfo.__version__,
        "git": git_revision(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": gpu,
        "platform": platform.platform(),
        "command": sys.argv[1:],
    }


def git_revision() -> str | None:
    """The revision of the code that runs, with a mark if it has uncommitted changes."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
