"""A new model for a run: its first weights, and its compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from waitinfo.config import from_mapping
from waitinfo.errors import WaitinfoError
from waitinfo.importing.sources import find_source
from waitinfo.model.attention import CrossAttention, cross_attention
from waitinfo.model.config import ModelConfig
from waitinfo.model.loss import token_terms
from waitinfo.model.transformer import Transformer
from waitinfo.text.corpus import Corpus
from waitinfo.text.languages import Languages
from waitinfo.text.tokenizer import Vocabulary
from waitinfo.trained.folder import read_config, resolve_model
from waitinfo.trained.saving import load_model
from waitinfo.training.config import RunConfig

# Of the model. The first two have no weights; a write head can be left out or begin untrained.
SWITCHES = ("info_self_attention", "info_cross_attention", "write_head")
LEAST_BIAS = -30.0  # of a token to begin with: as good as never
SIDES = {"source": "source_info", "target": "target_info"}


def build_model(run: RunConfig, corpus: Corpus, device: torch.device) -> Transformer:
    """The model that the run's seed decides, or the one it starts from."""
    torch.manual_seed(run.training.seed)
    model = Transformer(run.model_config(corpus)).to(device)
    if (start := starting_model(run, corpus)) is not None:
        take_weights(model, corpus, start)
    else:
        fit_token_info(model, corpus)
    return model


def starting_model(run: RunConfig, corpus: Corpus) -> Path | None:
    """The model whose weights a run begins with: a folder, or the name of a bundled one.

    Its shape and vocabulary must be the run's. It may be one of another system: what the run's
    system does not use is left out, and what that system alone has begins untrained.
    """
    if not run.training.start_from:
        return None
    try:
        folder = resolve_model(find_source(run.training.start_from, "float32"))
        config = read_config(folder)
        old = asdict(from_mapping(ModelConfig, config["model"], "model"))
        vocabulary = Vocabulary.load(folder)
        languages = Languages.read(config, folder)
    except WaitinfoError as error:
        raise WaitinfoError(f"training.start_from {error.sentence}") from None
    if "language_tokens" in config:
        raise WaitinfoError(
            f"training.start_from {folder}: a model of many languages; distill its translations "
            "for one pair, and start from a model of that pair"
        )
    ours = corpus.vocabulary
    if (vocabulary.source.model, vocabulary.target.model) != (ours.source.model, ours.target.model):
        raise WaitinfoError(
            f"training.start_from {folder}: its vocabulary is not the corpus's; prepare the corpus "
            f"with --vocab-from {folder}"
        )
    new = asdict(run.model_config(corpus))
    if (name := obstacle(old, new)) is not None:
        raise WaitinfoError(
            f"training.start_from {folder}: its model.{name} is {old[name]}, not {new[name]}"
        )
    for side in SIDES:
        its, known = getattr(languages, side), getattr(corpus.languages, side)
        if its and known and its != known:
            raise WaitinfoError(
                f"training.start_from {folder}: its {side} language is {its}, not {known}"
            )
    return folder


def obstacle(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """The setting that keeps a model from going on as another one, if there is any."""
    learned = new["info"] == "attention"
    may_differ = {*SWITCHES, *(name for name in new if "dropout" in name)}
    if old["info"] == "none":  # it is added, and begins untrained
        may_differ |= {"info", *SIDES.values()}
    if new["encoder"] == "causal":  # another one learns to do without what comes later
        may_differ.add("encoder")
    may_differ |= {name for name in SIDES.values() if not learned or new[name] == "one"}
    if not learned:
        may_differ.add("info")
    if cross_attention(old["cross_attention"]).key_vectors == 1:  # as plain attention has
        may_differ.add("cross_attention")
    return next((name for name in new if old[name] != new[name] and name not in may_differ), None)


def take_weights(model: Transformer, corpus: Corpus, folder: Path) -> None:
    """Begin with the weights of a model that `starting_model` found fit."""
    given = load_model(folder, "cpu").floats
    weights, wanted = given.weights(), model.weights()
    if "output_bias" in weights:  # tokens that were never written would dominate the loss
        weights["output_bias"] = weights["output_bias"].clamp(min=LEAST_BIAS)
    if given.config.cross_attention != model.config.cross_attention:
        weights |= attentions_from_plain(model, weights)
    for name in wanted.keys() & weights.keys():
        if wanted[name].shape != weights[name].shape:
            raise WaitinfoError(
                f"training.start_from {folder}: {model.config.cross_attention} attention cannot "
                f"begin with {name} of shape {list(weights[name].shape)}; see its from_plain"
            )
    model.load_weights(wanted | {name: weights[name] for name in wanted if name in weights})
    new = {name.partition(".")[0] for name in wanted.keys() - weights.keys()}
    changed = given.config.info != model.config.info
    fit_token_info(model, corpus, [side for side in SIDES if changed or SIDES[side] in new])


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


def fit_token_info(model: Transformer, corpus: Corpus, sides: Iterable[str] = SIDES) -> None:
    """Give heuristic info its statistics: totals of both sides equal, and 1 on average."""
    entry = corpus.manifest["splits"]["train"]
    mean_length = (entry["source_tokens"] + entry["target_tokens"]) / 2
    for side in sides:
        if (info := getattr(model, SIDES[side])) is not None:
            counts = torch.from_numpy(corpus.token_counts(side)).to(model.device)
            info.fit(counts, mean_length / max(1, entry[f"{side}_tokens"]))


# Compilation, of layers one by one and for any shape: all encoder layers share one compiled code,
# all decoder layers another. That takes a minute instead of the many of a whole model.


def compile_model(model: Transformer, note: Callable[[str], None]) -> bool:
    """Compile a model in place; False, and a note why, where that is not possible."""
    problem = compiler_problem(model.device)
    if problem:
        note(f"cannot compile ({problem}); training without")
        return False
    for layer in (*model.encoder_layers, *model.decoder_layers):
        layer.compile(dynamic=True)
    model.token_terms = torch.compile(token_terms, dynamic=True)
    return True


def compiler_problem(device: torch.device) -> str | None:
    """Why this machine cannot compile, if so; detected by compiling a trivial function."""
    try:
        double = torch.compile(lambda x: x * 2 + 1)
        double(torch.ones(8, device=device))
    except Exception as error:
        return str(error).strip().splitlines()[0][:200] if str(error).strip() else repr(error)
    return None
