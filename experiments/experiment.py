"""An experiment: its corpora, its training runs and their points.

A run whose points are all in the results is done, and an unfinished one continues.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waitinfo.cli.app import main as waitinfo
from waitinfo.evaluation.output import Output
from waitinfo.evaluation.points import Point, PointKey, read_file, set_name
from waitinfo.text.corpus import MANIFEST
from waitinfo.trained.folder import find_model

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = ROOT / "results"
SETTINGS = HERE / "settings"
NOT_OPTIONS = ("sets", "seeds")  # of a score; all else is passed to `waitinfo evaluate`
Run = dict[str, Any]


def find_toml(name: str, folder: Path) -> Path:
    """A TOML file by its path, or by its name in a folder."""
    return Path(name) if name.endswith(".toml") else folder / f"{name}.toml"


def read_experiment(name: str) -> dict[str, Any]:
    """An experiment's TOML, over that of the experiment it extends."""
    path = find_toml(name, SETTINGS)
    own = {"models": path.stem, "name": path.stem, **tomllib.loads(path.read_text("utf-8"))}
    if "extends" not in own:
        return own
    base = read_experiment(own["extends"])
    known_runs = {run["run"]: run for run in base["runs"]}
    own["runs"] = [{**known_runs.get(run["run"], {}), **run} for run in own["runs"]]
    return {**base, **own}


