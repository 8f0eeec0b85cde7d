"""Train and score an experiment's runs: `python experiments/run.py EXPERIMENT DATA WORK RESULTS`.

EXPERIMENT is a TOML file, or the name of one beside this script; experiments/README.md explains
its keys.
DATA holds the text, WORK gets corpora, models and logs. RESULTS/points.jsonl gets one line for
every point, RESULTS/runs.jsonl one for every training run. Whatever is there already is kept, so
that the same command continues an interrupted experiment.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RECIPES = HERE.parent / "recipes"
WAITINFO = [sys.executable, "-m", "waitinfo"]
NOT_OPTIONS = ("sets",)  # of a score; all else is passed to `waitinfo evaluate`


def find_toml(name: str, folder: Path) -> Path:
    """A TOML file by its path, or by its name in a folder."""
    return Path(name) if name.endswith(".toml") else folder / f"{name}.toml"


def read_experiment(name: str) -> dict[str, Any]:
    """An experiment's TOML, over that of the experiment it extends."""
    path = find_toml(name, HERE)
    if not path.exists():
        known = ", ".join(sorted(found.stem for found in HERE.glob("*.toml")))
        sys.exit(f"unknown experiment '{name}'; choose one of: {known}")
    own = {"models": path.stem, **tomllib.loads(path.read_text("utf-8"))}
    if "extends" not in own:
        return own
    base = read_experiment(own["extends"])
    known_runs = {run["run"]: run for run in base["runs"]}
    own["runs"] = [{**known_runs.get(run["run"], {}), **run} for run in own["runs"]]
    return {**base, **own}


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
        found |= {"settings": about["resolved"], "corpus": corpus}
        found |= {"environment": {**about["environment"], "processes": about["processes"]}}
    return found


