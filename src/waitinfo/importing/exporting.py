"""A model for others: for the Hugging Face hub, for CTranslate2, or for `transformers`.

A folder for the hub has the same files and a card that the hub understands: put there with
`hf upload OWNER/NAME FOLDER`, every verb takes it by that name. The others translate whole
sentences, so only models that do so without anything of ours can be written for them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.model.config import PLAIN
from waitinfo.progress import Progress, Silent
from waitinfo.text.languages import Languages
from waitinfo.trained.folder import CONFIG, read_config, resolve_model
from waitinfo.trained.saving import LoadedModel, load_model

HUB = "hub"
FORMATS = (HUB, "ctranslate2", "transformers")
CARD = "README.md"
EPSILON = 1e-5  # of the norms of MarianMTModel
SILENT = Silent()


def export(kind: str, source: Path, out: Path, progress: Progress = SILENT) -> None:
    """Write a model folder, or a run folder, in a format of others."""
    if kind not in FORMATS:
        raise unknown("--export", kind, FORMATS)
    folder = resolve_model(source)
    if out.exists():
        raise WaitinfoError(f"{out}: exists already; choose a new folder")
    progress.stage(f"exporting {source.name}", 2)
    try:
        if kind == HUB:
            _for_hub(folder, out)
        else:
            _for_others(kind, folder, out, progress)
    except OSError as error:
        raise WaitinfoError(f"{out}: cannot be written ({error})") from None
    progress.advance(2)


def _for_others(kind: str, folder: Path, out: Path, progress: Progress) -> None:
    loaded = load_model(folder, "cpu")
    if (reason := obstacle(loaded, kind)) is not None:
        raise WaitinfoError(f"{folder.name}: {reason}; this is not exported for {kind}")
    progress.advance(1)
    from waitinfo.importing import ctranslate2, opus

    write = ctranslate2.write if kind == "ctranslate2" else opus.write
    weights = {name: weight.float().numpy() for name, weight in loaded.floats.weights().items()}
    out.mkdir(parents=True)
    write(out, loaded.floats.config, weights, loaded.vocabulary, loaded.languages)


def obstacle(loaded: LoadedModel, kind: str) -> str | None:
    """What of a model a format has no place for."""
    config = loaded.model.config
    found = {
        "it names languages by tokens": bool(loaded.language_tokens),
        "its encoder reads word by word (model.encoder causal)": config.encoder == "causal",
        "it has info (model.info)": config.info != "none",
        f"its cross-attention is {config.cross_attention}": config.cross_attention != PLAIN,
        "it has a write head": config.write_head,
        "its decoder has a recurrent unit (model.decoder ssru)": config.decoder != "attention",
        "its two vocabularies are separate": not config.joint,
        f"its positions begin at {config.first_position}": config.first_position != 0,
    }
    if kind == "transformers":  # as class MarianMTModel computes
        found |= {
            "its norms stand before its sublayers (model.norm pre)": config.norm != "post",
            "the rates of its positions end at 1/10000 (model.positions closed)": (
                config.positions != "open"
            ),
            f"its norms add {config.epsilon:g} (model.epsilon)": config.epsilon != EPSILON,
        }
    return next((reason for reason, holds in found.items() if holds), None)


# The hub


def _for_hub(folder: Path, out: Path) -> None:
    """Copy a model folder, with metadata at the head of its card."""
    config = read_config(folder)
    languages = Languages.read(config, folder / CONFIG)
    card = folder / CARD
    text = card.read_text("utf-8") if card.is_file() else _card(out.name, languages, config)
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns(CARD, ".*"))
    if not text.startswith("---"):  # a card that has metadata already keeps its own
        text = metadata(languages, config["system"]["name"]) + text
    (out / CARD).write_text(text, "utf-8")


def metadata(languages: Languages, system: str) -> str:
    """What the hub reads of a card, in YAML."""
    codes = [code for code in (languages.source, languages.target) if code]
    lines = ["---", *(["language:", *(f"- {code}" for code in codes)] if codes else [])]
    lines += ["library_name: waitinfo", "pipeline_tag: translation"]
    lines += ["tags:", "- simultaneous-translation", f"- {system}", "---", "", ""]
    return "\n".join(lines)


def _card(name: str, languages: Languages, config: dict[str, dict[str, object]]) -> str:
    pair = f" from {languages.source} to {languages.target}" if languages.target else ""
    system = config["system"]["name"]
    return f"""# {name}

A model for waitinfo that translates{pair} while the source is still arriving (system: {system}).

    pip install 'waitinfo[cli,hub]'
    waitinfo translate --model OWNER/{name}
"""
