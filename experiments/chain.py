"""Chains of stages, from text to models.

Each stage makes one file or folder in WORK with a shell command, after the stages it needs. A stage
that is done is not done again, so the same command continues an interrupted chain.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.experiment import HERE, ROOT, find_toml, with_modules

CHAINS = HERE / "chains"
KEYS = {"name", "needs", "makes", "command", "resume"}


@dataclass(frozen=True)
class Stage:
    name: str
    makes: str  # a file or folder in WORK
    command: str
    resume: str | None = None  # continues an interrupted one; without it, the stage starts again
    needs: tuple[str, ...] = ()  # stages


def read_chain(name: str) -> tuple[dict[str, str], list[Stage]]:
    """The values and stages of a chain; an error names what is wrong."""
    path = find_toml(name, CHAINS)
    chain = tomllib.loads(path.read_text("utf-8"))
    values, stages = read_chain(chain["extends"]) if "extends" in chain else ({}, [])
    for entry in chain["stage"]:
        if unknown := entry.keys() - KEYS:
            sys.exit(f"{path}: unknown key '{min(unknown)}'; known: {', '.join(sorted(KEYS))}")
        if entry.get("resume") is True:
            entry["resume"] = entry["command"]
        stage = Stage(**{**entry, "needs": tuple(entry.get("needs", ()))})
        earlier = [other.name for other in stages]
        for need in stage.needs:
            if need not in earlier:
                sys.exit(
                    f"{path}: stage '{stage.name}' needs '{need}', which is not an earlier stage"
                )
        stages.append(stage)
    return values | chain.get("values", {}), stages


@dataclass
class Chain:
    """Stages with the places and values that their commands name."""

    stages: list[Stage]
    values: dict[str, str]
    data: Path
    work: Path
    device: str = "cuda"
    dry: bool = False
    results: Path = ROOT / "results"
    done: set[str] = field(default_factory=set)  # in this call

    def names(self, stage: Stage) -> dict[str, Any]:
        """Values, which may name places, and places: what each stage makes goes by its name."""
        made = {need.name.replace("-", "_"): self.work / need.makes for need in self.stages}
        python = sys.executable
        places = {
            **made, "data": self.data, "work": self.work, "recipes": ROOT / "recipes",
            "results": self.results, "device": self.device, "python": python,
            "waitinfo": f"{python} -m waitinfo", "corpora": f"{python} -m experiments.corpora",
            "out": self.work / stage.makes,
        }  # fmt: skip
        return {key: value.format(**places) for key, value in self.values.items()} | places

    def fill(self, stage: Stage, command: str) -> str:
        """A command with the values and places that it names."""
        try:
            return command.format(**self.names(stage))
        except KeyError as error:
            sys.exit(f"stage '{stage.name}': {{{error.args[0]}}} is not known")

    def digest(self, stage: Stage) -> str:
        """What the stage and all that it needs do; places do not matter."""
        chosen = {key: value for key, value in self.values.items() if f"{{{key}}}" in stage.command}
        needs = [self.digest(self.find(need)) for need in stage.needs]
        text = json.dumps([stage.command, stage.makes, chosen, needs])
        return hashlib.sha256(text.encode()).hexdigest()

    def find(self, name: str) -> Stage:
        for stage in self.stages:
            if stage.name == name:
                return stage
        sys.exit(f"unknown stage '{name}'; choose one of: {', '.join(s.name for s in self.stages)}")

    def record(self, stage: Stage) -> Path:
        return self.work / "stages" / f"{stage.name}.json"

    def is_done(self, stage: Stage) -> bool:
        path = self.record(stage)
        if not path.exists() or not (self.work / stage.makes).exists():
            return False
        if json.loads(path.read_text("utf-8"))["digest"] != self.digest(stage):
            sys.exit(
                f"stage '{stage.name}' was done with other commands or values; "
                f"add --again {stage.name} to do it again"
            )
        return True

    def forget(self, name: str) -> None:
        """Have a stage, and all that need it, done again."""
        stage = self.find(name)
        self.record(stage).unlink(missing_ok=True)
        remove(self.work / stage.makes)
        for other in self.stages:
            if name in other.needs:
                self.forget(other.name)

    def run_all(self, wanted: list[str] | None, again: list[str]) -> None:
        """Do stages, or all of them; some of them again."""
        for name in again:
            self.forget(name)
        for name in wanted or [stage.name for stage in self.stages]:
            self.run(name)

    def run(self, name: str) -> None:
        """Do a stage unless it is done, after those that it needs."""
        stage = self.find(name)
        if name in self.done:
            return
        for need in stage.needs:
            self.run(need)
        self.done.add(name)
        if not self.is_done(stage):
            self.do(stage)

    def do(self, stage: Stage) -> None:
        out = self.work / stage.makes
        resumed = stage.resume is not None and out.exists()
        command = self.fill(stage, stage.resume if resumed and stage.resume else stage.command)
        if self.dry:
            print(f"# {stage.name}\n{command}")
            return
        if not resumed:
            remove(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        log = self.work / "stages" / f"{stage.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        print(f"{'continuing' if resumed else 'starting'}: {stage.name}", flush=True)
        began = time.monotonic()
        with log.open("a") as stream:
            shell = ["bash", "-eo", "pipefail", "-c", command]
            failed = subprocess.run(
                shell, stdout=stream, stderr=stream, check=False, env=with_modules()
            ).returncode
        if failed or not out.exists():
            reason = f"exit status {failed}" if failed else f"did not make {out}"
            sys.exit(f"stage '{stage.name}' failed ({reason}); see {log}")
        seconds = round(time.monotonic() - began, 1)
        record = {"digest": self.digest(stage), "command": command, "seconds": seconds}
        self.record(stage).write_text(json.dumps(record, indent=2) + "\n", "utf-8")


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def settings(given: list[str], values: dict[str, str]) -> dict[str, str]:
    """Values with those given as key=value on top."""
    changed = dict(values)
    for entry in given:
        key, _, value = entry.partition("=")
        if key not in values:
            sys.exit(f"--set {entry}: unknown value '{key}'; known: {', '.join(values)}")
        changed[key] = value
    return changed


def run_chain(
    name: str, data: Path, work: Path, results: Path, device: str, given: list[str],
    wanted: list[str] | None, again: list[str], dry: bool,
) -> None:  # fmt: skip
    values, stages = read_chain(name)
    chain = Chain(stages, settings(given, values), data, work, device, dry, results)
    chain.run_all(wanted, again)
