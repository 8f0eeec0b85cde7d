"""The fused kernels of training on a GPU, in Triton, which comes with torch there.

Sentences are short: a whole attention of one head fits on one multiprocessor, and what is left of a
training step once its matrix products are fast is moving activations through memory. So each of
these does in one pass what would take many. What takes their place elsewhere, and defines them, is
in `model.attention`, `model.layers` and `model.loss`. Block sizes and numbers of programs are meant
for an H200.
"""

from waitinfo.model.kernels.attention import MOST_KEYS, attention, self_attention
from waitinfo.model.kernels.feed_forward import linear_relu
from waitinfo.model.kernels.loss import token_terms
from waitinfo.model.kernels.residual import add_norm

__all__ = ["MOST_KEYS", "add_norm", "attention", "linear_relu", "self_attention", "token_terms"]
