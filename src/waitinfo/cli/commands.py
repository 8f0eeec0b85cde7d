"""All verbs of `waitinfo`, with their options and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from waitinfo.cli.analysing import analyse
from waitinfo.cli.distilling import distill
from waitinfo.cli.making import prepare, train
from waitinfo.cli.measuring import compare, evaluate
from waitinfo.cli.options import DecodingSettings, DecodingSystem, Device, ModelFolder

app = typer.Typer(
    name="waitinfo",
    help="Simultaneous machine translation: prepare text, train systems, translate live.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(asked: bool) -> None:
    if asked:
        import waitinfo

        print(waitinfo.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Simultaneous machine translation: prepare text, train systems, translate live."""


app.command()(prepare)
app.command()(train)
app.command()(distill)


@app.command()
def translate(
    text: Annotated[
        list[str] | None, typer.Argument(help="Text to translate; each argument separately.")
    ] = None,
    model: ModelFolder = None,
    input: Annotated[
        Path | None, typer.Option(help="A text file; translated line by line.")
    ] = None,
    k: Annotated[
        float | None,
        typer.Option(help="Latency: a larger value waits longer [default: the system's own]."),
    ] = None,
    lag: Annotated[
        float | None,
        typer.Option(help="Hold this lag in words instead of --k (calibrated models)."),
    ] = None,
    show: Annotated[
        str, typer.Option(help="words; path: READ and WRITE; info: coloured by info; json.")
    ] = "words",
    pace: Annotated[
        float, typer.Option(help="Let words arrive at this rate per second, and watch.")
    ] = 0.0,
    system: DecodingSystem = None,
    set_: DecodingSettings = None,
    ending: Annotated[
        str, typer.Option(help="guard: never end before the source does; allow: end at any time.")
    ] = "guard",
    segment: Annotated[
        str,
        typer.Option(
            help="Where sentences end: punctuation; pause or pause:SECONDS; none or none:TOKENS, "
            "a sliding window; auto or auto:TOKENS, punctuation where the text has it, else a "
            "window; whole, with the line."
        ),
    ] = "auto",
    beam: Annotated[int, typer.Option(help="Beam width, for full-sentence models.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Write here what --input becomes, line by line.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted translation to --out.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace --out, or start it again.")
    ] = False,
    best: Annotated[
        int, typer.Option(help="Translations of each line in --out, between tabs.")
    ] = 1,
    scores: Annotated[
        bool, typer.Option("--scores", help="Write log p per token and a tab before each.")
    ] = False,
    temperature: Annotated[
        float, typer.Option(help="Sample translations for --out at this temperature.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample from the best tokens only.")] = 0,
    seed: Annotated[int, typer.Option(help="Random seed of sampling.")] = 1,
    rows: Annotated[
        int | None, typer.Option(help="Sentences of a batch for --out [default: by the device].")
    ] = None,
    device: Device = "cpu",
    dtype: Annotated[
        str,
        typer.Option(
            help="float32, bfloat16, float16, or int8 on a CPU [default: int8 for packed models "
            "on a CPU, bfloat16 for --out on a GPU, else float32].",
            show_default=False,
        ),
    ] = "auto",
    threads: Annotated[
        int, typer.Option(help="CPU threads [default: 1, and all there are for --input].")
    ] = 0,
    server: Annotated[
        str | None, typer.Option(help="Let this server translate, such as http://HOST:8000.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Key to the server.", envvar="WAITINFO_KEY")
    ] = None,
) -> None:
    """Translate text: arguments, a file, or standard input while it arrives.

    From standard input, words are printed as soon as they are due. With --out, a file of any
    length is translated in large batches; it can be interrupted and resumed, and shared by several
    processes: torchrun --nproc-per-node 8 -m waitinfo translate …

    Examples:

        waitinfo translate "Ich muss heute mit meiner Mutter sprechen."

        some-speech-recogniser | waitinfo translate --k 3

        some-speech-recogniser | waitinfo translate --segment pause:0.7

        waitinfo translate --pace 3 --show path "Wo hast du das Buch gekauft?"

        waitinfo translate --model run --input test.de > test.en

        waitinfo translate --model run --input news.de.xz --out news.en.xz --device cuda --beam 4

        waitinfo translate --server http://127.0.0.1:8000 --pace 3 "Guten Morgen zusammen!"
    """
    from waitinfo.cli.translate import Request, run

    run(
        Request(
            text=text or [],
            model=model,
            input=input,
            k=k,
            lag=lag,
            system=system,
            settings=set_ or [],
            show=show,
            pace=pace,
            ending=ending,
            segment=segment,
            beam=beam,
            device=device,
            dtype=dtype,
            threads=threads,
            out=out,
            resume=resume,
            force=force,
            rows=rows,
            best=best,
            scores=scores,
            temperature=temperature,
            top_k=top_k,
            seed=seed,
            server=server,
            key=key,
        )
    )


