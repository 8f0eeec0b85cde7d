"""Systems that are only policies: they decide for any model with plain cross-attention.

Such a model may have been trained by any system. Trained under the name of a policy, a model is one
of multipath: given the source read so far, it acts as the wait-k model of the current lag.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from waitinfo.systems.base import DialValue, LossContext, Losses, System, SystemOptions
from waitinfo.systems.wait_k import Multipath

if TYPE_CHECKING:
    from torch import Tensor

    from waitinfo.model.batch import Batch
    from waitinfo.model.transformer import Transformer


class Policy(System):
    """A system that decides by `ready` and `accept` and leaves training to multipath."""

    validation_lag: ClassVar[int] = 5
    rereads = True

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        common = {field.name: getattr(self.options, field.name) for field in fields(SystemOptions)}
        self.models = Multipath(common)

    def training_dial(self, batch: Batch, context: LossContext) -> DialValue | Tensor | None:
        return self.models.training_dial(batch, context)

    def loss(self, model: Transformer, batch: Batch, context: LossContext) -> Losses:
        """The loss of multipath; with a fixed dial, its loss at a lag of `validation_lag`.

        The path of a policy depends on the predicted tokens, so it is not known in training.
        """
        if context.k is not None:
            context = replace(context, k=self.validation_lag)
        return self.models.loss(model, batch, context)
