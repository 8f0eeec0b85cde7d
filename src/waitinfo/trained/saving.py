"""Saving a model to a folder, and loading it: with integers, without torch."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save, save_file

import waitinfo
from waitinfo.config import from_mapping
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.model import Network
from waitinfo.model.config import ModelConfig
from waitinfo.model.integers.conversion import can_convert
from waitinfo.model.integers.model import IntegerModel
from waitinfo.model.integers.packing import SCALE, dequantize, quantize
from waitinfo.model.native.weights import return_freed_memory
from waitinfo.model.stored import load_stored
from waitinfo.storage import swap_folder
from waitinfo.systems import System, build_system
from waitinfo.text.languages import UNKNOWN, Languages, Opening, find_code
from waitinfo.text.tokenizer import Vocabulary
from waitinfo.trained.folder import CONFIG, FORMAT, read_config, resolve_model

if TYPE_CHECKING:
    from torch import Tensor

    from waitinfo.model.transformer import Transformer

STORED = ("float32", "float16", "bfloat16", "int8")  # storage formats of weights
AUTO = "auto"
POLICY = "policy.safetensors"  # weights that a policy has of its own, as the head of a veto


@dataclass(frozen=True)
class LoadedModel:
    """A trained model, ready to translate."""

    model: Network
    system: System
    vocabulary: Vocabulary
    folder: Path
    languages: Languages = UNKNOWN
    language_tokens: dict[str, int] = field(default_factory=dict, hash=False)  # of many languages

    def __post_init__(self) -> None:
        self.system.prepare(self.vocabulary)

    @property
    def floats(self) -> Transformer:
        """The model, which was loaded to compute with floats."""
        assert not isinstance(self.model, IntegerModel)
        return self.model

    @property
    def opening(self) -> Opening | None:
        """The tokens of the two languages, where the model needs them."""
        if not self.language_tokens:
            return None
        if self.languages.source is None or self.languages.target is None:
            one, other, *_ = self.language_tokens
            raise WaitinfoError(
                f"{self.folder.name}: translates between {len(self.language_tokens)} languages; "
                f"give two of them, with load(languages=Languages('{one}', '{other}')) or "
                f"waitinfo … --from {one} --to {other}"
            )
        codes = self.languages.source, self.languages.target
        return Opening(*(self.language_tokens[code] for code in codes))

    def without_weights(self) -> LoadedModel:
        """All else that is to be known of it, for a process that does not compute."""
        nothing: Any = None
        return replace(self, model=nothing)

    def between(self, source: str | None, target: str | None) -> LoadedModel:
        """The same model from one language to another; None leaves a side as it is."""
        wanted = {"source": source, "target": target}
        changes = {side: code for side, code in wanted.items() if code is not None}
        if self.language_tokens:
            changes = {side: find_code(c, self.language_tokens) for side, c in changes.items()}
            return replace(self, languages=replace(self.languages, **changes))
        known = asdict(self.languages)
        for side, code in changes.items():
            if known[side] not in (None, code):
                raise WaitinfoError(f"{self.folder.name}: its {side} is {known[side]}, not {code}")
        return self


def save_model(
    folder: Path,
    model: Transformer,
    weights: dict[str, Tensor],
    system: System,
    vocabulary: Vocabulary,
    dtype: str = "float32",
    part_bytes: int | None = None,
    languages: Languages = UNKNOWN,
    inputs: dict[str, Tensor] | None = None,
    language_tokens: dict[str, int] | None = None,
) -> None:
    """Write a model folder; an existing one is replaced only once the new one is complete.

    inputs: what `measure_inputs` returns, for int8. language_tokens: of a model of many languages.
    """
    if dtype not in STORED:
        raise unknown("weights dtype", dtype, STORED)
    fresh = folder.parent / f".{folder.name}.partial"
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        _save_narrow(fresh, weights, dtype, part_bytes, inputs or {})
        vocabulary.save(fresh)
        if system.tensors:
            write_policy(fresh, system.tensors)
        config = {
            "format": FORMAT,
            "waitinfo": waitinfo.__version__,
            **languages.entry(),
            **({"language_tokens": language_tokens} if language_tokens else {}),
            "system": {"name": system.name, **asdict(system.options)},
            "model": asdict(model.config),
        }
        (fresh / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        swap_folder(fresh, folder)
    except OSError as error:
        raise WaitinfoError(f"{folder}: cannot be written ({error})") from None


def save_policy(model: Path, folder: Path, system: System) -> None:
    """Write a copy of a model folder that decides by another system, with what that needs."""
    fresh = folder.parent / f".{folder.name}.partial"
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for path in [*model.glob("model*.safetensors"), *model.glob("*.model")]:
            shutil.copyfile(path, fresh / path.name)
        write_policy(fresh, system.tensors)
        config = read_config(model)
        config["system"] = {"name": system.name, **asdict(system.options)}
        (fresh / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        swap_folder(fresh, folder)
    except OSError as error:
        raise WaitinfoError(f"{folder}: cannot be written ({error})") from None


def _save_narrow(
    folder: Path,
    weights: dict[str, Tensor],
    dtype: str,
    part_bytes: int | None,
    inputs: dict[str, Tensor],
) -> None:
    import torch

    from waitinfo.trained.tensors import save_weights

    # Only matrices are stored in low precision: info parameters are small, and the policy decides
    # on sums of info.
    if dtype == "int8":
        matrices = {n: t.detach().cpu() for n, t in weights.items() if t.dim() == 2}
        packed = quantize({n: t.numpy() if t.dtype == torch.int8 else t.float().numpy()
                           for n, t in matrices.items()})  # fmt: skip
        stored = {**weights, **{n: torch.from_numpy(a) for n, a in packed.items()}, **inputs}
    else:
        kind = getattr(torch, dtype)
        stored = {n: t.to(kind) if t.dim() > 1 else t for n, t in weights.items()}
        for name, tensor in weights.items():
            if tensor.isfinite().all() and not stored[name].isfinite().all():
                largest = float(tensor.abs().max())
                raise WaitinfoError(f"{name}: weights up to {largest:.3g} do not fit {dtype}")
    save_weights(folder, stored, part_bytes)


def load_model(
    path: Path,
    device: str = "auto",
    dtype: str = "float32",
    system: str | None = None,
    options: dict[str, Any] | None = None,
) -> LoadedModel:
    """Load a model or run folder for translation, with its own system or a compatible one.

    dtype `auto`: integers on a CPU if they are stored, else float32.
    """
    folder = resolve_model(path)
    if dtype not in (AUTO, *STORED):
        raise unknown("dtype", dtype, (AUTO, *STORED))
    config = read_config(folder)
    chosen = _choose_system(config["system"], system, options or {})
    model_config = from_mapping(ModelConfig, config["model"], "model")
    chosen.check_model(model_config)
    chosen.adopt(read_policy(folder), model_config)
    if device == "auto":
        device = "cpu" if dtype == "int8" else _best_device()  # integer arithmetic is for CPUs
    if dtype == "int8" and _kind(device) != "cpu":
        raise WaitinfoError("dtype int8: is for CPUs; on a GPU use bfloat16")
    stored = load_stored(folder)
    if dtype == AUTO:
        packed = any(name.endswith(SCALE) for name in stored)
        fits = packed and _kind(device) == "cpu" and can_convert(model_config)
        dtype = "int8" if fits else "float32"
    try:
        if model_config.encoder_layers + model_config.decoder_layers > len(stored):
            raise ValueError("more layers than weights")
        model = _build_model(model_config, stored, device, dtype)
        del stored
        return_freed_memory()  # as much as the weights take
    except (
        RuntimeError, KeyError, ValueError, IndexError, TypeError, OverflowError, MemoryError
    ) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:300]
        raise WaitinfoError(f"{folder}: weights do not fit config.json ({reason})") from None
    languages = Languages.read(config, folder / CONFIG)
    tokens = _language_tokens(config, folder)
    return LoadedModel(model, chosen, Vocabulary.load(folder), folder, languages, tokens)


def _language_tokens(config: dict[str, Any], folder: Path) -> dict[str, int]:
    found = config.get("language_tokens", {})
    size = config["model"].get("source_vocabulary", 0)
    if isinstance(found, dict) and all(
        isinstance(token, int) and 0 <= token < size for token in found.values()
    ):
        return found
    raise WaitinfoError(f"{folder / CONFIG}: language_tokens must name tokens by language")


def _build_model(
    config: ModelConfig, stored: dict[str, NDArray[Any]], device: str, dtype: str
) -> Network:
    if dtype == "int8":
        info = {name: array for name, array in stored.items() if "_info." in name}
        others = {name: array for name, array in stored.items() if name not in info}
        return IntegerModel(config, {**quantize(others), **info})
    try:
        from waitinfo.trained.tensors import float_model
    except ModuleNotFoundError:
        raise WaitinfoError(
            f"dtype {dtype}: needs torch; pip install 'waitinfo[train]', or use a packed model "
            "on a CPU"
        ) from None
    return float_model(config, dequantize(stored), device, dtype)


def _kind(device: str) -> str:
    """The kind of a device: what stands before its number."""
    return device.partition(":")[0]


def _best_device() -> str:
    """A GPU if there is one, else the CPU. torch, which takes long to import, is asked last."""
    drivers = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of NVIDIA, AMD, and within Windows
    none = sys.platform == "darwin" or (
        sys.platform == "linux" and not any(Path(driver).exists() for driver in drivers)
    )
    if "torch" not in sys.modules and (none or find_spec("torch") is None):
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _choose_system(stored: dict[str, Any], name: str | None, options: dict[str, Any]) -> System:
    """Build the stored system with overridden options, or another with the given options only."""
    own = {key: value for key, value in stored.items() if key != "name"}
    if name is None or name == stored["name"]:
        return build_system(stored["name"], {**own, **options})
    return build_system(name, options)


def read_policy(folder: Path) -> dict[str, NDArray[Any]]:
    """The weights that a policy has of its own, if there are any."""
    path = folder / POLICY
    if not path.exists():
        return {}
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise WaitinfoError(f"{path}: cannot be read as safetensors ({error})") from None


def write_policy(folder: Path, tensors: dict[str, NDArray[Any]]) -> None:
    """Store the weights that a policy has of its own."""
    path = folder / POLICY
    try:
        save_file(_in_order(tensors), path)
        path.chmod(0o644)  # as readable as the other files of the folder
    except (OSError, SafetensorError) as error:
        raise WaitinfoError(f"{path}: cannot be written ({error})") from None


def checksum(tensors: dict[str, NDArray[Any]]) -> dict[str, str]:
    """The checksum of these weights as a setting that translations depend on; none without any."""
    if not tensors:
        return {}
    import hashlib

    return {"policy": hashlib.sha256(save(_in_order(tensors))).hexdigest()}


def _in_order(tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Row by row: safetensors writes the memory of an array as it lies there."""
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
