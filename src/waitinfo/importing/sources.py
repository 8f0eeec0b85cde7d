"""A model by whatever names it: a folder of ours, a published one, or a name on the hub.

A published model is imported once, into a cache, and found there again until its files change.
Nothing here needs torch before something has to be imported.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.progress import Progress, Silent
from waitinfo.trained.folder import CONFIG, bundled_models, find_model

CACHE = "WAITINFO_CACHE"  # names another folder
VERSION = 2  # of what an import makes; another one imports again
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# What is fetched of a model on the hub: weights that are plain numbers, and text. No code, and no
# pickles, which can run any.
FETCHED = re.compile(
    r"(config|.*index|.*vocab.*|tokenizer.*|special.*|generation.*|calibration)\.(json|txt|yml)"
    r"|.*\.(safetensors|model|argosmodel)|(.*\.spm|model(\..*)?\.bin)(\.gz)?"
)
WEIGHTS = (".safetensors", ".bin", ".bin.gz", ".argosmodel")
PICKLES = (".pt", ".pth", ".ckpt", ".pkl", "pytorch_model.bin")
Bar = Callable[[], AbstractContextManager[Progress]]  # opens a progress bar, if it takes time


def silent() -> AbstractContextManager[Progress]:
    return nullcontext(Silent())


def find_source(given: str | Path | None, dtype: str = "auto", bar: Bar = silent) -> Path:
    """The folder of a model: a folder or a bundled one as it is, a published one once imported."""
    if given is None or str(given) in bundled_models():
        return find_model(given)
    path = whole_model(Path(given).expanduser())
    if path.exists():
        return imported(path, path.absolute().stem, dtype, bar) if is_published(path) else path
    if HUB_NAME.fullmatch(str(given)) and not path.parent.exists():  # else it is a slip
        path = fetch(str(given))
        name = str(given).rpartition("/")[2]
        return imported(path, name, dtype, bar) if is_published(path) else path
    return find_model(given)


def whole_model(path: Path) -> Path:
    """The folder of a file with weights, which needs the vocabulary and settings beside it."""
    weights = path.name.endswith((".bin", ".bin.gz", ".safetensors", ".spm", ".spm.gz"))
    return path.parent if weights and path.is_file() and not path.name.endswith(PICKLES) else path


def is_published(path: Path) -> bool:
    """Whether a file or folder may be a model of another program."""
    if path.is_file():
        return True
    if any((path / name / CONFIG).exists() for name in ("best", "last")):
        return False
    try:
        config = json.loads((path / CONFIG).read_text("utf-8"))
    except (OSError, ValueError):
        return any(path.glob("model*.bin*")) or any(path.glob("*/model.bin")) or _pickled(path)
    return isinstance(config, dict) and "format" not in config


def _pickled(path: Path) -> bool:
    return any(file.name.endswith(PICKLES) for file in path.iterdir())


def cache_folder() -> Path:
    if CACHE in os.environ:
        return Path(os.environ[CACHE]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "waitinfo"


def imported(source: Path, name: str, dtype: str, bar: Bar = silent) -> Path:
    """The folder of a published model in the cache, where it is imported into if it is not there.

    Weights are packed to 8 bits, unless another dtype is asked for.
    """
    stored = "int8" if dtype in ("auto", "int8") else "float32"
    place = cache_folder() / "imported" / f"{_identity(source)}-{stored}"
    if (found := place / name).exists():
        return found
    from waitinfo.importing.models import import_model

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".", dir=place.parent))
    except OSError as error:
        raise WaitinfoError(
            f"{place.parent}: cannot be written ({error}); name another folder in {CACHE}, or "
            "give the model a folder with: waitinfo models --import"
        ) from None
    try:
        with bar() as progress:
            import_model(source, fresh / name, stored, progress=progress)
        if not place.exists():  # another process may have been faster
            fresh.rename(place)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return found


def _identity(source: Path) -> str:
    """What tells a published model from others: where it is, and its files' sizes and times."""
    files = sorted(source.rglob("*")) if source.is_dir() else [source]
    states = [(path, path.stat()) for path in files if path.is_file()]
    facts: list[Any] = [VERSION, str(source.resolve())]
    facts += [(str(path.relative_to(source)), s.st_size, s.st_mtime_ns) for path, s in states]
    import hashlib

    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


# The hub


def fetch(name: str) -> Path:
    """The folder of a model on the hub: fetched, or found in the hub's own cache."""
    try:
        import huggingface_hub as hub
    except ImportError:
        raise WaitinfoError(
            f"{name}: no such model here; to look on the Hugging Face hub, "
            "pip install 'waitinfo[hub]'"
        ) from None
    try:
        files = hub.HfApi().list_repo_files(name)
    except Exception as error:  # of the network, the hub or the name: it raises many kinds
        return _fetched_before(hub, name, error)
    wanted = [file for file in files if FETCHED.fullmatch(file)]
    if not any(file.endswith(WEIGHTS) for file in wanted):
        if any(file.endswith(PICKLES) for file in files):
            raise WaitinfoError(pickle_refusal(name, name))
        raise WaitinfoError(f"{name}: has no weights that can be read")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=wanted))
    except Exception as error:
        raise WaitinfoError(f"{name}: cannot be fetched ({_one_line(error)})") from None


def _fetched_before(hub: Any, name: str, error: Exception) -> Path:
    try:
        return Path(hub.snapshot_download(name, local_files_only=True))
    except Exception:
        raise WaitinfoError(
            f"{name}: no such model here, and none comes from the hub ({_one_line(error)})"
        ) from None


def pickle_refusal(found: object, name: object) -> str:
    return (
        f"{found}: a pickle, which can run any code; convert it where you trust it, and give NEW: "
        'python -c "import transformers as t; '
        f"t.AutoModelForSeq2SeqLM.from_pretrained('{name}').save_pretrained('NEW'); "
        f"t.AutoTokenizer.from_pretrained('{name}').save_pretrained('NEW')\""
    )


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