@app.command()
def serve(
    model: Annotated[
        list[Path] | None,
        typer.Option(help="Model or run folders, or names [default: all bundled models]."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any that is free.")] = 8000,
    streams: Annotated[int, typer.Option(help="Streams at a time, for each model.")] = 32,
    compare: Annotated[
        int,
        typer.Option(help="Streams that may also decode by wait-k, and by full, for the page."),
    ] = 4,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="auto, float32, bfloat16, float16, or int8 on a CPU.")
    ] = "auto",
    threads: Annotated[
        int,
        typer.Option(help="CPU threads of the model [default: all cores but one]."),
    ] = 0,
    keys: Annotated[
        Path | None, typer.Option(help="A TOML file of keys; only clients with one are served.")
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option(help="Pages that may connect, such as https://example.org; * for all."),
    ] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Serve other machines without keys.")
    ] = False,
    idle: Annotated[float, typer.Option(help="Close streams without text for this long.")] = 900.0,
    drain: Annotated[float, typer.Option(help="Seconds that streams get when it stops.")] = 30.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    ray: Annotated[
        bool, typer.Option("--ray", help="Run replicas on Ray Serve: one machine or a cluster.")
    ] = False,
    replicas: Annotated[
        str, typer.Option(help="With --ray: a number, or 1-8 for as many as streams need.")
    ] = "1",
) -> None:
    """Serve live translation: a page, WebSockets and LibreTranslate's interface.

    Open http://127.0.0.1:8000/ and watch. Listens on this machine only, unless told otherwise.

    Examples:

        waitinfo serve

        waitinfo serve --model run --port 8080 --streams 64

        waitinfo serve --host 0.0.0.0 --keys keys.toml --origins https://example.org

        waitinfo serve --ray --replicas 1-8 --streams 64 --host 0.0.0.0 --keys keys.toml
    """
    from waitinfo.cli.serve import Request, run

    run(
        Request(
            models=model or [],
            host=host,
            port=port,
            streams=streams,
            compare=compare,
            device=device,
            dtype=dtype,
            threads=threads,
            keys=keys,
            origins=origins or [],
            open_to_all=open_,
            idle=idle,
            drain=drain,
            log_level=log_level,
            ray=ray,
            replicas=replicas,
        )
    )


app.command()(evaluate)
app.command()(compare)
app.command()(analyse)


@app.command()
def models(
    name: Annotated[str | None, typer.Argument(help="Show this model's card.")] = None,
    pack: Annotated[
        Path | None, typer.Option(help="Write a small copy of this model or run folder …")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="… into this folder.")] = None,
    dtype: Annotated[
        str, typer.Option(help="How weights are stored: int8, float16, bfloat16 or float32.")
    ] = "int8",
) -> None:
    """List the models that come with waitinfo, show one's card, or pack one of your own.

    Examples:

        waitinfo models

        waitinfo models de-en

        waitinfo models --pack run --out my-model --dtype int8
    """
    from waitinfo.cli.models import run

    run(name, pack, out, dtype)
