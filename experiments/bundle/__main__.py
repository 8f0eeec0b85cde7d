"""Make a trained model ready to be bundled: `python -m experiments.bundle RUN NAME DATA`.

    python -m experiments.bundle WORK/models/de-en-student de-en DATA
    python -m experiments.bundle WORK/models/en-de-student en-de DATA --device cuda --install

Packs the model as int8, calibrates it on newstest2013, scores it on newstest2015 and the German
part of Europarl's test set at every K, as written, spoken and unsegmented, judges everyday
sentences (chains/bundle.toml has the commands), and writes its card. The model is then in
RUN/bundle/packed (or --work), its figures are in results/models, and --install copies it into the
package. The same command continues an interrupted one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from experiments.bundle.card import Facts, make_card
from experiments.chain import Chain, read_chain, settings
from experiments.experiment import summarise_run
from experiments.pages.bundled import bundled
from experiments.pages.tables import RESULTS, ROOT, numbers_of, write
from waitinfo.evaluation.points import Point, read_file
from waitinfo.trained.folder import fingerprint, read_config, resolve_model

MODELS = ROOT / "src" / "waitinfo" / "models"
LARGEST = 25e6  # bytes of a bundled model


def make_chain(given: argparse.Namespace, languages: dict[str, str]) -> Chain:
    """The stages of chains/bundle.toml, for this model."""
    values, stages = read_chain("bundle")
    values = settings(given.set, values)
    filled = {"RUN": str(given.run), "NAME": given.name, "SOURCE": languages["source"],
              "TARGET": languages["target"],
              "WEIGHTS": fingerprint(resolve_model(given.run))}  # fmt: skip
    for word, text in filled.items():
        values = {key: value.replace(word, text) for key, value in values.items()}
    return Chain(stages, values, given.data, given.work, given.device, given.dry_run)


def languages_of(run: Path) -> dict[str, str]:
    languages = read_config(resolve_model(run)).get("languages", {})
    if set(languages) != {"source", "target"}:
        sys.exit(f"{run}: config.json must name both languages; see `waitinfo prepare --help`")
    return languages


def read_work(work: Path) -> list[Point]:
    """All points of the stages."""
    return [
        point for path in sorted((work / "points").glob("*.jsonl")) for point in read_file(path)
    ]


def measurements(given: argparse.Namespace) -> dict[str, Any]:
    """Other figures of the model: everyday sentences and its training."""
    found = {
        name: json.loads((given.work / f"{name}.json").read_text("utf-8"))
        for name in ("everyday", "everyday-spoken")
    }
    found["before"] = [summarise_run(given.name, 1, folder) for folder in given.before]
    folder = given.about or given.run
    if (folder / "metrics.jsonl").exists():
        found["training"] = summarise_run(given.name, 1, folder)
    else:
        print(f"{folder}: no metrics.jsonl, so the card says nothing about updates and time")
    return found


def publish(name: str, points: list[Point], measured: dict[str, Any], results: Path) -> None:
    """Put the model's figures in the place of its older ones; those of other models stay."""
    path = results / "models" / "bundled.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    others = read_file(path) if path.exists() else []
    kept = [point for point in others if point["run"] != name]
    lines = [
        json.dumps(point, separators=(",", ":"), ensure_ascii=False) for point in kept + points
    ]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    all_measured = numbers_of(results, "bundled") | {name: measured}
    text = json.dumps(all_measured, indent=2, sort_keys=True)
    path.with_suffix(".json").write_text(f"{text}\n", "utf-8")
    write(bundled(results), results)


def install(packed: Path, folder: Path) -> None:
    """Copy the model into the package, in the place of an older one."""
    size = sum(path.stat().st_size for path in packed.iterdir())
    if size > LARGEST:
        sys.exit(f"{packed}: {size / 1e6:.1f} MB; a bundled model has {LARGEST / 1e6:.0f} at most")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(packed, partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    print(f"{folder}: {size / 1e6:.1f} MB")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run or model folder")
    parser.add_argument("name", help="the model's name in the package, as de-en")
    parser.add_argument("data", type=Path, help="has the folder de-en")
    parser.add_argument("--work", type=Path, help="what is made [default: RUN/bundle]")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--about", type=Path, help="has run.json and metrics.jsonl [default: RUN]")
    parser.add_argument("--before", type=Path, action="append", default=[],
                        help="the run whose weights RUN went on from")  # fmt: skip
    parser.add_argument("--stages", help="only these and what they need, as calibrated,everyday")
    parser.add_argument("--again", action="append", default=[], help="a stage to do again")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--install", action="store_true", help="copy it into src/waitinfo/models")
    parser.add_argument("--dry-run", action="store_true", help="print the commands to run")
    given = parser.parse_args()
    for folder in given.before:
        if not (folder / "metrics.jsonl").exists():
            sys.exit(f"--before {folder}: no metrics.jsonl there")
    given.work = given.work or given.run / "bundle"
    return given


def forget_older(chain: Chain) -> None:
    """Have everything done again if RUN was trained again since."""
    for name in ("packed", "unpacked"):
        record = chain.record(chain.find(name))
        if record.exists() and chain.values["weights"] not in record.read_text("utf-8"):
            print(f"{chain.values['run']}: has other weights now; starting again with '{name}'")
            chain.forget(name)


def run_stages(chain: Chain, given: argparse.Namespace) -> None:
    if not given.dry_run:
        forget_older(chain)
    chain.run_all(given.stages.split(",") if given.stages else None, given.again)


def main() -> None:
    given = parse()
    languages = languages_of(given.run)
    run_stages(make_chain(given, languages), given)
    if given.dry_run or given.stages:
        return
    packed, points, measured = given.work / "packed", read_work(given.work), measurements(given)
    publish(given.name, points, measured, given.results)
    facts = Facts(given.name, languages, packed, points, measured)
    (packed / "README.md").write_text(make_card(facts, given.work / "examples.md"), "utf-8")
    print(f"{packed}: read its README.md before you bundle it")
    if given.install:
        install(packed, MODELS / given.name)


if __name__ == "__main__":
    main()
