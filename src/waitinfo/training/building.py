"""A new model for a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from waitinfo.errors import WaitinfoError
from waitinfo.model.bundled import find_model
from waitinfo.model.saving import load_model
from waitinfo.model.transformer import Transformer
from waitinfo.text.corpus import Corpus
from waitinfo.training.config import RunConfig

SWITCHES = ("info_self_attention", "info_cross_attention")  # of the model, without weights
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

    Where the new model fixes the info of a side to 1, the weights that predict it are left out.
    """
    given = load_model(folder, "cpu")
    old, new = asdict(given.model.config), asdict(model.config)
    for name, value in new.items():
        free = name in SWITCHES or "dropout" in name or (name in SIDES and value == "one")
        if old[name] != value and not free:
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
    model.load_weights({name: weight for name, weight in weights.items() if name in wanted})


def fit_token_info(model: Transformer, corpus: Corpus) -> None:
    """Give heuristic info its statistics: totals of both sides equal, and 1 on average."""
    entry = corpus.manifest["splits"]["train"]
    mean_length = (entry["source_tokens"] + entry["target_tokens"]) / 2
    for info, side in ((model.source_info, "source"), (model.target_info, "target")):
        if info is not None:
            counts = torch.from_numpy(corpus.token_counts(side)).to(model.device)
            info.fit(counts, mean_length / max(1, entry[f"{side}_tokens"]))
