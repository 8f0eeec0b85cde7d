"""A model folder for the Hugging Face hub: the same files, and a card that the hub understands.

Put there with `hf upload OWNER/NAME FOLDER`, every verb takes it by that name.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from waitinfo.errors import WaitinfoError
from waitinfo.text.languages import Languages
from waitinfo.trained.folder import CONFIG, read_config, resolve_model

FORMATS = ("hub",)
CARD = "README.md"


def export_for_hub(source: Path, out: Path) -> None:
    """Copy a model folder, with metadata at the head of its card."""
    folder = resolve_model(source)
    if out.exists():
        raise WaitinfoError(f"{out}: exists already; choose a new folder")
    config = read_config(folder)
    languages = Languages.read(config, folder / CONFIG)
    card = folder / CARD
    text = card.read_text("utf-8") if card.is_file() else _card(out.name, languages, config)
    try:
        shutil.copytree(folder, out, ignore=shutil.ignore_patterns(CARD, ".*"))
        if not text.startswith("---"):  # a card that has metadata already keeps its own
            text = metadata(languages, config["system"]["name"]) + text
        (out / CARD).write_text(text, "utf-8")
    except OSError as error:
        raise WaitinfoError(f"{out}: cannot be written ({error})") from None


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
