"""Fused kernels for a GPU, in Triton, which is installed with torch for CUDA.

Those for streaming are in `rows`. Here are those for training:

Sentences are short: the whole attention of one head fits on one multiprocessor. Once the matrix
products are fast, most of a training step is memory traffic of activations, so each kernel replaces
several passes over memory by one. The reference implementations, used on other devices, are in
`model.attention`, `model.layers` and `model.loss`. Block sizes and program counts are tuned for an
H200.
"""

from waitinfo.model.kernels.attention import MOST_KEYS, attention, self_attention
from waitinfo.model.kernels.layers import add_norm, linear_relu, token_terms
from waitinfo.model.kernels.monotonic import MOST_SOURCES, expected_alignment, lookback

__all__ = [
    "MOST_KEYS",
    "MOST_SOURCES",
    "add_norm",
    "attention",
    "expected_alignment",
    "linear_relu",
    "lookback",
    "self_attention",
    "token_terms",
]
