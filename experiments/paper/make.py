"""Make tables and figures of the paper: `python experiments/paper/make.py TARGET … DATA WORK`.

targets.toml (or another file, --targets) has the targets and their stages. DATA holds the folders
of text (de-en, en-vi, multi30k-de-en, upos). WORK gets corpora, models, logs and analyses. Points
and figures go to results/, or to --results. A run whose points are there is not made again, and an
unfinished one continues: the same command goes on after an interruption.

Training runs of all targets are made by turns, the most telling first, several at a time (--jobs).
With --minutes, a run that cannot end in time is not started, by its estimated minutes and by the
pace of those that have ended. --plan shows what fits.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
from experiments.run import Runner, read_experiment  # noqa: E402

RUN = ROOT / "experiments" / "run.py"
Stage = dict[str, Any]
BESIDE = 0.4  # how much longer a run takes for every other one beside it; six on an H200
GRACE = 60  # seconds that a run has to stop, which includes a checkpoint


def trains(stage: Stage) -> bool:
    return "experiment" in stage and not stage.get("last")


def read_targets(path: Path = HERE / "targets.toml") -> dict[str, dict[str, Any]]:
    return tomllib.loads(path.read_text("utf-8"))


def short_name(stage: Stage) -> str:
    """The experiment of a stage, without its folder."""
    return Path(stage.get("experiment", "")).name


@dataclass(frozen=True, eq=False)
class Job:
    """A command, and how long it takes beside others on the same GPU."""

    name: str
    command: list[str]
    minutes: float = 0.0


Process = subprocess.Popen[bytes]
Running = dict[Job, tuple[Process, float]]  # with the time of the start


@dataclass
class Maker:
    data: Path
    work: Path
    results: Path
    device: str = "cuda"
    jobs: int = 2
    settings: list[str] = field(default_factory=list)  # of every training run, for rehearsals
    limit: int = 0  # sentences of an analysis; 0 for all
    minutes: float = 0.0  # for everything; 0 for no limit
    dry: bool = False
    began: float = field(default_factory=time.monotonic)
    ratios: list[float] = field(default_factory=list)  # of taken to estimated time, ended runs

    # Commands

    def trainings(self, stages: Sequence[Stage]) -> Iterator[Job]:
        """A job for every run and seed, by turns: all seeds of a run together."""
        known = set()  # stages share runs
        for stage in sorted(filter(trains, stages), key=lambda stage: stage["turn"]):
            for run in stage["runs"].split(","):
                for seed in stage["seeds"]:
                    name = f"{short_name(stage)} {run}, seed {seed}"
                    if name not in known and not self.scored(stage, run, seed):
                        known.add(name)
                        minutes = stage["minutes"] * (1 + BESIDE * (self.jobs - 1))
                        yield Job(name, self.experiment(stage, run, seed), minutes)

    def scored(self, stage: Stage, run: str, seed: int) -> bool:
        """Whether the results have all points of a run."""
        experiment = read_experiment(stage["experiment"])
        results = self.results / stage["results"]
        runner = Runner(experiment, self.data, self.work, results, seed=seed)
        return runner.scored(next(known for known in experiment["runs"] if known["run"] == run))

    def preparations(self, stages: Sequence[Stage]) -> Iterator[Job]:
        """The corpora of all runs that are still to be made."""
        together: dict[str, list[Stage]] = {}
        for stage in filter(trains, stages):
            together.setdefault(stage["experiment"], []).append(stage)
        for name, same in together.items():
            missing = dict.fromkeys(
                run
                for stage in same
                for run in stage["runs"].split(",")
                if not all(self.scored(stage, run, seed) for seed in stage["seeds"])
            )
            if missing:
                runs = self.experiment(same[0], ",".join(missing), same[0]["seeds"][0])
                yield Job(f"corpora of {name}", [*runs, "--prepare"])

    def others(self, stages: Sequence[Stage]) -> Iterator[Job]:
        """What follows the training, one after the other."""
        for stage in stages:
            if "analyse" in stage:
                yield Job(f"analysis of {stage['set']}", self.analysis(stage))
            elif "script" in stage:
                yield Job("script", self.filled(stage["script"]))
            elif not trains(stage):
                for seed in stage["seeds"]:
                    yield Job(stage["experiment"], self.experiment(stage, stage["runs"], seed))

    def experiment(self, stage: Stage, runs: str, seed: int) -> list[str]:
        name = stage["experiment"]
        results = self.results / stage["results"]
        work = self.work / stage["data"]
        command = [sys.executable, str(RUN), name, str(self.data / stage["data"]), str(work),
                   str(results), "--device", stage.get("device", self.device),
                   "--seed", str(seed), "--runs", runs, "--jobs", "1"]  # fmt: skip
        return [*command, "--set", *self.settings] if self.settings else command

    def analysis(self, stage: Stage) -> list[str]:
        """`analyse` is a bundled model, or one in WORK; its languages are the sides of the set."""
        name = stage["analyse"]
        model = str(self.work / name) if "/" in name else name
        sides = stage.get("sides", ["de", "en"])
        source, reference = (f"{self.data / stage['set']}.{side}" for side in sides)
        limit = ["--sentences", str(self.limit)] if self.limit else []
        return [sys.executable, "-m", "waitinfo", "analyse", "--model", model, "--source", source,
                "--reference", reference, "--out", str(self.work / stage["out"]),
                "--device", "cpu",  # where bundled models are integers
                *self.filled(stage.get("options", [])), *limit]  # fmt: skip

    def filled(self, words: list[str]) -> list[str]:
        places = {"data": self.data, "work": self.work, "results": self.results, "root": ROOT,
                  "python": sys.executable}  # fmt: skip
        return [word.format(**places) for word in words]

    # One after the other

    def make(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if self.dry:
                print(shlex.join(job.command))
            elif not self.mark(job).exists():
                print(f"{job.name}: {shlex.join(job.command)}", file=sys.stderr)
                if code := subprocess.run(job.command, check=False).returncode:
                    sys.exit(f"failed with status {code}; the same command continues from here")
                self.finish(job)

    def mark(self, job: Job) -> Path:
        """The note that a command has finished; another command has another one."""
        folder = self.work / "done"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / hashlib.sha256(json.dumps(job.command).encode()).hexdigest()[:16]

    def finish(self, job: Job) -> None:
        self.mark(job).write_text(json.dumps(job.command) + "\n", "utf-8")

    # Several at a time

    def train(self, jobs: Sequence[Job]) -> None:
        """Make the jobs, several at a time; one that fails does not keep others from running."""
        waiting = list(jobs)
        running: Running = {}
        states: dict[str, list[str]] = {"failed": [], "stopped": [], "not started": []}
        with stopping(running):
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    job = waiting.pop(0)
                    if self.in_time(job):
                        running[job] = self.start(job), time.monotonic()
                    else:
                        states["not started"].append(job.name)
                over = self.over(running)
                for job in [job for job in running if running[job][0].poll() is not None]:
                    state = self.ended(job, *running.pop(job), over)
                    states.get(state, []).append(job.name)
        for state in ("not started", "stopped"):
            if names := states[state]:
                self.say(f"{state}, for lack of time: {', '.join(names)}")
        if names := states["failed"]:
            sys.exit(f"failed: {', '.join(names)}; the same command tries again")

    def start(self, job: Job) -> Process:
        self.say(f"starting: {job.name}")
        threads = max(1, (os.cpu_count() or 1) // self.jobs)
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
        return subprocess.Popen(job.command, env=environment, process_group=0)

    def over(self, running: Running) -> bool:
        """Whether the time is over, after a moment; what still runs is then stopped."""
        time.sleep(0.1 if running else 0)
        if not running or not self.minutes or self.spent() < self.minutes:
            return False
        self.say("the time is over; the same command continues from here")
        stop(running)
        return True

    def ended(self, job: Job, process: Process, began: float, over: bool) -> str:
        taken = (time.monotonic() - began) / 60
        state = "done"
        if process.returncode:
            state = "stopped" if over else "failed"
        else:
            self.ratios.append(taken / job.minutes)
        self.say(f"{state} in {taken:.1f} minutes: {job.name}")
        return state

    def in_time(self, job: Job) -> bool:
        return not self.minutes or self.spent() + self.pace() * job.minutes <= self.minutes

    def spent(self) -> float:
        return (time.monotonic() - self.began) / 60

    def pace(self) -> float:
        """Time taken per estimated time, as the last runs had it."""
        last = self.ratios[-8:]
        return sum(last) / len(last) if last else 1.0

    def say(self, text: str) -> None:
        print(f"{self.spent():6.1f}  {text}", file=sys.stderr, flush=True)

    def plan(self, jobs: Sequence[Job]) -> None:
        """Print the jobs with the minutes at which they end, by the estimates."""
        free = [0.0] * self.jobs
        print(f"{'start':>6} {'end':>6}")
        for job in jobs:
            began = heapq.heappop(free)
            if self.minutes and began + job.minutes > self.minutes:
                heapq.heappush(free, began)
                print(f"{'':13}  {job.name}")
                continue
            heapq.heappush(free, began + job.minutes)
            print(f"{began:6.1f} {began + job.minutes:6.1f}  {job.name}")


@contextmanager
def stopping(running: Running) -> Iterator[None]:
    """If this command is stopped, stop what it runs, too."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        stop(running)
        signal.signal(signal.SIGTERM, before)


