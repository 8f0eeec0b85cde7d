"""What a training run is: system, model, data and every knob of the trainer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from waitinfo.config import from_mapping
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.importing.sources import find_source
from waitinfo.model.config import SIZES, ModelConfig
from waitinfo.systems import System, build_system, system_class
from waitinfo.text.corpus import Corpus
from waitinfo.trained.folder import read_config, resolve_model

CHOICES = {
    "schedule": ("inverse-sqrt", "cosine", "constant"),
    "average": ("ema", "last", "none"),
    "best_by": ("bleu", "loss"),
    "precision": ("auto", "float32", "bfloat16"),
    "weights_dtype": ("float32", "float16", "bfloat16", "int8"),
}

# Ranges of settings: names, test, and the rule in words.
LIMITS: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    (
        "updates batch_tokens accumulate lr validate_every log_every checkpoint_every "
        "keep_checkpoints average_last",
        lambda value: 0 < value < math.inf,
        "above 0",
    ),
    (
        "seed max_minutes pause_minutes warmup clip threads part_mib weight_decay epsilon "
        "validate_sentences checkpoint_minutes",
        lambda value: 0 <= value < math.inf,
        "0 or more",
    ),
    ("cooldown label_smoothing ema_decay", lambda value: 0 <= value <= 1, "in [0, 1]"),
    ("beta1 beta2", lambda value: 0 <= value < 1, "in [0, 1)"),
    ("threads", lambda value: value <= 1024, "at most 1024"),
)

# What may differ when a run is resumed; anything else would make it another run.
FLEXIBLE = {
    "lr", "warmup", "updates", "max_minutes", "pause_minutes", "log_every", "validate_every",
    "validate_sentences", "checkpoint_every", "checkpoint_minutes", "keep_checkpoints",
    "weights_dtype", "part_mib", "device", "threads", "graphs", "compile", "kernels", "start_from",
}  # fmt: skip


@dataclass(frozen=True)
class TrainingConfig:
    """The trainer's knobs; every one can be given in a recipe or with --set training.KEY=VALUE."""

    seed: int = 1
    start_from: str = ""  # a model whose weights the run begins with
    updates: int = 100_000
    max_minutes: float = 0.0  # of the whole run, resumed parts counted; 0 for no limit
    pause_minutes: float = 0.0  # stop this call after this time; resume later; 0 for never
    batch_tokens: int = 8192  # padded tokens per batch, on its longer side
    accumulate: int = 1  # batches per update, in each process
    lr: float = 5e-4
    schedule: str = "inverse-sqrt"
    warmup: int = 4000
    cooldown: float = 0.0  # last share of the run in which lr falls to 0; a quarter in timed runs
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9
    weight_decay: float = 0.0
    clip: float = 1.0  # largest norm of the gradient; 0 for no limit
    label_smoothing: float = 0.1
    average: str = "ema"  # of the weights: ema, last (checkpoints), or none
    ema_decay: float = 0.999
    average_last: int = 5
    validate_every: int = 1000
    validate_k: float | None = None  # the dial for validation; the system's default if not given
    validate_sentences: int = 500  # dev sentences translated for BLEU; 0 for none
    best_by: str = "bleu"
    checkpoint_every: int = 1000
    checkpoint_minutes: float = 5.0  # and at least this often; 0: by updates only
    keep_checkpoints: int = 2
    log_every: int = 50
    precision: str = "auto"  # bfloat16 autocast on a GPU, float32 on a CPU
    compile: bool = False  # layers and loss with torch.compile, where that works
    kernels: bool = True  # on a GPU, use fused kernels for attention, residuals and loss
    graphs: bool = True  # on a GPU, record updates as CUDA graphs and replay them
    device: str = "auto"
    threads: int = 0  # CPU threads; 0 leaves it to torch
    weights_dtype: str = "float32"  # of the saved models
    part_mib: float = 0.0  # cut saved weights into parts of this size; 0 for one file

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise unknown(f"training.{name}", getattr(self, name), allowed)
        for names, fits, rule in LIMITS:
            for name in names.split():
                value = getattr(self, name)
                if not fits(value):
                    raise WaitinfoError(f"training.{name} {value}: must be {rule}")


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    given = values.get(name)
    if not isinstance(given, dict | None):
        raise WaitinfoError(f"{name} '{given}': is a section; set {name}.KEY")
    return given or {}


def _system(values: dict[str, Any]) -> dict[str, Any]:
    """The system's name and options; the name alone may stand for the section."""
    given = values.get("system")
    return {"name": given} if isinstance(given, str) else _section(values, "system")


