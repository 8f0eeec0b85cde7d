"""A new model for a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from waitinfo.errors import WaitinfoError
from waitinfo.model.attention import CrossAttention
from waitinfo.model.bundled import find_model
from waitinfo.model.saving import load_model
from waitinfo.model.transformer import Transformer
from waitinfo.text.corpus import Corpus
from waitinfo.training.config import RunConfig

# Of the model. The first two have no weights; a write head can be left out or begin untrained.
SWITCHES = ("info_self_attention", "info_cross_attention", "write_head")
SIDES = ("source_info", "target_info")


def build_model(run: RunConfig, corpus: Corpus, device: torch.device) -> Transformer:
    """The model that the run's seed decides, or the one it starts from."""
    torch.manual_seed(run.training.seed)
    model = Transformer(run.model_config(corpus)).to(device)
    if (start := starting_model(run)) is not None:
        take_weights(model, corpus, start)
    else:
        fit_token_info(model, corpus)
    return model


def starting_model(run: RunConfig) -> Path | None:
    """The model whose weights a run begins with: a folder, or the name of a bundled one."""
    if not run.training.start_from:
        return None
    try:
        return find_model(Path(run.training.start_from).expanduser())
    except WaitinfoError as error:
        raise WaitinfoError(f"training.start_from {error}") from None


def take_weights(model: Transformer, corpus: Corpus, folder: Path) -> None:
    """Begin with the weights of a model of the same shape and vocabulary.

    It may be one of another system: what the new model has no use for is left out, and what only
    the new model has begins untrained.
    """
    given = load_model(folder, "cpu")
    old, new = asdict(given.model.config), asdict(model.config)
    for name, value in new.items():
        if old[name] != value and not can_begin_as(name, old[name], value):
            raise WaitinfoError(
                f"training.start_from {folder}: its model.{name} is {old[name]}, not {value}"
            )
    theirs, ours = given.vocabulary, corpus.vocabulary
    if (theirs.source.model, theirs.target.model) != (ours.source.model, ours.target.model):
        raise WaitinfoError(
            f"training.start_from {folder}: its vocabulary is not the corpus's; prepare the corpus "
            f"with --vocab-from {folder}"
        )
    weights, wanted = given.model.weights(), model.weights()
    if old["cross_attention"] != new["cross_attention"]:
        weights |= attentions_from_plain(model, weights)
    model.load_weights(wanted | {name: weights[name] for name in wanted if name in weights})
    if old["info"] != new["info"]:
        fit_token_info(model, corpus)


def can_begin_as(setting: str, old: Any, new: Any) -> bool:
    """Whether a model with the old value of a setting can go on as one with the new value."""
    if setting in SIDES:
        return new == "one"
    if setting == "info":
        return new != "attention"  # that is learned
    if setting == "cross_attention":
        return old == CrossAttention.name
    return setting in SWITCHES or "dropout" in setting


def attentions_from_plain(model: Transformer, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of the model's cross-attentions, given those of a model with plain ones."""
    made: dict[str, Tensor] = {}
    for prefix, module in model.named_modules():
        if isinstance(module, CrossAttention):
            start = f"{prefix}."
            plain = {
                name.removeprefix(start): weight
                for name, weight in weights.items()
                if name.startswith(start)
            }
            made |= {f"{start}{name}": weight for name, weight in module.from_plain(plain).items()}
    return made


def fit_token_info(model: Transformer, corpus: Corpus) -> None:
    """Give heuristic info its statistics: totals of both sides equal, and 1 on average."""
    entry = corpus.manifest["splits"]["train"]
    mean_length = (entry["source_tokens"] + entry["target_tokens"]) / 2
    for info, side in ((model.source_info, "source"), (model.target_info, "target")):
        if info is not None:
            counts = torch.from_numpy(corpus.token_counts(side)).to(model.device)
            info.fit(counts, mean_length / max(1, entry[f"{side}_tokens"]))
