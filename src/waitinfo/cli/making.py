"""The verbs that make models: `prepare` and `train`, with their options and help."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from waitinfo.errors import WaitinfoError
from waitinfo.model.config import SIZES
from waitinfo.systems import SYSTEMS

Paths = list[Path]


def one_of(names: Iterable[str]) -> str:
    """`a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}"


def prepare(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder to write; must be new or empty.")],
    source: Annotated[
        Paths | None, typer.Option(help="Source text, one sentence per line.")
    ] = None,
    target: Annotated[Paths | None, typer.Option(help="Its translation, line by line.")] = None,
    tsv: Annotated[Paths | None, typer.Option(help="Or: lines of source, tab, target.")] = None,
    vocab: Annotated[str, typer.Option(help="bpe:SIZE, or words:THRESHOLD.")] = "bpe:16000",
    separate: Annotated[
        bool, typer.Option("--separate", help="A vocabulary for each language.")
    ] = False,
    vocab_from: Annotated[
        Path | None, typer.Option(help="Use the vocabulary of this corpus or model instead.")
    ] = None,
    dev_source: Annotated[Paths | None, typer.Option(help="Text to validate on.")] = None,
    dev_target: Annotated[Paths | None, typer.Option(help="Its translation.")] = None,
    exclude_source: Annotated[
        Paths | None, typer.Option(help="Test text whose pairs must not be trained on.")
    ] = None,
    exclude_target: Annotated[Paths | None, typer.Option(help="Its translation.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest sentence kept, in tokens.")] = 250,
    max_ratio: Annotated[float, typer.Option(help="Largest length ratio kept.")] = 4.0,
    keep_duplicates: Annotated[
        bool, typer.Option("--keep-duplicates", help="Keep repeated pairs.")
    ] = False,
    holdout: Annotated[
        int, typer.Option(help="Pairs held out to validate on where no dev text is given.")
    ] = 1000,
    shard_mib: Annotated[float, typer.Option(help="Size of a token shard in MiB.")] = 64.0,
    spoken: Annotated[
        float,
        typer.Option(help="Share of the pairs that get a copy with a source as it is spoken."),
    ] = 0.0,
    word_errors: Annotated[
        float, typer.Option(help="Recognition errors in these copies, for each word.")
    ] = 0.05,
    windows: Annotated[
        float,
        typer.Option(help="Share of the pairs that are joined with their neighbours, as a copy."),
    ] = 0.0,
    spoken_windows: Annotated[
        float, typer.Option(help="Share of these windows without punctuation.")
    ] = 0.5,
    in_order: Annotated[
        Paths | None,
        typer.Option(help="Source or TSV files whose lines follow each other, for --windows."),
    ] = None,
    tagged: Annotated[
        Paths | None,
        typer.Option(help="Source or TSV files with back-translated sources, to be tagged so."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A recipe; its [corpus] sets what is not given here.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of samples.")] = 1,
    source_language: Annotated[
        str | None,
        typer.Option(help="Its code, for example de; models trained on the corpus record it."),
    ] = None,
    target_language: Annotated[str | None, typer.Option(help="Its code, for example en.")] = None,
) -> None:
    """Turn parallel text into a corpus to train on.

    Files may be plain or .gz, .xz, .zst, and several can follow one option.

    Examples:

        waitinfo prepare --source train.de.xz --target train.en.xz --out corpus

        waitinfo prepare --tsv pairs.tsv --vocab bpe:8000 --out corpus

        waitinfo prepare --source a.en b.en --target a.vi b.vi --vocab words:5 --out corpus

        waitinfo prepare --tsv a.tsv b.tsv --spoken 0.3 --windows 0.3 --in-order a.tsv --out corpus

        waitinfo prepare --tsv a.tsv back-translated.tsv --tagged back-translated.tsv --out corpus
    """
    from waitinfo.cli.display import progress_bar, summarise_corpus
    from waitinfo.text.files import ParallelText
    from waitinfo.text.languages import Languages
    from waitinfo.text.prepare import PrepareOptions
    from waitinfo.text.prepare import prepare as run

    values: dict[str, Any] = {
        "vocab": vocab,
        "separate": separate,
        "vocabulary_from": _corpus_or_model(vocab_from) if vocab_from else None,
        "max_tokens": max_tokens,
        "max_ratio": max_ratio,
        "keep_duplicates": keep_duplicates,
        "holdout": holdout,
        "shard_mib": shard_mib,
        "spoken": spoken,
        "word_errors": word_errors,
        "windows": windows,
        "spoken_windows": spoken_windows,
        "seed": seed,
    }
    if config is not None:
        values |= corpus_settings(config, not_given(context))
    if not values["spoken"] and "word_errors" not in not_given(context):
        raise WaitinfoError("--word-errors: the errors of spoken copies; give --spoken with it")
    if not values["windows"] and "spoken_windows" not in not_given(context):
        raise WaitinfoError("--spoken-windows: a share of the windows; give --windows with it")
    if not values["windows"] and in_order:
        raise WaitinfoError("--in-order: for windows of lines that follow; give --windows with it")
    options = PrepareOptions(**values, languages=Languages(source_language, target_language))
    with progress_bar() as progress:
        manifest = run(
            ParallelText(source or [], target or [], tsv or [], in_order or [], tagged or []),
            out,
            options,
            dev=ParallelText(dev_source or [], dev_target or []),
            exclude=ParallelText(exclude_source or [], exclude_target or []),
            progress=progress,
        )
    summarise_corpus(manifest, out)


def _corpus_or_model(path: Path) -> Path:
    """A folder with a vocabulary, or a bundled model by its name."""
    from waitinfo.trained.folder import bundled_models

    models = bundled_models()
    if path.exists():
        return path
    if str(path) not in models:
        names = ", ".join(models)
        raise WaitinfoError(
            f"--vocab-from {path}: no such corpus or model; bundled models: {names}"
        )
    return models[str(path)].folder


def not_given(context: typer.Context) -> set[str]:
    """Names of the options that have their default value."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source and source.name == "DEFAULT"}


def corpus_settings(recipe: Path, wanted: set[str]) -> dict[str, Any]:
    """Those of a recipe's [corpus] that are wanted, checked and converted."""
    from waitinfo.config import from_mapping, read_toml
    from waitinfo.text.prepare import PrepareOptions

    section = read_toml(recipe).get("corpus", {})
    if not isinstance(section, dict):
        raise WaitinfoError(f"{recipe}: corpus must be a section, as [corpus]")
    checked = from_mapping(PrepareOptions, section, "corpus")
    return {name: getattr(checked, name) for name in section if name in wanted}


def train(
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    system: Annotated[
        str | None, typer.Option(help=f"The system to train: {one_of(SYSTEMS)}.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A corpus made by prepare.")] = None,
    size: Annotated[str | None, typer.Option(help=f"Size of the model: {one_of(SIZES)}.")] = None,
    config: Annotated[Path | None, typer.Option(help="A recipe in TOML.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, over the recipe.")
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option(help="Finish within this time, with the learning rate decayed.")
    ] = None,
    pause_minutes: Annotated[
        float | None, typer.Option(help="Stop after this time; continue later with --resume.")
    ] = None,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Compile the model first; worth it for long runs.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, … [default: a GPU if there is one].")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads [default: as many as the model can use].")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
) -> None:
    """Train a system on a corpus.

    The run folder gets the best and the last model (`best`, `last`), checkpoints to resume from,
    `metrics.jsonl` and `run.json`. On several GPUs, start it with torchrun:
    torchrun --nproc-per-node 8 -m waitinfo train …

    Examples:

        waitinfo train --system wait-info --data corpus --out run --size small

        waitinfo train --system wait-k --set system.k=5 --data corpus --out run --max-minutes 30

        waitinfo train --config recipes/tiny.toml --data corpus --out run

        waitinfo train --out run --resume
    """
    from waitinfo.cli.display import training_display
    from waitinfo.config import apply_settings, read_toml
    from waitinfo.training import train as run
    from waitinfo.training.run import merge

    flags: dict[str, Any] = {
        "data": None if data is None else str(data.absolute()),
        "size": size,
        "system": {"name": system} if system else None,
        "training": {
            name: value
            for name, value in (
                ("max_minutes", max_minutes),
                ("pause_minutes", pause_minutes),
                ("compile", compile_ or None),
                ("device", device),
                ("threads", threads),
            )
            if value is not None
        }
        or None,
    }
    values = read_toml(config) if config else {}
    values = merge(values, {name: value for name, value in flags.items() if value is not None})
    values = apply_settings(values, set_ or [])
    run(values, out, resume, training_display(), config)
