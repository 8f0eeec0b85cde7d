"""A new model for a run."""

from __future__ import annotations

import torch

from waitinfo.model.transformer import Transformer
from waitinfo.text.corpus import Corpus
from waitinfo.training.config import RunConfig


def build_model(run: RunConfig, corpus: Corpus, device: torch.device) -> Transformer:
    """The model that the run's seed decides."""
    torch.manual_seed(run.training.seed)
    model = Transformer(run.model_config(corpus)).to(device)
    fit_token_info(model, corpus)
    return model


def fit_token_info(model: Transformer, corpus: Corpus) -> None:
    """Give heuristic info its statistics: totals of both sides equal, and 1 on average."""
    entry = corpus.manifest["splits"]["train"]
    mean_length = (entry["source_tokens"] + entry["target_tokens"]) / 2
    for info, side in ((model.source_info, "source"), (model.target_info, "target")):
        if info is not None:
            counts = torch.from_numpy(corpus.token_counts(side)).to(model.device)
            info.fit(counts, mean_length / max(1, entry[f"{side}_tokens"]))
