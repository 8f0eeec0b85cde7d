"""Folders of trained models, and those that come with the package.

A folder holds `config.json`, `tokenizer.model` and safetensors weights. Finding a model and reading
its config needs no torch; loading its weights does (`trained.saving`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.storage import recover_folder

CONFIG = "config.json"
FORMAT = 1


def resolve_model(path: Path) -> Path:
    """Find the model folder for a path: the path itself, or the best or last model of a run."""
    for candidate in (path, path / "best", path / "last"):
        if candidate != path and path.is_dir():
            recover_folder(candidate)
        if (candidate / CONFIG).is_file():
            return candidate
    if not path.exists():
        raise WaitinfoError(f"{path}: no such model")
    raise WaitinfoError(
        f"{path}: not a model (no {CONFIG}, and no best or last model in it); a published model "
        "is first imported with: waitinfo models --import"
    )


def read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WaitinfoError(f"{folder / CONFIG}: cannot be read ({error})") from None
    if not isinstance(config, dict):
        raise WaitinfoError(f"{folder / CONFIG}: must be a JSON object")
    if config.get("format") != FORMAT:
        raise WaitinfoError(
            f"{folder}: model format {config.get('format')} is not supported; this version of "
            f"waitinfo reads format {FORMAT}, and imports published models (models --import)"
        )
    for name in ("system", "model"):
        if not isinstance(config.get(name), dict):
            raise WaitinfoError(f"{folder / CONFIG}: has no settings of the {name}")
    if not isinstance(config["system"].get("name"), str):
        raise WaitinfoError(f"{folder / CONFIG}: does not name its system")
    return config


def fingerprint(folder: Path) -> str:
    """Checksum of all that affects a model's output: settings, vocabularies, weights.

    Weights of a policy have their own, see `policy.checksum`: most systems do not use them.
    """
    import hashlib

    digest = hashlib.sha256()
    # Language names do not affect the output. Models saved without them keep their checksum.
    config = {key: value for key, value in read_config(folder).items() if key != "languages"}
    digest.update(CONFIG.encode())
    digest.update(hashlib.sha256((json.dumps(config, indent=2) + "\n").encode()).digest())
    for path in sorted([*folder.glob("*.model"), *folder.glob("model*.safetensors")]):
        digest.update(path.name.encode())
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


# Bundled models, each a folder with a card (README.md)

DEFAULT = "de-en"


@dataclass(frozen=True)
class BundledModel:
    name: str
    folder: Path

    @property
    def summary(self) -> str:
        """The first line of the card that is not a heading."""
        lines = (line.strip() for line in self.card.splitlines())
        return next((line for line in lines if line and not line.startswith("#")), "")

    @property
    def card(self) -> str:
        """The card as people read it: without the lines at its front, which are for a hub."""
        path = self.folder / "README.md"
        text = path.read_text("utf-8") if path.exists() else ""
        return re.sub(r"\A---\n.*?\n---\n\s*", "", text, flags=re.DOTALL)

    @property
    def system(self) -> str:
        return read_config(self.folder)["system"]["name"]

    @property
    def size(self) -> int:
        """Size of the folder in bytes."""
        return sum(path.stat().st_size for path in self.folder.iterdir())


def models_folder() -> Path:
    return Path(str(files("waitinfo"))) / "models"


def bundled_models() -> dict[str, BundledModel]:
    """Bundled models by name."""
    found = sorted(path.parent for path in models_folder().glob(f"*/{CONFIG}"))
    return {folder.name: BundledModel(folder.name, folder) for folder in found}


def find_model(path: str | Path | None) -> Path:
    """Resolve a path or the name of a bundled model; None means the default model."""
    models = bundled_models()
    if path is None:
        if DEFAULT not in models:
            raise WaitinfoError("no model was given; use --model with a model or run folder")
        return models[DEFAULT].folder
    if Path(path).exists():
        return Path(path)
    if str(path) not in models:
        names = ", ".join(models) or "none"
        raise WaitinfoError(f"{path}: no such model; bundled models: {names}")
    return models[str(path)].folder