@dataclass
class Runner:
    """Runs the commands of an experiment, or prints them."""

    experiment: dict[str, Any]
    data: Path
    work: Path
    results: Path
    device: str = "cuda"
    seed: int = 1
    sets: list[str] | None = None
    dry: bool = False
    settings: list[str] = field(default_factory=list)  # of every training run, after its own
    lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, command: list[str], log: str) -> None:
        if self.dry:
            print(shlex.join(command))
            return
        with (self.work / log).open("a") as stream:
            failed = subprocess.run(command, stdout=stream, stderr=stream, check=False).returncode
        if failed:
            sys.exit(f"failed (see {self.work / log}): {shlex.join(command)}")

    def find(self, name: str, side: str) -> str:
        """One side of a text, which may be made (in WORK) and compressed."""
        found = (
            path
            for folder in (self.data, self.work)
            for suffix in ("", ".xz", ".gz", ".zst")
            if (path := folder / f"{name}.{side}{suffix}").exists()
        )
        return str(next(found, self.data / f"{name}.{side}"))

    def make(self, steps: list[dict[str, str]]) -> None:
        """Derived texts: shell commands that each make a file in WORK."""
        for step in steps:
            if not (self.work / step["file"]).exists():
                places = {"data": self.data, "work": self.work, "experiments": HERE,
                          "python": sys.executable}  # fmt: skip
                self.call(["bash", "-ec", step["command"].format(**places)], "make.log")

    def prepare(self, name: str) -> None:
        corpus = self.experiment["corpora"][name]
        self.make(corpus.get("make", []))
        if (self.work / "corpora" / name).exists():
            return
        command = [*WAITINFO, "prepare"]
        for prefix, texts in (("", "train"), ("dev-", "dev"), ("exclude-", "exclude")):
            for option, side in zip(
                ("source", "target"), self.experiment["languages"], strict=True
            ):
                files = [self.find(text, side) for text in corpus[texts]]
                command += [f"--{prefix}{option}", *files]
        options = [option.format(work=self.work) for option in corpus["options"]]
        self.call([*command, *options, "--out", str(self.work / "corpora" / name)], "prepare.log")

    def model(self, run: dict[str, Any]) -> Path:
        return self.work / "models" / self.experiment["models"] / f"{run['run']}-{self.seed}"

    def trained(self, run: dict[str, Any]) -> bool:
        return (self.model(run) / "last" / "config.json").exists()

    def corpus(self, run: dict[str, Any]) -> str:
        return run.get("corpus", self.experiment["corpus"])

    def run(self, run: dict[str, Any]) -> None:
        """Train, pack where asked to, and score one run."""
        name, model = run["run"], self.model(run)
        if not self.trained(run):
            self.train(run, model)
        if pack := self.experiment.get("pack"):
            model = self.pack(model, pack)
        elif not self.dry:
            self.record(summarise_run(name, self.seed, model))
        for set_name in self.sets or self.experiment["sets"]:
            for score in self.experiment["scores"][run["score"]]:
                if set_name in score.get("sets", [set_name]):
                    self.score(run, model, set_name, score)
        print(f"done: {name}, seed {self.seed}", file=sys.stderr)

    def pack(self, model: Path, dtype: str) -> Path:
        packed = model.with_name(f"{model.name}.{dtype}")
        if not packed.exists():
            command = ["models", "--pack", str(model), "--dtype", dtype, "--out", str(packed)]
            self.call([*WAITINFO, *command], f"{model.name}.log")
        return packed

    def train(self, run: dict[str, Any], model: Path) -> None:
        if (model / "run.json").exists():
            command = ["--out", str(model), "--resume"]
        else:
            recipe = find_toml(run.get("recipe", self.experiment["recipe"]), RECIPES)
            settings = [f"training.device={self.device}", f"training.seed={self.seed}"]
            command = ["--config", str(recipe), "--system", run["system"],
                       "--data", str(self.work / "corpora" / self.corpus(run)), "--out", str(model),
                       "--set", *settings, *run.get("settings", []), *self.settings]  # fmt: skip
        self.call([*WAITINFO, "train", *command], f"{model.name}.log")

    def record(self, summary: dict[str, Any]) -> None:
        """Put a run's line into runs.jsonl, in the place of an older one."""
        path = self.results / "runs.jsonl"
        with self.lock:
            lines = path.read_text("utf-8").splitlines() if path.exists() else []
            runs = {(run["run"], run["seed"]): run for run in map(json.loads, lines)}
            runs[summary["run"], summary["seed"]] = summary
            text = "".join(json.dumps(run, separators=(",", ":")) + "\n" for run in runs.values())
            path.write_text(text, "utf-8")

    def score(self, run: dict[str, Any], model: Path, set_name: str, score: dict[str, Any]) -> None:
        source, target = self.experiment["languages"]
        known = {"curve": run["run"], "label": "", **run}
        options = {"run": run["run"], **score}
        command = [*WAITINFO, "evaluate", "--model", str(model), "--device", self.device,
                   "--source", self.find(set_name, source),
                   "--reference", self.find(set_name, target),
                   "--out", str(self.results / "points.jsonl")]  # fmt: skip
        for name, value in options.items():
            if name not in NOT_OPTIONS:
                values = value if isinstance(value, list) else [str(value).format(**known)]
                command += [f"--{name}", *values]
        self.call(command, f"{run['run']}-{self.seed}.log")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", help="as multi30k, de-en or my.toml")
    for name in ("data", "work", "results"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time [default: 2]")
    parser.add_argument("--runs", help="these only, as wait-info,multipath")
    parser.add_argument("--sets", help="score these test sets only")
    parser.add_argument("--set", nargs="+", default=[], help="settings of every training run")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    given = parser.parse_args()
    experiment = read_experiment(given.experiment)
    sets = given.sets.split(",") if given.sets else None
    runner = Runner(experiment, given.data, given.work, given.results, given.device, given.seed,
                    sets, given.dry_run, settings=given.set)  # fmt: skip
    wanted = given.runs.split(",") if given.runs else [run["run"] for run in experiment["runs"]]
    runs = [run for run in experiment["runs"] if run["run"] in wanted]
    if not given.dry_run:
        for folder in (given.work, given.results):
            folder.mkdir(parents=True, exist_ok=True)
    runner.make(experiment.get("make", []))
    for corpus in dict.fromkeys(runner.corpus(run) for run in runs if not runner.trained(run)):
        runner.prepare(corpus)
    with ThreadPoolExecutor(1 if given.dry_run else given.jobs) as jobs:
        list(jobs.map(runner.run, runs))


if __name__ == "__main__":
    main()
