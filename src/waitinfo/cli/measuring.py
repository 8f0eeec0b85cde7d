"""The verbs `evaluate` and `compare`, with their options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waitinfo.cli.making import Paths
from waitinfo.cli.options import (
    DecodingSettings,
    DecodingSystem,
    Device,
    ModelFolder,
    Precision,
    Threads,
)


def evaluate(
    source: Annotated[Path, typer.Option(help="Test sentences, one per line.")],
    reference: Annotated[Path, typer.Option(help="Their translations.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for one JSON per point, or a .jsonl file to add points to."),
    ] = None,
    model: ModelFolder = None,
    k: Annotated[
        str | None, typer.Option(help="Dial values, for example 1,3,5 [default: the system's own].")
    ] = None,
    lag: Annotated[
        str | None, typer.Option(help="Lags in words instead, for example 3,4 (calibrated models).")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Store in the model which dial has which lag.")
    ] = False,
    documents: Annotated[
        str | None,
        typer.Option(
            help="One stream for each document: all, lines per document, or a file of names."
        ),
    ] = None,
    segment: Annotated[
        str, typer.Option(help="How documents are divided: as translate --segment.")
    ] = "auto",
    condition: Annotated[
        str | None,
        typer.Option(help="clean, lower, errors-N, documents, documents-lower, …, or all."),
    ] = None,
    system: DecodingSystem = None,
    set_: DecodingSettings = None,
    ending: Annotated[str, typer.Option(help="guard or allow.")] = "guard",
    beam: Annotated[int, typer.Option(help="Beam width, for full-sentence models.")] = 1,
    name: Annotated[
        str | None, typer.Option(help="Name of the curve [default: the system's].")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="What to write at the point in a plot [default: k].")
    ] = None,
    run_name: Annotated[
        str | None,
        typer.Option("--run", help="Name of the training run [default: the run folder's name]."),
    ] = None,
    save_text: Annotated[
        bool | None,
        typer.Option(
            "--save-text/--no-save-text",
            help="Keep translations and instances.log [default: where --out is a folder].",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Recompute existing points.")
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(help="Words per second: also measure latency with computation at this rate."),
    ] = None,
    timed: Annotated[int, typer.Option(help="Sentences to measure it on.")] = 100,
    comet: Annotated[bool, typer.Option("--comet", help="Score COMET too (an extra).")] = False,
    device: Device = "cpu",
    dtype: Precision = "auto",
    threads: Threads = 0,
) -> None:
    """Score a model on a test set: quality and latency, one point for each dial value.

    In a folder, every point gets NAME-K.json with all metrics, and a folder NAME-K with the
    translations and the `instances.log` that SimulEval reads. A file in .jsonl gets one line per
    point. The same command continues an interrupted evaluation.

    Examples:

        waitinfo evaluate --model run --source test.de --reference test.en --k 1,3,5 --out results

        waitinfo evaluate --model run --source test.de --reference test.en --rate 2.5 --out results

        waitinfo evaluate --model run --source test.de --reference test.en --out points.jsonl

        waitinfo evaluate --model multipath --system adaptive-wait-k --k 0.2,0.5 …

        waitinfo evaluate --model run --source dev.de --reference dev.en --calibrate

        waitinfo evaluate --model run --source t.de --reference t.en --lag 3,4 --out results

        waitinfo evaluate --model run --source t.de --reference t.en --documents 25 --out results

        waitinfo evaluate --model run --source t.de --reference t.en --condition all --out results
    """
    from waitinfo.cli.evaluate import Request, run

    run(
        Request(
            model=model,
            source=source,
            reference=reference,
            out=out,
            k=k,
            lag=lag,
            calibrate=calibrate,
            documents=documents,
            segment=segment,
            condition=condition,
            system=system,
            settings=set_ or [],
            ending=ending,
            beam=beam,
            name=name,
            label=label,
            run=run_name,
            save_text=save_text,
            overwrite=overwrite,
            rate=rate,
            timed=timed,
            comet=comet,
            device=device,
            dtype=dtype,
            threads=threads,
        )
    )


def compare(
    results: Annotated[Paths, typer.Argument(help="Folders, .json or .jsonl files of evaluate.")],
    out: Annotated[Path | None, typer.Option(help="Figure to draw: .svg, .png or .pdf.")] = None,
    x: Annotated[
        str, typer.Option(help="Latency on the x-axis: paper.AL, word.LAAL, …")
    ] = "paper.AL",
    y: Annotated[
        str | None,
        typer.Option(help="Quality on the y-axis: BLEU, BLEU_lowercase, chrF, … [default: BLEU]."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="Latencies to compare at, for example 3,5,8 [default: round numbers]."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Curve that others are compared with [default: the first].")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="These curves in this order, for example wait-info,multipath."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="Only points with this FIELD=VALUE: set=newstest2015, seed=1,2, …"),
    ] = None,
    published: Annotated[
        str | None,
        typer.Option(help="Also show the paper's figures: 'de-en base', 'en-vi small', …"),
    ] = None,
    paired: Annotated[
        bool, typer.Option("--paired", help="Test differences for significance (bootstrap).")
    ] = False,
    labels: Annotated[
        bool, typer.Option("--labels/--no-labels", help="Write dial values at the points.")
    ] = True,
    bands: Annotated[
        bool, typer.Option("--bands/--no-bands", help="Show confidence intervals.")
    ] = True,
    title: Annotated[str, typer.Option(help="Title of the figure.")] = "",
) -> None:
    """Compare systems: curves, quality at equal latency, area between curves.

    Points of one name are a curve. Points with the same settings from several runs (seeds) are
    averaged, and the band shows their spread; for a single run it is the bootstrap interval.

    Examples:

        waitinfo compare results --out curves.svg

        waitinfo compare results --x word.LAAL --y chrF --at 3,5,8 --baseline multipath

        waitinfo compare points.jsonl --where set=newstest2015 --where run=big --out curves.png

        waitinfo compare results --published 'de-en base' --out curves.png
    """
    from waitinfo.cli.compare import Request, run

    run(
        Request(
            results=results,
            out=out,
            x=x,
            y=y,
            at=at,
            baseline=baseline,
            only=only,
            where=where or [],
            published=published,
            paired=paired,
            labels=labels,
            bands=bands,
            title=title,
        )
    )
