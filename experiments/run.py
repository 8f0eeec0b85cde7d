"""Make results: `python -m experiments.run NAME … DATA WORK`.

NAME is an experiment (settings/NAME.toml), a target or all targets of a file (targets/*.toml), or a
chain of stages (chains/NAME.toml); or the path of such a TOML file. experiments/README.md explains
their keys. DATA holds the text, WORK gets corpora, models, logs and analyses, and points go to
results/. What is done is not done again, and an unfinished run continues: the same command goes on
after an interruption, and several commands may share WORK and results if each has runs of its own.

Training runs of all names are made in turn, several at a time (--jobs). With --minutes, a run that
cannot end in time is not started, by its estimated minutes and by the pace of those that have
ended. --plan shows what fits.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.chain import CHAINS, run_chain
from experiments.experiment import RESULTS, SETTINGS, read_experiment
from experiments.plan import Plan, TargetStage, known_targets, read_targets
from experiments.schedule import Schedule


def kind_of(name: str) -> str:
    """What a name stands for; a path by the keys in its file."""
    if name.endswith(".toml"):
        if not Path(name).exists():
            sys.exit(f"{name}: no such file")
        keys = tomllib.loads(Path(name).read_text("utf-8"))
        return "experiment" if "runs" in keys else "chain" if "stage" in keys else "targets"
    for kind, folder in (("experiment", SETTINGS), ("chain", CHAINS)):
        if (folder / f"{name}.toml").exists():
            return kind
    if name in known_targets():
        return "targets"
    known = {path.stem for folder in (SETTINGS, CHAINS) for path in folder.glob("*.toml")}
    sys.exit(f"unknown name '{name}'; choose from: {', '.join(sorted({*known, *known_targets()}))}")


def stages_of(name: str, given: argparse.Namespace) -> list[TargetStage]:
    """The stages of an experiment or of targets."""
    if kind_of(name) == "targets":
        if name.endswith(".toml"):
            return [stage for each in read_targets(Path(name)).values() for stage in each]
        return known_targets()[name]
    settings = read_experiment(name)
    runs = given.runs or ",".join(run["run"] for run in settings["runs"])
    stage: dict[str, Any] = {"experiment": name, "runs": runs, "seeds": [given.seed]}
    return [{**stage, "turn": 0, "minutes": settings.get("minutes", 0)}]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="experiments.run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("name", nargs="+", help="as multi30k, ablations, students, or my.toml")
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS, help="[default: results]")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", nargs="+", default=[], action="extend", metavar="KEY=VALUE",
                        help="settings of every training run, or values of a chain")  # fmt: skip
    parser.add_argument("--prepare", action="store_true", help="make the corpora and stop")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    runs = parser.add_argument_group("experiments and targets")
    runs.add_argument("--jobs", type=int, default=2, help="runs at a time [default: 2]")
    runs.add_argument("--minutes", type=float, default=0, help="for the training runs")
    runs.add_argument("--plan", action="store_true", help="print the runs and their minutes")
    runs.add_argument("--seed", type=int, default=1, help="of an experiment [default: 1]")
    runs.add_argument("--runs", help="of an experiment, these only, as wait-info,multipath")
    runs.add_argument("--sets", help="score these test sets only")
    runs.add_argument("--experiments", help="of targets, these only, as multi30k-ablations,en-vi")
    runs.add_argument("--sentences", type=int, default=0, help="of an analysis [default: all]")
    runs.add_argument("--here", action="store_true", help="one run after the other, no processes")
    chains = parser.add_argument_group("chains")
    chains.add_argument("--stages", help="only these and what they need, as en-de-teacher,german")
    chains.add_argument("--again", action="append", default=[], help="a stage to do again")
    return parser.parse_args(arguments)


def make(plan: Plan, schedule: Schedule, given: argparse.Namespace) -> None:
    if given.here or given.dry_run:
        plan.here(given.prepare, given.dry_run)
        return
    trainings = list(plan.trainings())
    if given.plan:
        schedule.plan(trainings)
        return
    schedule.in_order(list(plan.preparations()), once=False)
    if given.prepare:
        return
    schedule.together(trainings)
    schedule.in_order(list(plan.others()))


def main(arguments: Sequence[str] | None = None) -> None:
    given = parse(arguments)
    data, work, results = given.data.absolute(), given.work.absolute(), given.results.absolute()
    if "chain" in map(kind_of, given.name):
        if len(given.name) > 1:
            sys.exit("a chain is made alone: give one name")
        stages = given.stages.split(",") if given.stages else None
        run_chain(given.name[0], data, work, results, given.device, given.set, stages,
                  given.again, given.dry_run)  # fmt: skip
        return
    only = given.experiments.split(",") if given.experiments else []
    stages = [
        stage
        for name in given.name
        for stage in stages_of(name, given)
        if not only or Path(stage.get("experiment", "")).stem in only
    ]
    sets = given.sets.split(",") if given.sets else None
    plan = Plan(stages, data, work, results, given.device, given.jobs, sets, given.set,
                given.sentences)  # fmt: skip
    make(plan, Schedule(work, given.jobs, given.minutes), given)


if __name__ == "__main__":
    main()