def _settled(chosen: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Chosen settings that none given since has replaced."""
    given = given_names(values)
    return {
        name: value
        for section, names in given.items()
        for name, value in chosen.get(section, {}).items()
        if name not in names
    }


def given_names(values: dict[str, Any]) -> dict[str, set[str]]:
    """Which settings of training and system were given."""
    return {"training": set(_section(values, "training")), "system": set(_system(values))}


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str | Path):
        raise WaitinfoError(f"setting {name}: '{value}' is not a valid str")
    return str(value)


INHERITED = (  # settings of a model that one which starts from it has, too
    "width", "ffn", "encoder_layers", "decoder_layers", "heads", "norm", "decoder", "activation",
    "output_bias", "epsilon", "positions", "first_position", "dropout", "attention_dropout",
    "activation_dropout",
)  # fmt: skip


@dataclass(frozen=True)
class RunConfig:
    """A run as given, with names and types checked."""

    data: Path
    system: System
    size: str
    model: dict[str, Any]  # fields that differ from the size's and the system's
    training: TrainingConfig
    chosen: dict[str, Any] = field(default_factory=dict)  # settings that were not given, by name
    expected_updates: int = 0  # of a timed run, if the lengths of its stages follow from them
    inherits: bool = False  # its shape is that of the model it starts from, as none was given
    sizes: dict[str, float] = field(default_factory=dict)  # tried, if chosen: epochs each would see

    @classmethod
    def from_values(cls, values: dict[str, Any], chosen: dict[str, Any] | None = None) -> RunConfig:
        """From settings as given, and from those chosen for the rest (`choose_settings`)."""
        chosen = chosen or {}
        known = ("data", "size", "system", "model", "training", "corpus")  # corpus: for prepare
        for key in values:
            if key not in known:
                raise unknown("section or setting", key, known)
        if "data" not in values:
            raise WaitinfoError("no corpus was given; use --data with a folder made by prepare")
        system = _system(values)
        if "name" not in system:
            raise WaitinfoError("no system was given; use --system, as in --system wait-info")
        size = _text("size", values.get("size", chosen.get("size", "base")))
        if size not in SIZES:
            raise unknown("size", size, SIZES)
        options = chosen.get("system", {}) | {k: v for k, v in system.items() if k != "name"}
        training = chosen.get("training", {}) | _section(values, "training")
        return cls(
            data=Path(_text("data", values["data"])),
            system=build_system(_text("system.name", system["name"]), options),
            size=size,
            model=dict(_section(values, "model")),
            training=from_mapping(TrainingConfig, training, "training"),
            inherits="size" not in values,
            chosen=_settled(chosen, values),
            expected_updates=chosen.get("expected_updates", 0),
            sizes={} if "size" in values else chosen.get("sizes", {}),
        )

    def inherited(self) -> dict[str, Any]:
        """The shape of the model that the run starts from; its encoder need not be causal."""
        if not self.training.start_from:
            return {}
        try:
            folder = resolve_model(find_source(self.training.start_from, "float32"))
        except WaitinfoError as error:
            raise WaitinfoError(f"training.start_from {error.sentence}") from None
        old = from_mapping(ModelConfig, read_config(folder)["model"], "model")
        return {name: getattr(old, name) for name in INHERITED}

    def model_config(self, corpus: Corpus) -> ModelConfig:
        vocabulary = corpus.vocabulary
        values: dict[str, Any] = {
            "source_vocabulary": len(vocabulary.source),
            "target_vocabulary": len(vocabulary.target),
            "joint": vocabulary.joint,
            **SIZES[self.size],
            **(self.inherited() if self.inherits else {}),
            **system_class(self.system.name).model_defaults,
            **self.model,
        }
        config = from_mapping(ModelConfig, values, "model")
        self.system.check_training(config)
        return config

    def resolved(self, corpus: Corpus) -> dict[str, Any]:
        """Everything, defaults included, as plain values."""
        return {
            "data": str(self.data),
            "size": self.size,
            "system": {"name": self.system.name, **asdict(self.system.options)},
            "model": asdict(self.model_config(corpus)),
            "training": asdict(self.training),
        }


def resumed_choices(recorded: dict[str, Any]) -> dict[str, Any]:
    """Settings of a run that were not given: as they were, even if their defaults have changed."""
    chosen = recorded.get("chosen", {})
    before = recorded["resolved"]["system"]
    now = asdict(build_system(before["name"], {}).options)
    kept = {name: before[name] for name in now if before.get(name, now[name]) != now[name]}
    return {**chosen, "system": kept | chosen.get("system", {})}


def check_same_run(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise if resuming with these settings would continue another run.

    Both are records of a run: resolved settings, the corpus, and the number of processes.
    """
    if old["corpus"]["splits"] != new["corpus"]["splits"]:
        raise WaitinfoError("--resume: the corpus is not the one the run was started with")
    if old["processes"] != new["processes"]:
        raise WaitinfoError(
            f"--resume: the run was started with {old['processes']} processes, not "
            f"{new['processes']}; use that number, or its batches would differ"
        )
    old, new = old["resolved"], new["resolved"]
    added = _defaults(new["system"]["name"])  # of settings that came after the run was started
    for section in ("system", "model", "training"):
        for key, value in new[section].items():
            if section == "training" and key in FLEXIBLE:
                continue
            before = old[section].get(key, added[section].get(key))
            if before != value:
                raise WaitinfoError(
                    f"--resume: {section}.{key} is {value} but the run was started with {before}; "
                    "its length, learning rate and device may change, and how often it saves, "
                    "validates and logs"
                )


def _defaults(system: str) -> dict[str, dict[str, Any]]:
    """The settings of each section that have a default, with it."""
    return {
        "system": asdict(build_system(system, {}).options),
        **{
            section: {f.name: f.default for f in fields(kind) if f.default is not MISSING}
            for section, kind in (("model", ModelConfig), ("training", TrainingConfig))
        },
    }
