"""`waitinfo prepare`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from waitinfo.cli.flags import Option
from waitinfo.cli.options import Paths
from waitinfo.errors import WaitinfoError

# Settings of the corpus that a recipe may also give.
SETTINGS = (
    "vocab", "separate", "max_tokens", "max_ratio", "keep_duplicates", "holdout", "shard_mib",
    "spoken", "word_errors", "windows", "spoken_windows", "seed",
)  # fmt: skip


@dataclass(kw_only=True)
class PrepareArguments:
    """What `prepare` is given."""

    out: Annotated[Path, Option(help="Folder to write; must be new or empty.")]
    source: Annotated[Paths, Option(help="Source text, one sentence per line.")] = field(
        default_factory=list
    )
    target: Annotated[Paths, Option(help="Its translation, line by line.")] = field(
        default_factory=list
    )
    tsv: Annotated[Paths, Option(help="Or: lines of source, tab, target.")] = field(
        default_factory=list
    )
    vocab: Annotated[
        str | None,
        Option(help="bpe:SIZE, or words:THRESHOLD [default: bpe of a size that fits]."),
    ] = None
    separate: Annotated[
        bool | None, Option("--separate", help="A vocabulary for each language.")
    ] = None
    vocab_from: Annotated[
        Path | None, Option(help="Use the vocabulary of this corpus or model instead.")
    ] = None
    dev_source: Annotated[Paths, Option(help="Text to validate on.")] = field(default_factory=list)
    dev_target: Annotated[Paths, Option(help="Its translation.")] = field(default_factory=list)
    exclude_source: Annotated[
        Paths, Option(help="Test text whose pairs must not be trained on.")
    ] = field(default_factory=list)
    exclude_target: Annotated[Paths, Option(help="Its translation.")] = field(default_factory=list)
    max_tokens: Annotated[
        int | None, Option(help="Longest sentence kept, in tokens [default: 250].")
    ] = None
    max_ratio: Annotated[float | None, Option(help="Largest length ratio kept [default: 4].")] = (
        None
    )
    keep_duplicates: Annotated[
        bool | None, Option("--keep-duplicates", help="Keep repeated pairs.")
    ] = None
    holdout: Annotated[
        int | None,
        Option(help="Pairs held out to validate on where no dev text is given [default: 1000]."),
    ] = None
    shard_mib: Annotated[
        float | None, Option(help="Size of a token shard in MiB [default: 64].")
    ] = None
    spoken: Annotated[
        float | None,
        Option(
            help="Share of the pairs that get a copy with a source as it is spoken [default: 0]."
        ),
    ] = None
    word_errors: Annotated[
        float | None,
        Option(help="Recognition errors in these copies, for each word [default: 0.05]."),
    ] = None
    windows: Annotated[
        float | None,
        Option(
            help="Share of the pairs that are joined with their neighbours, as a copy [default: 0]."
        ),
    ] = None
    spoken_windows: Annotated[
        float | None,
        Option(help="Share of these windows without punctuation [default: 0.5]."),
    ] = None
    in_order: Annotated[
        Paths,
        Option(help="Source or TSV files whose lines follow each other, for windows."),
    ] = field(default_factory=list)
    tagged: Annotated[
        Paths,
        Option(help="Source or TSV files with back-translated sources, to be tagged so."),
    ] = field(default_factory=list)
    config: Annotated[
        Path | None, Option(help="A recipe; its [corpus] sets what is not given here.")
    ] = None
    seed: Annotated[int | None, Option(help="Random seed of samples [default: 1].")] = None
    source_language: Annotated[
        str | None,
        Option(help="Its code, for example de; models trained on the corpus record it."),
    ] = None
    target_language: Annotated[str | None, Option(help="Its code, for example en.")] = None


def prepare(options: PrepareArguments) -> None:
    """Turn parallel text into a corpus to train on.

    Files may be plain or .gz, .xz, .zst, and several can follow one option.

    Examples:

        waitinfo prepare --source train.de.xz --target train.en.xz --out corpus

        waitinfo prepare --tsv pairs.tsv --vocab bpe:8000 --out corpus

        waitinfo prepare --source a.en b.en --target a.vi b.vi --vocab words:5 --out corpus

        waitinfo prepare --tsv a.tsv b.tsv --spoken 0.3 --windows 0.3 --in-order a.tsv --out corpus

        waitinfo prepare --tsv a.tsv back-translated.tsv --tagged back-translated.tsv --out corpus
    """
    from waitinfo.cli.console import progress_bar
    from waitinfo.text import prepare as text
    from waitinfo.text.files import ParallelText
    from waitinfo.text.languages import Languages

    given = {n: value for n in SETTINGS if (value := getattr(options, n)) is not None}
    values = (_recipe(options.config) if options.config else {}) | given
    if not values.get("spoken") and "word_errors" in given:
        raise WaitinfoError("--word-errors: the errors of spoken copies; give --spoken with it")
    if not values.get("windows") and "spoken_windows" in given:
        raise WaitinfoError("--spoken-windows: a share of the windows; give --windows with it")
    if not values.get("windows") and options.in_order:
        raise WaitinfoError("--in-order: for windows of lines that follow; give --windows with it")
    if options.vocab_from:
        values["vocabulary_from"] = _corpus_or_model(options.vocab_from)
    languages = Languages(options.source_language, options.target_language)
    with progress_bar() as progress:
        manifest = text.prepare(
            ParallelText(
                options.source, options.target, options.tsv, options.in_order, options.tagged
            ),
            options.out,
            text.PrepareOptions(**values, languages=languages),
            dev=ParallelText(options.dev_source, options.dev_target),
            exclude=ParallelText(options.exclude_source, options.exclude_target),
            progress=progress,
        )
    _summarise(manifest, options.out)


def _corpus_or_model(path: Path) -> Path:
    """A folder with a vocabulary: a corpus, or a model by whatever names it."""
    from waitinfo.importing.sources import find_source

    try:
        return find_source(path, "float32")
    except WaitinfoError as error:
        raise WaitinfoError(f"--vocab-from {error.sentence}") from None


def _recipe(path: Path) -> dict[str, Any]:
    """A recipe's [corpus], checked and converted."""
    from waitinfo.config import from_mapping, read_toml
    from waitinfo.text.prepare import PrepareOptions

    section = read_toml(path).get("corpus", {})
    if not isinstance(section, dict):
        raise WaitinfoError(f"{path}: corpus must be a section, as [corpus]")
    checked = from_mapping(PrepareOptions, section, "corpus")
    return {name: getattr(checked, name) for name in section if name in SETTINGS}


def _summarise(manifest: dict[str, Any], out: Path) -> None:
    from waitinfo.cli.options import note

    train, dev = manifest["splits"]["train"], manifest["splits"]["dev"]
    vocabulary = manifest["vocabulary"]
    sizes = (
        f"{vocabulary['source']:,} (joint)"
        if vocabulary["joint"]
        else f"{vocabulary['source']:,} and {vocabulary['target']:,}"
    )
    note(
        f"{out}: {train['pairs']:,} pairs to train on, {dev['pairs']:,} to validate on; "
        f"{train['source_tokens']:,} source and {train['target_tokens']:,} target tokens; "
        f"vocabulary {sizes}"
    )
    for kind, count in manifest.get("copies", {}).items():
        note(f"  {count:,} of them: {kind}")
    for what in ("dropped", "dropped_copies"):
        for reason, count in manifest.get(what, {}).items():
            note(f"  {what.replace('_', ' ')} {count:,}: {reason}")
