"""The verb `distill`, with its options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waitinfo.cli.making import Paths
from waitinfo.cli.options import DecodingSettings, Device, Threads


def distill(
    teacher: Annotated[
        Paths, typer.Option(help="Model or run folders; several translate together.")
    ],
    data: Annotated[Path, typer.Option(help="A corpus made by prepare, or a TSV file.")],
    out: Annotated[Path, typer.Option(help="Corpus folder to write, or a .tsv file.")],
    text: Annotated[
        Paths | None, typer.Option(help="Further source text, which has no translation.")
    ] = None,
    mix: Annotated[
        list[str] | None,
        typer.Option(
            help="Share of the pairs of an origin: original=0.5, distilled=1, monotone=1 "
            "[default: all of each]."
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(
            help="Translate by this system: wait-k or wait-info makes monotone pairs "
            "[default: the teacher's own]."
        ),
    ] = None,
    set_: DecodingSettings = None,
    k: Annotated[
        float | None, typer.Option(help="Dial of a simultaneous teacher [default: its own].")
    ] = None,
    lag: Annotated[
        float | None, typer.Option(help="Lag in words instead of --k (calibrated models).")
    ] = None,
    beam: Annotated[
        int | None, typer.Option(help="Beam width [default: 5 for full-sentence teachers].")
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(help="Translations to choose from [default: the beam, or 1 by score]."),
    ] = None,
    choose: Annotated[
        str,
        typer.Option(help="By the teacher's score, or by chrf or bleu against the reference."),
    ] = "score",
    temperature: Annotated[
        float, typer.Option(help="Sample translations instead of a beam.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample from the best tokens only.")] = 0,
    max_tokens: Annotated[int, typer.Option(help="Longest sentence kept, in tokens.")] = 250,
    max_ratio: Annotated[float, typer.Option(help="Largest length ratio kept.")] = 3.0,
    seed: Annotated[int, typer.Option(help="Random seed of shares and samples.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted one.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace --out, or start again.")] = False,
    rows: Annotated[
        int | None, typer.Option(help="Sentences of a batch [default: by the device].")
    ] = None,
    device: Device = "cpu",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, … [default: bfloat16 on a GPU, else float32].")
    ] = "auto",
    threads: Threads = 0,
) -> None:
    """Make training text of a teacher's translations.

    A full-sentence teacher makes `distilled` pairs. A simultaneous one makes `monotone` pairs,
    whose word order follows the source where it can: give a multipath or wait-info model, or
    choose --system. Originals and new pairs are mixed, and each is marked with its origin. To have
    both kinds, distill the result once more: only `original` pairs are translated.

    An interrupted call continues with --resume. Several processes share the work:
    torchrun --nproc-per-node 8 -m waitinfo distill …

    Examples:

        waitinfo distill --teacher teacher --data corpus --out distilled --device cuda

        waitinfo distill --teacher a b --data corpus --out out --beam 8 --choose chrf

        waitinfo distill --teacher run --k 5 --data corpus --mix original=0.5 --out monotone

        waitinfo distill --teacher multipath --system wait-k --k 7 --data corpus --out monotone

        waitinfo distill --teacher teacher --data pairs.tsv.xz --text german.txt --out new.tsv.xz
    """
    from waitinfo.cli.distill import Request, run

    run(
        Request(
            teachers=teacher,
            data=data,
            out=out,
            texts=text or [],
            mix=mix or [],
            system=system,
            settings=set_ or [],
            k=k,
            lag=lag,
            beam=beam,
            best=best,
            choose=choose,
            temperature=temperature,
            top_k=top_k,
            max_tokens=max_tokens,
            max_ratio=max_ratio,
            seed=seed,
            resume=resume,
            force=force,
            rows=rows,
            device=device,
            dtype=dtype,
            threads=threads,
        )
    )
