"""`waitinfo models`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from waitinfo.cli.flags import Argument, Option
from waitinfo.cli.options import PluginOptions
from waitinfo.errors import WaitinfoError, unknown

if TYPE_CHECKING:
    from waitinfo.trained.folder import BundledModel


@dataclass(kw_only=True)
class ModelsArguments(PluginOptions):
    """What `models` is given."""

    name: Annotated[str | None, Argument(help="Show the card of this model.")] = None
    pack: Annotated[
        Path | None, Option(help="Write a small copy of this model or run folder …")
    ] = None
    published: Annotated[
        Path | None,
        Option(
            "--import",
            help="Write a published model as a model folder: Firefox, CTranslate2, .argosmodel …",
        ),
    ] = None
    source_language: Annotated[
        str | None, Option("--from", help="Source language, if the model does not say it.")
    ] = None
    target_language: Annotated[str | None, Option("--to", help="Target language.")] = None
    export: Annotated[
        str | None,
        Option(help="Write the model NAME for others: hub, ctranslate2 or transformers …"),
    ] = None
    out: Annotated[Path | None, Option(help="… into this folder.")] = None
    dtype: Annotated[
        str, Option(help="How weights are stored: int8, float16, bfloat16 or float32.")
    ] = "int8"


def models(options: ModelsArguments) -> None:
    """List the models that come with waitinfo, show one's card, pack or import another.

    Examples:

        waitinfo models

        waitinfo models de-en

        waitinfo models --pack run --out my-model --dtype int8

        waitinfo models run --export hub --out my-model

        waitinfo models run --export ctranslate2 --out my-model

        waitinfo models --import translate-zh_en-1_9.argosmodel --out zh-en
    """
    if options.pack is not None and options.published is not None:
        raise WaitinfoError("--pack and --import: give one of them")
    if options.published is not None:
        _import(options)
    elif options.pack is not None:
        options.load_plugins()
        _pack(options.pack, options.out, options.dtype)
    elif options.export is not None:
        _export(options)
    elif options.out is not None:
        raise WaitinfoError("--out: only with --pack, --import or --export")
    elif options.name is not None:
        _show(options.name)
    else:
        _list()


def _list() -> None:
    from rich.console import Console
    from rich.table import Table

    from waitinfo.cli.options import note
    from waitinfo.trained.folder import DEFAULT, bundled_models

    models = bundled_models()
    if not models:
        note("no models are bundled with this installation")
        return
    table = Table(title="bundled models")
    for column in ("name", "system", "MB", "what it is"):
        table.add_column(column, justify="right" if column == "MB" else "left")
    for model in models.values():
        shown = f"{model.name} (default)" if model.name == DEFAULT else model.name
        table.add_row(shown, model.system, f"{model.size / 1e6:.1f}", model.summary)
    Console().print(table)


def _show(name: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    from waitinfo.cli.console import progress_bar
    from waitinfo.cli.options import note
    from waitinfo.importing.sources import find_source
    from waitinfo.trained.folder import BundledModel, resolve_model

    model = BundledModel(name, resolve_model(find_source(name, bar=progress_bar)))
    card = model.card or _facts(model)
    console = Console()
    if console.is_terminal:
        console.print(Markdown(card))
    else:
        print(card, end="")
    note(f"folder: {model.folder}")


def _facts(model: BundledModel) -> str:
    """The card of a folder that has none."""
    from waitinfo.text.languages import Languages
    from waitinfo.trained.calibration import FILE
    from waitinfo.trained.folder import read_config

    config = read_config(model.folder)
    shape, languages = config["model"], Languages(**(config.get("languages") or {}))
    reads = "word by word" if shape["encoder"] == "causal" else "whole prefixes"
    measured = (
        "measured" if (model.folder / FILE).exists() else "not measured: evaluate --calibrate"
    )
    facts = {
        "languages": f"{languages.source or 'unknown'} → {languages.target or 'unknown'}",
        "system": model.system,
        "lags": measured,
        "encoder": f"{shape['encoder_layers']} layers, reads {reads}",
        "decoder": f"{shape['decoder_layers']} layers, {shape.get('decoder', 'attention')}",
        "width": shape["width"],
        "vocabulary": f"{shape['target_vocabulary']:,} tokens",
        "weights": f"{model.size / 1e6:.1f} MB",
    }
    return "".join(f"- {name}: {value}\n" for name, value in facts.items())


def _import(options: ModelsArguments) -> None:
    from waitinfo.cli.console import progress_bar
    from waitinfo.cli.options import note
    from waitinfo.importing.models import SYSTEM, import_model
    from waitinfo.importing.sources import HUB_NAME, fetch
    from waitinfo.text.languages import Languages

    source, out = options.published, options.out
    if source is None or out is None:
        raise WaitinfoError("--import: give --out, the folder to write")
    languages = Languages(options.source_language, options.target_language)
    if not source.exists() and HUB_NAME.fullmatch(str(source)):
        source = fetch(str(source))
    with progress_bar() as progress:
        import_model(source, out, options.dtype, languages=languages, progress=progress)
    size = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    note(f"{out}: {size / 1e6:.1f} MB of weights; it translates by {SYSTEM}, see --system")


def _export(options: ModelsArguments) -> None:
    from waitinfo.cli.console import progress_bar
    from waitinfo.cli.options import note
    from waitinfo.importing.exporting import FORMATS, HUB, export
    from waitinfo.importing.sources import find_source

    name, out, kind = options.name, options.out, str(options.export)
    if kind not in FORMATS:
        raise unknown("--export", kind, FORMATS)
    if name is None or out is None:
        raise WaitinfoError("--export: give a model and --out, the folder to write")
    source = find_source(name, "auto" if kind == HUB else "float32", bar=progress_bar)
    with progress_bar() as progress:
        export(kind, source, out, progress)
    if kind == HUB:
        note(f"{out}: upload it with: hf upload OWNER/{out.name} {out}")
    else:
        note(f"{out}: whole sentences, in float32, for {kind}")


def _pack(source: Path, out: Path | None, dtype: str) -> None:
    from waitinfo.cli.options import note
    from waitinfo.importing.sources import find_source
    from waitinfo.model.integers.measuring import measure_inputs
    from waitinfo.trained.calibration import FILE as CALIBRATION
    from waitinfo.trained.saving import load_model, save_model

    if out is None:
        raise WaitinfoError("--pack: give --out, the folder to write")
    if out.exists():
        raise WaitinfoError(f"{out}: exists already; choose a new folder")
    loaded = load_model(find_source(source, "float32"))
    save_model(
        out,
        loaded.floats,
        loaded.floats.weights(),
        loaded.system,
        loaded.vocabulary,
        dtype,
        languages=loaded.languages,
        inputs=measure_inputs(loaded.floats) if dtype == "int8" else None,
    )
    if (loaded.folder / CALIBRATION).exists():  # the weights differ by their rounding alone
        shutil.copy(loaded.folder / CALIBRATION, out)
    before, after = (
        sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        for folder in (loaded.folder, out)
    )
    note(f"{out}: {after / 1e6:.1f} MB of weights ({before / 1e6:.1f} MB before)")
