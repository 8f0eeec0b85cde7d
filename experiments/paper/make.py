"""Make tables and figures of the paper: `python experiments/paper/make.py TARGET … DATA WORK`.

targets.toml has the targets and their stages. DATA holds the folders of text (de-en, en-vi,
multi30k-de-en, upos). WORK gets corpora, models, logs, analyses, and a note for every finished
stage: the same command continues with the first stage that is not finished. Points and figures go
to results/, or to --results.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RUN = ROOT / "experiments" / "run.py"
Stage = dict[str, Any]


def read_targets() -> dict[str, dict[str, Any]]:
    return tomllib.loads((HERE / "targets.toml").read_text("utf-8"))


@dataclass
class Maker:
    data: Path
    work: Path
    results: Path
    device: str = "cuda"
    jobs: int = 2
    settings: list[str] = field(default_factory=list)  # of every training run, for rehearsals
    limit: int = 0  # sentences of an analysis; 0 for all
    dry: bool = False

    def commands(self, stage: Stage) -> Iterator[list[str]]:
        """The commands of a stage."""
        if "experiment" in stage:
            for seed in stage["seeds"]:
                yield self.experiment(stage, seed)
        elif "analyse" in stage:
            yield self.analysis(stage)
        else:
            yield self.filled(stage["script"])

    def experiment(self, stage: Stage, seed: int) -> list[str]:
        name = stage["experiment"]
        results = self.results / stage.get("results", name)
        work = self.work / stage["data"]
        command = [sys.executable, str(RUN), name, str(self.data / stage["data"]), str(work),
                   str(results), "--device", stage.get("device", self.device),
                   "--seed", str(seed), "--jobs", str(self.jobs)]  # fmt: skip
        if "runs" in stage:
            command += ["--runs", stage["runs"]]
        return [*command, "--set", *self.settings] if self.settings else command

    def analysis(self, stage: Stage) -> list[str]:
        model = (
            [] if stage["analyse"] == "bundled" else ["--model", str(self.work / stage["analyse"])]
        )
        source, reference = (f"{self.data / stage['set']}.{side}" for side in ("de", "en"))
        limit = ["--sentences", str(self.limit)] if self.limit else []
        return [sys.executable, "-m", "waitinfo", "analyse", *model, "--source", source,
                "--reference", reference, "--out", str(self.work / stage["out"]),
                *self.filled(stage.get("options", [])), *limit]  # fmt: skip

    def filled(self, words: list[str]) -> list[str]:
        places = {"data": self.data, "work": self.work, "results": self.results, "root": ROOT,
                  "python": sys.executable}  # fmt: skip
        return [word.format(**places) for word in words]

    def make(self, name: str, target: dict[str, Any]) -> None:
        for number, stage in enumerate(target["stages"], 1):
            for command in self.commands(stage):
                if self.dry:
                    print(shlex.join(command))
                    continue
                mark = self.mark(command)
                if mark.exists():
                    continue
                print(f"{name}, stage {number}: {shlex.join(command)}", file=sys.stderr)
                if code := subprocess.run(command, check=False).returncode:
                    sys.exit(f"failed with status {code}; the same command continues from here")
                mark.write_text(json.dumps(command) + "\n", "utf-8")

    def mark(self, command: list[str]) -> Path:
        """The note that a command has finished; another command has another one."""
        folder = self.work / "done"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / hashlib.sha256(json.dumps(command).encode()).hexdigest()[:16]


def main() -> None:
    targets = read_targets()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="+", help=f"{', '.join(targets)}, or all")
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time [default: 2]")
    parser.add_argument("--set", nargs="+", default=[], help="settings of every training run")
    parser.add_argument("--sentences", type=int, default=0, help="of an analysis [default: all]")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    given = parser.parse_args()
    names = list(targets) if given.target == ["all"] else given.target
    for name in names:
        if name not in targets:
            sys.exit(f"unknown target '{name}'; choose from: {', '.join(targets)}, all")
    maker = Maker(given.data.absolute(), given.work.absolute(), given.results.absolute(),
                  given.device, given.jobs, given.set, given.sentences, given.dry_run)  # fmt: skip
    for name in names:
        maker.make(name, targets[name])


if __name__ == "__main__":
    main()
