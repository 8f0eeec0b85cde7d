"""The verb `analyse`, with its options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waitinfo.cli.options import (
    DecodingSettings,
    DecodingSystem,
    Device,
    ModelFolder,
    Precision,
    Threads,
)

Values = list[str]


def analyse(
    source: Annotated[Path, typer.Option(help="Test sentences, one per line.")],
    reference: Annotated[Path, typer.Option(help="Their translations.")],
    out: Annotated[Path, typer.Option(help="Folder for numbers, pictures and report.html.")],
    model: ModelFolder = None,
    what: Annotated[
        str | None,
        typer.Option(
            help="pos, ratio, early-stop, attention, case, difficulty, significance, separated "
            "by commas [default: all that can be made]."
        ),
    ] = None,
    k: Annotated[
        str | None, typer.Option(help="Dial values, for example 1,3,5 [default: 1,3,5,7,9].")
    ] = None,
    system: DecodingSystem = None,
    set_: DecodingSettings = None,
    against: Annotated[
        Path | None, typer.Option(help="A second model or run folder, to compare with.")
    ] = None,
    against_system: Annotated[
        str | None,
        typer.Option(
            help="Decode the second one with this system [default: its own with --against; else "
            "multipath, which is wait-k with any k]."
        ),
    ] = None,
    against_set: Annotated[
        Values | None,
        typer.Option(
            help="An option of the second system, as catch_up=6; with several values, as "
            "catch_up=0,6,10, significance compares with each."
        ),
    ] = None,
    against_k: Annotated[
        str | None, typer.Option(help="Its dial values [default: those of --k, or its own].")
    ] = None,
    source_tags: Annotated[
        Values | None,
        typer.Option(
            help="For pos: a file of tagged source words to train a tagger on and one to test it "
            "on (word, tab, UPOS tag), or spacy:MODEL or stanza:LANGUAGE."
        ),
    ] = None,
    target_tags: Annotated[
        Values | None, typer.Option(help="The same for the target language.")
    ] = None,
    case: Annotated[
        int | None,
        typer.Option(
            help="Line of the sentence for the case study [default: the first short one]."
        ),
    ] = None,
    sentences: Annotated[
        int, typer.Option(help="Analyse so many, spread over the test set [default: all].")
    ] = 0,
    x: Annotated[
        str, typer.Option(help="Latency that systems are compared at: paper.AL, word.LAAL, …")
    ] = "paper.AL",
    device: Device = "cpu",
    dtype: Precision = "auto",
    threads: Threads = 0,
) -> None:
    """Analyse a model: what its info measures, where it stops early, where policies differ.

    Writes one JSON per analysis, its pictures (PNG and SVG), and report.html with all of them.
    The second system is, if none is given, the same model decoded by wait-k. Translations are
    kept in the folder: the same command continues an interrupted analysis.

    Examples:

        waitinfo analyse --model run --source test.de --reference test.en --out analysis

        waitinfo analyse --source test.de --reference test.en --what case --case 7 --out case

        waitinfo analyse --source test.de --reference test.en --what pos --out pos \\
            --source-tags de.train.tsv de.test.tsv --target-tags en.train.tsv en.test.tsv

        waitinfo analyse --model run --against multipath-run --what significance …

        waitinfo analyse --source test.de --reference test.en --what significance --out catch-up \\
            --against-system multipath --against-set catch_up=0,6,8,10
    """
    from waitinfo.cli.analyse import Request, run

    run(
        Request(
            model=model,
            source=source,
            reference=reference,
            out=out,
            what=what,
            k=k,
            system=system,
            settings=set_ or [],
            against=against,
            against_system=against_system,
            against_settings=against_set or [],
            against_k=against_k,
            source_tags=source_tags or [],
            target_tags=target_tags or [],
            case=case,
            sentences=sentences,
            x=x,
            device=device,
            dtype=dtype,
            threads=threads,
        )
    )
