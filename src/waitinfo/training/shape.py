"""The size of a model, where none was given: the one that should learn most in the time.

The loss of a Transformer with N parameters in its layers that saw D tokens falls about as
A / N^a + B / D^a (Hoffmann et al., 2022). A token that is seen again counts for less each time; the
constants for that and those of the law are from Muennighoff et al. (2023). They were fitted to
language models, so only the order of the sizes is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from waitinfo.model.config import SIZES
from waitinfo.training.config import RunConfig
from waitinfo.training.defaults import Circumstances, expected_updates

CANDIDATES = ("tiny", "mini", "small", "base")  # in this order; "big" only if it was asked for
CLEARLY = 0.95  # a larger model must have a loss this much lower: a smaller one translates faster
MOST_PARAMETERS = 32  # for each token of the corpus: a larger model only learns it by heart
EXPONENT, OF_PARAMETERS, OF_TOKENS = 0.353, 521.0, 1488.0
REPEATS = 15.39  # as many repetitions of a text are worth two thirds as much as new text


def may_choose_size(run: RunConfig) -> bool:
    """Whether nothing given depends on the size."""
    return not run.training.start_from and not run.model.keys() & SIZES["base"].keys()


def choose_size(
    run: RunConfig, settings: Callable[[RunConfig], tuple[dict[str, Any], Circumstances]]
) -> dict[str, Any]:
    """Settings for the best size, and the size.

    `settings` chooses the rest for one size. Sizes are tried in order as long as each should learn
    more than the one before, so that no model is tried that is much too large for the machine.
    """
    best: dict[str, Any] = {}
    least, most, epochs = math.inf, math.inf, {}
    for size in CANDIDATES:
        parameters = layer_parameters(**SIZES[size])
        if parameters > most:
            break
        chosen, seen = settings(replace(run, size=size))
        tokens = tokens_seen(run, chosen, seen)
        epochs[size] = round(tokens / seen.tokens, 2)
        loss = expected_loss(parameters, tokens, seen.tokens)
        if loss > CLEARLY * least:
            break
        best, least, most = {**chosen, "size": size}, loss, MOST_PARAMETERS * seen.tokens
    return {**best, "sizes": epochs}


def tokens_seen(run: RunConfig, chosen: dict[str, Any], seen: Circumstances) -> int:
    """Tokens of all updates, by the longer side of each pair."""
    config = replace(run.training, **chosen["training"])
    updates = expected_updates(config, config.updates, config.batch_tokens, seen)
    return updates * config.batch_tokens * config.accumulate * seen.processes


def layer_parameters(
    width: int, ffn: int, encoder_layers: int, decoder_layers: int, heads: int
) -> int:
    """Weights of the matrices of a Transformer's layers."""
    del heads
    attention, forward = 4 * width**2, 2 * width * ffn
    return encoder_layers * (attention + forward) + decoder_layers * (2 * attention + forward)


def expected_loss(parameters: int, tokens: int, unique: int) -> float:
    """What is left to learn after so many tokens of a text with so many `unique` ones."""
    repeats = max(0.0, tokens / unique - 1)
    worth = min(tokens, unique) + unique * REPEATS * (1 - math.exp(-repeats / REPEATS))
    return OF_PARAMETERS / parameters**EXPONENT + OF_TOKENS / max(1.0, worth) ** EXPONENT
