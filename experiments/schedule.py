"""Jobs, several at a time, within the minutes that there are."""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from experiments.experiment import with_modules

GRACE = 60  # seconds that a job has to stop, which includes a checkpoint


@dataclass(frozen=True, eq=False)
class Job:
    """A command, and how long it takes beside others on the same GPU."""

    name: str
    command: list[str]
    minutes: float = 0.0
    log: Path | None = None
    model: Path | None = None  # that it trains, or finds trained by another job


Process = subprocess.Popen[bytes]
Running = dict[Job, tuple[Process, float]]  # with the time of the start


@dataclass
class Schedule:
    work: Path
    jobs: int = 2  # at a time
    minutes: float = 0.0  # for everything; 0 for no limit
    began: float = field(default_factory=time.monotonic)
    ratios: list[float] = field(default_factory=list)  # of taken to estimated time, ended jobs

    # One after the other

    def in_order(self, jobs: Sequence[Job], once: bool = True) -> None:
        """`once`: a note says that a job has finished, so that it is not done again."""
        for job in jobs:
            if once and self.note(job).exists():
                continue
            print(f"{job.name}: {shlex.join(job.command)}", file=sys.stderr)
            if code := subprocess.run(job.command, check=False, env=with_modules()).returncode:
                sys.exit(f"failed with status {code}; the same command continues from here")
            if once:
                self.note(job).parent.mkdir(parents=True, exist_ok=True)
                self.note(job).write_text(json.dumps(job.command) + "\n", "utf-8")

    def note(self, job: Job) -> Path:
        """The note that a command has finished; another command has another one."""
        return (
            self.work / "done" / hashlib.sha256(json.dumps(job.command).encode()).hexdigest()[:16]
        )

    # Several at a time

    def together(self, jobs: Sequence[Job]) -> None:
        """Make the jobs; one that fails does not keep others from running."""
        waiting = list(jobs)
        running: Running = {}
        states: dict[str, list[str]] = {"failed": [], "stopped": [], "not started": []}
        with stopping(running):
            while waiting or running:
                while len(running) < self.jobs and (job := self.next_job(waiting, running)):
                    waiting.remove(job)
                    if self.in_time(job):
                        running[job] = self.start(job), time.monotonic()
                    else:
                        states["not started"].append(job.name)
                over = self.over(running)
                for job in [job for job in running if running[job][0].poll() is not None]:
                    state = self.ended(job, *running.pop(job), over)
                    states.get(state, []).append(f"{job.name} ({job.log})" if job.log else job.name)
        for state in ("not started", "stopped"):
            if names := states[state]:
                self.say(f"{state}, for lack of time: {', '.join(names)}")
        if names := states["failed"]:
            sys.exit(f"failed: {', '.join(names)}; the same command tries again")

    @staticmethod
    def next_job(waiting: Sequence[Job], running: Running) -> Job | None:
        """The first whose model no running job trains: experiments share models."""
        busy = {job.model for job in running if job.model}
        return next((job for job in waiting if job.model not in busy), None)

    def start(self, job: Job) -> Process:
        self.say(f"starting: {job.name}")
        threads = max(1, (os.cpu_count() or 1) // self.jobs)
        given = {"OMP_NUM_THREADS": str(threads), **with_modules()}
        if job.log is None:
            return subprocess.Popen(job.command, env=given, process_group=0)
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("a") as log:
            return subprocess.Popen(job.command, env=given, process_group=0, stdout=log, stderr=log)

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
        elif job.minutes:
            self.ratios.append(taken / job.minutes)
        self.say(f"{state} in {taken:.1f} minutes: {job.name}")
        return state

    def in_time(self, job: Job) -> bool:
        return not self.minutes or self.spent() + self.pace() * job.minutes <= self.minutes

    def spent(self) -> float:
        return (time.monotonic() - self.began) / 60

    def pace(self) -> float:
        """Time taken per estimated time, as the last jobs had it."""
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
    """If this process is stopped, stop what it runs, too."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        stop(running)
        signal.signal(signal.SIGTERM, before)


def stop(running: Running) -> None:
    """Ask jobs to end; kill those that do not, with all they started."""
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
