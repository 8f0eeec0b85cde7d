"""What makes tables and figures: training runs in turn, then analyses and other commands.

A file of targets has stages, each of which is one of these:

    experiment   runs of an experiment with some seeds; `minutes` are those of a run alone. Stages
                 with a lower `turn` go first, over all targets; `last` ones after all training.
    analyse      `waitinfo analyse` of a bundled model, or of one in WORK, on a test set, from the
                 first of `sides` to the second, into WORK/`out`; its numbers go to results/`into`.
    script       any other command; {data}, {work}, {results}, {root} and
                 {python} stand for what they say.
"""

from __future__ import annotations

import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.experiment import HERE, RESULTS, ROOT, Experiment
from experiments.schedule import Job

TARGETS = HERE / "targets"
BESIDE = 0.4  # how much longer a run takes for every other one beside it; six on an H200
TargetStage = dict[str, Any]


def read_targets(path: Path) -> dict[str, list[TargetStage]]:
    """The stages of every target."""
    found = tomllib.loads(path.read_text("utf-8"))
    return {name: target["stages"] for name, target in found.items()}


def known_targets() -> dict[str, list[TargetStage]]:
    """All targets here by their names, and those of each file by the file's name."""
    files = {path.stem: read_targets(path) for path in sorted(TARGETS.glob("*.toml"))}
    found = {name: [stage for each in targets.values() for stage in each]
             for name, targets in files.items()}  # fmt: skip
    for targets in files.values():
        found |= targets
    return found


def trains(stage: TargetStage) -> bool:
    return "experiment" in stage and not stage.get("last")


@dataclass
class Plan:
    """The jobs of some stages."""

    stages: list[TargetStage]
    data: Path
    work: Path
    results: Path = RESULTS
    device: str = "cuda"
    jobs: int = 2  # at a time
    sets: list[str] | None = None
    changes: list[str] = field(default_factory=list)  # of every training run, for rehearsals
    sentences: int = 0  # of an analysis; 0 for all

    def experiment(self, stage: TargetStage, seed: int, dry: bool = False) -> Experiment:
        return Experiment.read(
            stage["experiment"], self.data, self.work, self.results,
            seed=seed, device=self.device, sets=self.sets, dry=dry, changes=self.changes,
        )  # fmt: skip

    def scored(self, stage: TargetStage, run: str, seed: int) -> bool:
        """Whether the results have all points of a run."""
        experiment = self.experiment(stage, seed)
        return all(map(experiment.scored, experiment.chosen(run)))

    def trainings(self) -> Iterator[Job]:
        """A job for every run and seed, in turn: all seeds of a run together."""
        known = set()  # stages share runs
        for stage in sorted(filter(trains, self.stages), key=lambda stage: stage["turn"]):
            for run in stage["runs"].split(","):
                for seed in stage["seeds"]:
                    name = f"{Path(stage['experiment']).stem} {run}, seed {seed}"
                    if name not in known and not self.scored(stage, run, seed):
                        known.add(name)
                        minutes = stage["minutes"] * (1 + BESIDE * (self.jobs - 1))
                        experiment = self.experiment(stage, seed)
                        log = experiment.work / f"{run}-{seed}.log"
                        model = experiment.model(experiment.chosen(run)[0])
                        yield Job(name, self.worker(stage, run, seed), minutes, log, model)

    def preparations(self) -> Iterator[Job]:
        """The corpora of all runs that are still to be made."""
        together: dict[str, list[TargetStage]] = {}
        for stage in filter(trains, self.stages):
            together.setdefault(stage["experiment"], []).append(stage)
        for name, same in together.items():
            missing = dict.fromkeys(
                run
                for stage in same
                for run in stage["runs"].split(",")
                if not all(self.scored(stage, run, seed) for seed in stage["seeds"])
            )
            if missing:
                worker = self.worker(same[0], ",".join(missing), same[0]["seeds"][0])
                yield Job(f"corpora of {name}", [*worker, "--prepare"])

    def others(self) -> Iterator[Job]:
        """What follows the training, one after the other."""
        for stage in self.stages:
            if "analyse" in stage:
                yield Job(f"analysis of {stage['set']}", self.analysis(stage))
                yield Job(f"numbers of {stage['set']}", self.collection(stage))
            elif "script" in stage:
                yield Job("script", self.filled(stage["script"]))
            elif not trains(stage):
                for seed in stage["seeds"]:
                    yield Job(stage["experiment"], self.worker(stage, stage["runs"], seed))

    def worker(self, stage: TargetStage, runs: str, seed: int) -> list[str]:
        """The command that makes some runs in a process of its own."""
        command = [sys.executable, "-m", "experiments.run", stage["experiment"], str(self.data),
                   str(self.work), "--results", str(self.results), "--device",
                   self.device, "--seed", str(seed), "--runs", runs,
                   "--here"]  # fmt: skip
        command += ["--sets", ",".join(self.sets)] if self.sets else []
        return [*command, "--set", *self.changes] if self.changes else command

    def analysis(self, stage: TargetStage) -> list[str]:
        name = stage["analyse"]
        model = str(self.work / name) if "/" in name else name
        sides = stage.get("sides", ["de", "en"])
        source, reference = (f"{self.data / stage['set']}.{side}" for side in sides)
        limit = ["--sentences", str(self.sentences)] if self.sentences else []
        return [sys.executable, "-m", "waitinfo", "analyse", "--model", model, "--source", source,
                "--reference", reference, "--out", str(self.work / stage["out"]),
                "--device", "cpu",  # where bundled models are integers
                *self.filled(stage.get("options", [])), *limit]  # fmt: skip

    def collection(self, stage: TargetStage) -> list[str]:
        return [sys.executable, "-m", "experiments.collect", "analysis",
                str(self.work / stage["out"]), str(self.results / stage["into"]),
                "--name", Path(stage["out"]).name]  # fmt: skip

    def filled(self, words: list[str]) -> list[str]:
        places = {"data": self.data, "work": self.work, "results": self.results, "root": ROOT,
                  "python": sys.executable}  # fmt: skip
        return [word.format(**places) for word in words]

    def here(self, prepare: bool, dry: bool = False) -> None:
        """Make all runs in this process, or the corpora alone, or print the commands."""
        for stage in (stage for stage in self.stages if "experiment" in stage):
            for seed in stage["seeds"]:
                experiment = self.experiment(stage, seed, dry)
                runs = experiment.chosen(stage["runs"])
                experiment.prepare(runs)
                for run in [] if prepare else runs:
                    experiment.run(run)
        if dry:
            for job in self.others():
                if "--here" not in job.command:
                    print(shlex.join(job.command))