def with_modules() -> dict[str, str]:
    """The environment of commands: `python -m experiments.…` works in every folder."""
    paths = (str(ROOT), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def without_folders(value: Any) -> Any:
    """The same with the names of files and folders alone: where they lay says nothing elsewhere."""
    if isinstance(value, dict):
        return {name: without_folders(part) for name, part in value.items()}
    if isinstance(value, list):
        return [without_folders(part) for part in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def summarise_run(run: str, seed: int, folder: Path) -> dict[str, Any]:
    """What a run folder says of the training: its last update, validations and settings."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    updates = [record for record in records if "loss" in record]
    found: dict[str, Any] = {
        "run": run,
        "seed": seed,
        "last": {name: value for name, value in updates[-1].items() if name != "minutes_left"},
        "validations": [record for record in records if "validation_loss" in record],
    }
    if (folder / "run.json").exists():
        about = json.loads((folder / "run.json").read_text("utf-8"))
        corpus = about["corpus"]
        for split in corpus["splits"].values():
            del split["shards"]
        environment = {**about["environment"], "processes": about["processes"]}
        parts = {"settings": about["resolved"], "corpus": corpus, "environment": environment}
        found |= without_folders(parts)
    return found


def free_memory() -> None:
    """Give back memory that the last command used, for other processes on the same GPU."""
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def curve_of(options: dict[str, Any]) -> tuple[str, list[float | None]]:
    """The curve that an evaluation's points are on, and its dials; None for the model's own."""
    if "lag" in options:
        return f"{options['name']}-lag", [float(lag) for lag in options["lag"].split(",")]
    return options["name"], [float(k) for k in options["k"].split(",")] if "k" in options else [
        None
    ]


@dataclass
class Experiment:
    """Makes the runs of an experiment in this process, or prints the commands."""

    settings: dict[str, Any]
    data: Path
    work: Path
    results: Path
    device: str = "cuda"
    seed: int = 1
    sets: list[str] | None = None
    dry: bool = False
    changes: list[str] = field(default_factory=list)  # of every training run, after its own

    @classmethod
    def read(cls, name: str, data: Path, work: Path, results: Path, **options: Any) -> Experiment:
        """By its name; it says in which folders of DATA, WORK and the results its files are."""
        settings = read_experiment(name)
        place, group = settings.get("data", ""), settings.get("results", "")
        options |= {"device": settings["device"]} if "device" in settings else {}
        return cls(settings, data / place, work / place, results / group, **options)

    # Commands

    def waitinfo(self, arguments: list[str]) -> None:
        """A command as if it were given on the command line.

        A process that has trained can score without starting Python, torch and the GPU again.
        """
        if self.dry:
            print(shlex.join(["waitinfo", *arguments]))
            return
        print(f"$ {shlex.join(['waitinfo', *arguments])}", file=sys.stderr, flush=True)
        sys.argv = ["waitinfo", *arguments]  # is recorded in run folders
        try:
            waitinfo(arguments)
        except SystemExit as ended:
            if ended.code:
                raise
        free_memory()

    def shell(self, command: str) -> None:
        python = sys.executable
        command = command.format(
            data=self.data,
            work=self.work,
            python=python,
            corpora=f"{python} -m experiments.corpora",
        )
        if self.dry:
            print(command)
        elif subprocess.run(["bash", "-ec", command], check=False, env=with_modules()).returncode:
            sys.exit(f"failed: {command}")

    # Text

    def find(self, name: str, side: str) -> str:
        """One side of a text, which may be made (in WORK) and compressed."""
        found = (
            path
            for folder in (self.data, self.work)
            for suffix in ("", ".xz", ".gz", ".zst")
            if (path := folder / f"{name}.{side}{suffix}").exists()
        )
        return str(next(found, self.data / f"{name}.{side}"))

    def make_texts(self, steps: list[dict[str, str]]) -> None:
        """Derived texts: shell commands that each make a file in WORK."""
        for step in steps:
            if not (self.work / step["file"]).exists():
                self.shell(step["command"])

    def prepare(self, runs: list[Run]) -> None:
        """The texts and corpora of runs that are still to be made."""
        if not self.dry:
            self.work.mkdir(parents=True, exist_ok=True)
        self.make_texts(self.settings.get("make", []))
        trained = (run for run in runs if "model" not in run)
        missing = [
            run for run in trained if self.dry or not (self.scored(run) or self.trained(run))
        ]
        for name in dict.fromkeys(map(self.corpus, missing)):
            self.prepare_corpus(name)

    def prepare_corpus(self, name: str) -> None:
        corpus = self.settings.get("corpora", {}).get(name, {})
        if chain := self.settings.get("chain"):  # its stage of that name makes the corpus
            run = f"{{python}} -m experiments.run {chain} {{data}}/.. {{work}}"
            command = f"{run} --stages {name} --device {self.device}"
            corpus = {"make": [{"file": f"corpora/{name}/{MANIFEST}", "command": command}]}
        self.make_texts(corpus.get("make", []))
        out = self.work / "corpora" / name
        if out.exists() or "train" not in corpus:  # else a command of `make` makes it
            return
        command = ["prepare"]
        for prefix, texts in (("", "train"), ("dev-", "dev"), ("exclude-", "exclude")):
            for option, side in zip(("source", "target"), self.settings["languages"], strict=True):
                files = [self.find(text, side) for text in corpus[texts]]
                command += [f"--{prefix}{option}", *files]
        options = [option.format(data=self.data, work=self.work) for option in corpus["options"]]
        self.waitinfo([*command, *options, "--out", str(out)])

    # Runs

    def chosen(self, names: str | None) -> list[Run]:
        """Runs by their names, or all of them."""
        known = {run["run"]: run for run in self.settings["runs"]}
        wanted = names.split(",") if names else list(known)
        if unknown := [name for name in wanted if name not in known]:
            sys.exit(f"unknown run '{unknown[0]}'; choose from: {', '.join(known)}")
        return [known[name] for name in wanted]

    def model(self, run: Run) -> Path:
        if given := run.get("model"):
            return Path(given.format(work=self.work)) if "/" in given else find_model(given)
        return self.work / "models" / self.settings["models"] / f"{run['run']}-{self.seed}"

    def trained(self, run: Run) -> bool:
        """Whether there is a model: one that is given, or one of an earlier training."""
        return "model" in run or (self.model(run) / "last" / "config.json").exists()

    def languages(self, run: Run) -> list[str]:
        """Endings of the source and target files."""
        found: list[str] = run.get("languages", self.settings["languages"])
        return found

    def corpus(self, run: Run) -> str:
        name: str = run.get("corpus", self.settings["corpus"])
        return name

    def run(self, run: Run) -> None:
        """Train, pack where asked to, and score one run, unless its points are all there."""
        name, model = run["run"], self.model(run)
        if not self.dry:
            if self.scored(run):
                print(f"found: {name}, seed {self.seed}", file=sys.stderr)
                return
            self.results.mkdir(parents=True, exist_ok=True)
        if not self.trained(run):
            self.train(run, model)
        pack = self.settings.get("pack")
        packed = model.with_name(f"{model.name}.{pack}") if pack else model
        if not packed.exists() and pack:
            self.waitinfo(["models", "--pack", str(model), "--dtype", pack, "--out", str(packed)])
        for text, options in self.parts(run):
            self.score(run, packed, text, options)
        if not self.dry and not pack and "model" not in run:
            self.record(summarise_run(name, self.seed, model))
        print(f"done: {name}, seed {self.seed}", file=sys.stderr)

    def train(self, run: Run, model: Path) -> None:
        if (model / "run.json").exists():
            self.waitinfo(["train", "--out", str(model), "--resume"])
        else:
            self.forget(run)
            recipe = find_toml(run.get("recipe", self.settings["recipe"]), ROOT / "recipes")
            changes = [f"training.device={self.device}", f"training.seed={self.seed}",
                       *self.settings.get("settings", []), *run.get("settings", []),
                       *self.changes]  # fmt: skip
            corpus = self.work / "corpora" / self.corpus(run)
            self.waitinfo(["train", "--config", str(recipe), "--system", run["system"], "--data",
                           str(corpus), "--out", str(model), "--set", *changes])  # fmt: skip
        if not self.dry and not self.trained(run):  # a request to stop ends it with a checkpoint
            sys.exit("stopped; the same command continues from here")

    def record(self, summary: dict[str, Any]) -> None:
        """Put a run's line into runs.jsonl, in the place of an older one."""
        name = self.settings["name"]
        path = (self.results.parent if "results" in self.settings else self.results) / "runs.jsonl"
        with path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # other processes write there, too
            file.seek(0)
            known = [json.loads(line) for line in file]
            runs = {(run["experiment"], run["run"], run["seed"]): run for run in known}
            runs[name, summary["run"], summary["seed"]] = {"experiment": name, **summary}
            file.truncate(0)
            for run in runs.values():
                file.write(json.dumps(run, separators=(",", ":")) + "\n")

    # Points

    def parts(self, run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
        """The test sets of a run, each with options of `waitinfo evaluate` to score it with."""
        known = {"curve": run["run"], "label": "", **run}
        for name in self.sets or self.settings["sets"]:
            for score in self.settings["scores"][run["score"]]:
                seeds = score.get("seeds", [self.seed])
                if name in score.get("sets", [name]) and self.seed in seeds:
                    yield (
                        name,
                        {
                            key: value if isinstance(value, list) else str(value).format(**known)
                            for key, value in {"run": run["run"], **score}.items()
                            if key not in NOT_OPTIONS
                        },
                    )

    def score(self, run: Run, model: Path, name: str, options: dict[str, Any]) -> None:
        source, target = self.languages(run)
        command = ["evaluate", "--model", str(model), "--device", self.device,
                   "--source", self.find(name, source), "--reference", self.find(name, target),
                   "--out", str(self.points_file)]  # fmt: skip
        for key, value in options.items():
            command += [f"--{key}", *(value if isinstance(value, list) else [value])]
        self.waitinfo(command)

    @property
    def points_file(self) -> Path:
        return self.results / f"{self.settings['name']}.jsonl"

    def points(self, run: Run) -> list[Point]:
        """Points of a run and of the seed; a packed model does not say its seed."""
        names = {run["run"], *(options["run"] for _, options in self.parts(run))}
        found = read_file(self.points_file) if self.points_file.exists() else []
        return [p for p in found if p["run"] in names and p["seed"] in (None, self.seed)]

    def scored(self, run: Run) -> bool:
        """Whether the results have every point of a run."""
        found = {
            (p["set"], p["run"], p["name"], k) for p in self.points(run) for k in (p["k"], None)
        }
        return all(
            (scored, options["run"], curve, k) in found
            for name, options in self.parts(run)
            for scored in self.set_names(run, name, options)
            for curve, dials in [curve_of(options)]
            for k in dials
        )

    def set_names(self, run: Run, name: str, options: dict[str, Any]) -> list[str]:
        """The names that points of a test set have, one for each condition."""
        known = set_name(f"{name}.{self.languages(run)[0]}")
        conditions = options.get("condition", "documents" if "documents" in options else "clean")
        if conditions == "all":
            from waitinfo.evaluation.documents import ALL  # needs torch, which takes seconds

            conditions = ",".join(ALL)
        endings = ("" if each == "clean" else f"-{each}" for each in conditions.split(","))
        return [f"{known}{ending}" for ending in endings]

    def forget(self, run: Run) -> None:
        """Remove points of an older model with the same name, which nothing can complete."""
        if not self.dry:
            for point in self.points(run):
                Output.at(self.points_file).remove(PointKey.of(point))
