"""Train and score an experiment's runs: `python experiments/run.py EXPERIMENT DATA WORK RESULTS`.

EXPERIMENT is a TOML file, or the name of one beside this script; experiments/README.md explains
its keys.
DATA holds the text, WORK gets corpora, models and logs. RESULTS/EXPERIMENT.jsonl gets one line for
every point, RESULTS/runs.jsonl one for every training run. A run whose points are all in RESULTS is
done, and an unfinished one continues: the same command continues an interrupted experiment, and
several commands may share WORK and RESULTS if each has runs of its own.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waitinfo.evaluation.output import Output
from waitinfo.evaluation.points import Point, PointKey, read_file, set_name
from waitinfo.text.corpus import MANIFEST

HERE = Path(__file__).resolve().parent
RECIPES = HERE.parent / "recipes"
WAITINFO = [sys.executable, "-m", "waitinfo"]
NOT_OPTIONS = ("sets", "seeds")  # of a score; all else is passed to `waitinfo evaluate`


def find_toml(name: str, folder: Path) -> Path:
    """A TOML file by its path, or by its name in a folder."""
    return Path(name) if name.endswith(".toml") else folder / f"{name}.toml"


def read_experiment(name: str) -> dict[str, Any]:
    """An experiment's TOML, over that of the experiment it extends."""
    path = find_toml(name, HERE)
    if not path.exists():
        known = ", ".join(sorted(found.stem for found in HERE.glob("*.toml")))
        sys.exit(f"unknown experiment '{name}'; choose one of: {known}")
    own = {"models": path.stem, "name": path.stem, **tomllib.loads(path.read_text("utf-8"))}
    if "extends" not in own:
        return own
    base = read_experiment(own["extends"])
    known_runs = {run["run"]: run for run in base["runs"]}
    own["runs"] = [{**known_runs.get(run["run"], {}), **run} for run in own["runs"]]
    return {**base, **own}


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
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    stopped: bool = False

    def call(self, command: list[str], log: str) -> None:
        if self.dry:
            print(shlex.join(command))
        elif self.execute(command, log):
            sys.exit(f"failed (see {self.work / log}): {shlex.join(command)}")

    def together(self, commands: list[dict[str, Any]], log: str) -> None:
        """Several waitinfo commands in one process, which starts faster than several."""
        if self.dry:
            for command in commands:
                self.call([*WAITINFO, *command["arguments"]], log)
        elif self.execute([sys.executable, str(HERE / "together.py")], log, json.dumps(commands)):
            sys.exit(f"failed or stopped: see {self.work / log}")

    def execute(self, command: list[str], log: str, text: str = "") -> int:
        """Run a command with its output in a log; return its status."""
        if self.stopped:
            sys.exit("stopped; the same command continues from here")
        with (self.work / log).open("a") as stream:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=stream, stderr=stream, text=True
            )
            self.processes.append(process)
            process.communicate(text)
            return process.returncode

    def stop(self, *_: object) -> None:
        """Pass a request to stop (SIGTERM) on: training runs then end with a checkpoint."""
        self.stopped = True
        for process in self.processes:
            if process.poll() is None:
                process.terminate()

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
        corpora = self.experiment.get("corpora", {})
        corpus = corpora[name] if "chain" not in self.experiment else self.stage(name)
        self.make(corpus.get("make", []))
        if (self.work / "corpora" / name).exists():
            return
        if "train" not in corpus:  # a command of `make` makes it
            return
        command = [*WAITINFO, "prepare"]
        for prefix, texts in (("", "train"), ("dev-", "dev"), ("exclude-", "exclude")):
            for option, side in zip(
                ("source", "target"), self.experiment["languages"], strict=True
            ):
                files = [self.find(text, side) for text in corpus[texts]]
                command += [f"--{prefix}{option}", *files]
        options = [option.format(data=self.data, work=self.work) for option in corpus["options"]]
        self.call([*command, *options, "--out", str(self.work / "corpora" / name)], "prepare.log")

    def stage(self, name: str) -> dict[str, Any]:
        """A corpus that a stage of the same name makes, in the chain of the experiment."""
        command = (
            f"{{python}} {{experiments}}/chain.py {self.experiment['chain']} {{data}}/.. {{work}} "
            f"--stages {name} --device {self.device}"
        )
        return {"make": [{"file": f"corpora/{name}/{MANIFEST}", "command": command}]}

    def model(self, run: dict[str, Any]) -> Path:
        return self.work / "models" / self.experiment["models"] / f"{run['run']}-{self.seed}"

    def trained(self, run: dict[str, Any]) -> bool:
        return (self.model(run) / "last" / "config.json").exists()

    def corpus(self, run: dict[str, Any]) -> str:
        return run.get("corpus", self.experiment["corpus"])

    def run(self, run: dict[str, Any]) -> None:
        """Train, pack where asked to, and score one run, unless its points are all there."""
        name, model = run["run"], self.model(run)
        if not self.dry and self.scored(run):
            print(f"found: {name}, seed {self.seed}", file=sys.stderr)
            return
        commands = [] if self.trained(run) else [self.train(run, model)]
        if pack := self.experiment.get("pack"):
            packed = model.with_name(f"{model.name}.{pack}")
            if not packed.exists():
                options = ["--pack", str(model), "--dtype", pack, "--out", str(packed)]
                commands.append({"arguments": ["models", *options]})
            model = packed
        commands += [self.score(run, model, *part) for part in self.parts(run)]
        self.together(commands, f"{name}-{self.seed}.log")
        if not self.dry and not pack:
            self.record(summarise_run(name, self.seed, model))
        print(f"done: {name}, seed {self.seed}", file=sys.stderr)

    def train(self, run: dict[str, Any], model: Path) -> dict[str, Any]:
        if (model / "run.json").exists():
            command = ["--out", str(model), "--resume"]
        else:
            self.forget(run)
            recipe = find_toml(run.get("recipe", self.experiment["recipe"]), RECIPES)
            settings = [f"training.device={self.device}", f"training.seed={self.seed}"]
            command = ["--config", str(recipe), "--system", run["system"],
                       "--data", str(self.work / "corpora" / self.corpus(run)), "--out", str(model),
                       "--set", *settings, *self.experiment.get("settings", []),
                       *run.get("settings", []), *self.settings]  # fmt: skip
        makes = str(model / "last" / "config.json")
        return {"arguments": ["train", *command], "makes": makes}

    def record(self, summary: dict[str, Any]) -> None:
        """Put a run's line into runs.jsonl, in the place of an older one."""
        path = self.results / "runs.jsonl"
        with (self.work / "runs.lock").open("a") as lock:  # other commands write there, too
            fcntl.flock(lock, fcntl.LOCK_EX)
            lines = path.read_text("utf-8").splitlines() if path.exists() else []
            known = map(json.loads, lines)
            runs = {(run["experiment"], run["run"], run["seed"]): run for run in known}
            name = self.experiment["name"]
            runs[name, summary["run"], summary["seed"]] = {"experiment": name, **summary}
            text = "".join(json.dumps(run, separators=(",", ":")) + "\n" for run in runs.values())
            path.write_text(text, "utf-8")

    # Points

    def parts(self, run: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The test sets of a run, each with options of `waitinfo evaluate` to score it with."""
        known = {"curve": run["run"], "label": "", **run}
        for name in self.sets or self.experiment["sets"]:
            for score in self.experiment["scores"][run["score"]]:
                seeds = score.get("seeds", [self.seed])
                if name in score.get("sets", [name]) and self.seed in seeds:
                    options = {"run": run["run"], **score}
                    yield (
                        name,
                        {
                            key: value if isinstance(value, list) else str(value).format(**known)
                            for key, value in options.items()
                            if key not in NOT_OPTIONS
                        },
                    )

    def score(
        self, run: dict[str, Any], model: Path, name: str, options: dict[str, Any]
    ) -> dict[str, Any]:
        source, target = self.experiment["languages"]
        command = ["evaluate", "--model", str(model), "--device", self.device,
                   "--source", self.find(name, source), "--reference", self.find(name, target),
                   "--out", str(self.points_file)]  # fmt: skip
        for key, value in options.items():
            command += [f"--{key}", *(value if isinstance(value, list) else [value])]
        return {"arguments": command}

    @property
    def points_file(self) -> Path:
        return self.results / f"{self.experiment['name']}.jsonl"

    def points(self, run: dict[str, Any]) -> list[Point]:
        """Points of a run and of the seed; a packed model does not say its seed."""
        names = {run["run"], *(options["run"] for _, options in self.parts(run))}
        found = read_file(self.points_file) if self.points_file.exists() else []
        return [p for p in found if p["run"] in names and p["seed"] in (None, self.seed)]

    def scored(self, run: dict[str, Any]) -> bool:
        """Whether RESULTS has every point of a run."""
        found = {
            (p["set"], p["run"], p["name"], k) for p in self.points(run) for k in (p["k"], None)
        }
        return all(
            (scored, options["run"], options["name"], k) in found
            for name, options in self.parts(run)
            for scored in self.set_names(name, options)
            for k in (map(float, options["k"].split(",")) if "k" in options else [None])
        )

    def set_names(self, name: str, options: dict[str, Any]) -> list[str]:
        """The names that points of a test set have, one for each condition."""
        known = set_name(f"{name}.{self.experiment['languages'][0]}")
        conditions = options.get("condition", "clean").split(",")
        return [known if each == "clean" else f"{known}-{each}" for each in conditions]

    def forget(self, run: dict[str, Any]) -> None:
        """Remove points of an older model with the same name, which nothing can complete."""
        if not self.dry:
            for point in self.points(run):
                Output.at(self.points_file).remove(PointKey.of(point))


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
    parser.add_argument("--prepare", action="store_true", help="make the corpora and stop")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    given = parser.parse_args()
    experiment = read_experiment(given.experiment)
    sets = given.sets.split(",") if given.sets else None
    runner = Runner(experiment, given.data, given.work, given.results, given.device, given.seed,
                    sets, given.dry_run, settings=given.set)  # fmt: skip
    wanted = given.runs.split(",") if given.runs else [run["run"] for run in experiment["runs"]]
    by_name = {run["run"]: run for run in experiment["runs"]}
    if unknown := [name for name in wanted if name not in by_name]:
        sys.exit(f"unknown run '{unknown[0]}'; choose from: {', '.join(by_name)}")
    runs = [by_name[name] for name in wanted]
    if not given.dry_run:
        for folder in [given.work] if given.prepare else [given.work, given.results]:
            folder.mkdir(parents=True, exist_ok=True)
    runner.make(experiment.get("make", []))
    missing = [run for run in runs if given.prepare or runner.dry or not runner.scored(run)]
    for corpus in dict.fromkeys(runner.corpus(run) for run in missing if not runner.trained(run)):
        runner.prepare(corpus)
    if given.prepare:
        return
    before = signal.signal(signal.SIGTERM, runner.stop)
    try:
        with ThreadPoolExecutor(1 if given.dry_run else given.jobs) as jobs:
            list(jobs.map(runner.run, runs))
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    main()
