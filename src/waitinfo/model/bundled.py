"""Models that come with the package, each a folder with a card (README.md)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from waitinfo.errors import WaitinfoError
from waitinfo.model.folder import CONFIG, read_config

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
        path = self.folder / "README.md"
        return path.read_text("utf-8") if path.exists() else ""

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
