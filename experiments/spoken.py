"""The bundled models on text as people speak it: results/models/spoken.md.

    python -m experiments.spoken conditions DATA
    python -m experiments.spoken windows DATA
    python -m experiments.spoken hour DATA
    python -m experiments.spoken lag DATA --work WORK

`conditions` scores each model on each set clean, as recognisers give it, and as whole documents.
`windows` compares windows of several sizes on documents of the dev sets without sentence ends.
`hour` translates all sets, joined and unpunctuated, as one stream. `lag` calibrates a copy of each
model (in WORK) on the dev sets, then holds lags on the sets, beside streams with a fixed dial.
Points that exist are kept, so that the same command continues an interrupted one; --overwrite
replaces those of other weights. The tables on the page are drawn again after every command. DATA
holds SET.de and SET.en; a model says which of them it translates from.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.pages.bundled import WINDOWS, spoken
from experiments.pages.tables import RESULTS, ROOT, write
from waitinfo.errors import WaitinfoError
from waitinfo.text.files import read_lines
from waitinfo.text.languages import Languages
from waitinfo.trained.calibration import FILE as CALIBRATION
from waitinfo.trained.folder import CONFIG, bundled_models, find_model, fingerprint, read_config

WAITINFO = [sys.executable, "-m", "waitinfo"]
SETS = ["newstest2015", "europarl.test-german"]
DEV = ["newstest2013", "europarl.dev-german"]
CALIBRATED = "1,2,3,4,5,6,7,9,11"  # dial values
FIXED = "2,3,4,5,6,7,9"  # dial values beside held lags
STREAM = "100"  # lines of a stream that holds a lag


@dataclass(frozen=True)
class Model:
    """A model by its name and folder, and the sides that it translates from and into."""

    name: str
    folder: Path
    source: str
    target: str

    @classmethod
    def find(cls, text: str) -> Model:
        folder = find_model(text)
        languages = Languages.read(read_config(folder), folder / CONFIG)
        if not languages.source or not languages.target:
            raise WaitinfoError(f"{folder}: does not say which languages it translates")
        return cls(folder.resolve().name, folder, languages.source, languages.target)


@dataclass(frozen=True)
class Job:
    """What was asked for."""

    given: argparse.Namespace
    folder: Path  # for texts that are cut or joined

    def text(self, names: list[str], side: str, lines: int | None, joined: str) -> Path:
        """A side of a set, or of some sets joined, each up to a number of lines."""
        paths = [self.given.data / f"{name}.{side}" for name in names]
        if len(paths) == 1 and lines is None:
            return paths[0]
        out = self.folder / f"{joined}{'' if lines is None else f'-{lines}'}.{side}"
        cut = (line for path in paths for line in list(read_lines(path))[:lines])
        out.write_text("".join(f"{line}\n" for line in cut), "utf-8")
        return out

    def call(self, *command: object) -> None:
        """Run a command, whose progress is shown, or print it."""
        words = [str(word) for word in command]
        if self.given.dry_run:
            print(shlex.join(words))
        elif code := subprocess.run(words, check=False).returncode:
            sys.exit(code)

    def evaluate(self, model: Model, texts: tuple[Path, Path], *options: object) -> None:
        self.call(*WAITINFO, "evaluate", "--model", model.folder, *self.computing,
                  "--source", texts[0], "--reference", texts[1], *options)  # fmt: skip

    @property
    def computing(self) -> list[str]:
        return ["--device", self.given.device, "--threads", str(self.given.threads)]

    def points(self, model: Model) -> list[object]:
        return [
            "--out",
            self.results / f"{self.given.what}.jsonl",
            "--run",
            model.name,
            *["--overwrite"] * self.given.overwrite,
        ]

    @property
    def results(self) -> Path:
        folder: Path = self.given.results
        return folder / "models"

    def pair(self, model: Model, name: str) -> tuple[Path, Path]:
        source, target = (
            self.text([name], side, self.given.lines, name) for side in (model.source, model.target)
        )
        return source, target

    # The experiments

    def conditions(self, model: Model) -> None:
        for name in self.given.sets:
            self.evaluate(model, self.pair(model, name), "--k", self.given.k, "--condition", "all",
                          *self.points(model))  # fmt: skip

    def windows(self, model: Model) -> None:
        for name in DEV:
            for tokens in WINDOWS:
                self.evaluate(model, self.pair(model, name), "--k", self.given.k,
                              "--condition", "documents-lower", "--segment", f"none:{tokens}",
                              "--name", tokens, *self.points(model))  # fmt: skip

    def hour(self, model: Model) -> None:
        sides = [[self.given.data / f"{name}.{side}" for name in self.given.sets]
                 for side in (model.source, model.target)]  # fmt: skip
        lines = [] if self.given.lines is None else ["--lines", self.given.lines]
        self.call(sys.executable, ROOT / "benchmarks" / "long_stream.py", "--model", model.folder,
                  "--source", *sides[0], "--reference", *sides[1], "--k", self.given.k, *lines,
                  *self.computing, "--segmented",
                  "--out", f"{self.results / 'long-stream.json'}:{model.name}")  # fmt: skip

    def lag(self, model: Model) -> None:
        copy = replace(model, folder=self.given.work / model.name)
        self.calibrate(model, copy)
        for name in self.given.sets:
            texts, points = self.pair(model, name), self.points(model)
            self.evaluate(copy, texts, "--lag", self.given.lags, *points)
            streams = ["--documents", STREAM, *points]
            self.evaluate(copy, texts, "--lag", self.given.lags, *streams)
            self.evaluate(copy, texts, "--k", FIXED, *streams)

    def calibrate(self, model: Model, copy: Model) -> None:
        """Calibrate a copy of a model, unless it is one and calibrated."""
        if (copy.folder / CALIBRATION).exists() and fingerprint(copy.folder) == fingerprint(
            model.folder
        ):
            return
        if not self.given.dry_run:
            shutil.rmtree(copy.folder, ignore_errors=True)
            shutil.copytree(model.folder, copy.folder)
        dev = [self.text(DEV, side, self.given.dev_lines, "dev")
               for side in (model.source, model.target)]  # fmt: skip
        self.evaluate(copy, (dev[0], dev[1]), "--calibrate", "--k", CALIBRATED)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["conditions", "windows", "hour", "lag"])
    parser.add_argument("data", type=Path, help="folder with the sets")
    parser.add_argument("--models", nargs="+", help="folders or names [default: all bundled]")
    parser.add_argument("--sets", nargs="+", default=SETS, help="[default: %(default)s]")
    parser.add_argument("--lines", type=int, help="only the first lines of each set")
    parser.add_argument("--dev-lines", type=int, default=250, help="of each set for calibration")
    parser.add_argument("--k", type=float, default=5.0)
    parser.add_argument("--lags", default="4,5,6", help="lags that are asked for")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path("work"), help="for calibrated models")
    parser.add_argument("--overwrite", action="store_true", help="replace existing points")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    return parser.parse_args()


def run(given: argparse.Namespace) -> None:
    if not given.data.is_dir():
        raise WaitinfoError(f"{given.data}: give the folder with the sets")
    models = [Model.find(text) for text in given.models or bundled_models()]
    with tempfile.TemporaryDirectory() as folder:
        job = Job(given, Path(folder))
        job.results.mkdir(parents=True, exist_ok=True)
        for model in models:
            getattr(job, given.what)(model)
    if not given.dry_run:
        write(spoken(given.results), given.results)


def main() -> None:
    try:
        run(arguments())
    except WaitinfoError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
