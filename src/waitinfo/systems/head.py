"""A small network that a policy asks about the token that was just computed.

It has one hidden layer, and computes in float64: rows computed together or alone then decide alike.
Inputs are standardised in training; the first layer contains that already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from waitinfo.errors import WaitinfoError
from waitinfo.systems.interface import columns, exact, like, sigmoid

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Head:
    """sigmoid(out · relu(states · from_states + numbers · from_numbers + bias) + out_bias)."""

    from_states: Array  # [d, H]
    from_numbers: Array  # [N, H]
    bias: Array  # [H]
    out: Array  # [H]
    out_bias: Array  # [1]

    @classmethod
    def of(cls, tensors: Mapping[str, Array], width: int, numbers: int) -> Head:
        """From the tensors of a folder, for states of this width and so many numbers."""
        units = len(tensors["bias"]) if "bias" in tensors else 0
        shapes = {
            "from_states": (width, units),
            "from_numbers": (numbers, units),
            "bias": (units,),
            "out": (units,),
            "out_bias": (1,),
        }
        for name, shape in shapes.items():
            if name not in tensors or tensors[name].shape != shape or not units:
                found = tensors[name].shape if name in tensors else "missing"
                raise WaitinfoError(f"head.{name}: is {found}, not {shape}; train the head again")
        return cls(**{name: tensors[name].astype(np.float64) for name in shapes})

    @property
    def tensors(self) -> dict[str, Array]:
        """What `of` takes, as it is stored: matrices in half precision, vectors in single."""
        return {
            name: value.astype(np.float16 if value.ndim > 1 else np.float32)
            for name, value in vars(self).items()
        }

    def __call__(self, states: Tensor, numbers: list[Tensor]) -> Tensor:
        """[B] from states [B, d] and numbers [B] each, all of one kind."""
        states, rows = exact(states), columns(numbers)
        hidden = states @ like(self.from_states, states) + rows @ like(self.from_numbers, states)
        hidden = hidden + like(self.bias, states)
        hidden = hidden * (hidden > 0)
        return sigmoid(hidden @ like(self.out, states) + like(self.out_bias, states))