def stop(running: Running) -> None:
    """Ask jobs to end, which pass it on; kill those that do not, with all they started."""
    asked = [process for process, _ in running.values() if process.poll() is None]
    for process in asked:
        process.terminate()
    until = time.monotonic() + GRACE
    for process in asked:
        try:
            process.wait(max(0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="+", help=f"{', '.join(read_targets())}, or all")
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--targets", type=Path, default=HERE / "targets.toml", help="their file")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time [default: 2]")
    parser.add_argument("--minutes", type=float, default=0, help="for the training runs")
    parser.add_argument("--set", nargs="+", default=[], help="settings of every training run")
    parser.add_argument("--sentences", type=int, default=0, help="of an analysis [default: all]")
    parser.add_argument("--experiments", help="of these only, as multi30k-ablations,en-vi")
    parser.add_argument("--prepare", action="store_true", help="make the corpora and stop")
    parser.add_argument("--plan", action="store_true", help="print the runs and their minutes")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    given = parser.parse_args()
    targets = read_targets(given.targets)
    names = list(targets) if given.target == ["all"] else given.target
    for name in names:
        if name not in targets:
            sys.exit(f"unknown target '{name}'; choose from: {', '.join(targets)}, all")
    maker = Maker(given.data.absolute(), given.work.absolute(), given.results.absolute(),
                  given.device, given.jobs, given.set, given.sentences, given.minutes,
                  given.dry_run)  # fmt: skip
    only = given.experiments.split(",") if given.experiments else []
    stages = [
        stage
        for name in names
        for stage in targets[name]["stages"]
        if not only or short_name(stage) in only
    ]
    make(maker, stages, given.plan, given.prepare)


def make(maker: Maker, stages: list[Stage], plan: bool = False, prepare: bool = False) -> None:
    trainings = list(maker.trainings(stages))
    if plan:
        maker.plan(trainings)
        return
    if not maker.dry:
        maker.make(list(maker.preparations(stages)))
    if prepare:
        return
    (maker.make if maker.dry else maker.train)(trainings)
    maker.make(list(maker.others(stages)))


if __name__ == "__main__":
    main()
