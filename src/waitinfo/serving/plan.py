"""What a server is made of. Replicas on several machines are made from the same plan."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from waitinfo.serving.guards import KeyLimits, Keys
from waitinfo.serving.hub import Hub
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.models import COMPARED, load_models
from waitinfo.serving.settings import Settings


@dataclass(frozen=True)
class Plan:
    """Models, keys and limits, before anything is loaded."""

    models: tuple[Path, ...] = ()  # none: the bundled one
    streams: int = 32  # for each model
    compare: int = 0  # for each model under each other system
    device: str = "auto"
    dtype: str = "auto"
    keys: tuple[KeyLimits, ...] = ()
    settings: Settings = field(default_factory=Settings)

    @property
    def capacity(self) -> int:
        """Streams of all models."""
        return max(1, len(self.models)) * (self.streams + len(COMPARED) * self.compare)

    @property
    def limits(self) -> Settings:
        """The settings, with connections for every stream and as many that wait for one."""
        connections = max(self.settings.connections, 2 * self.capacity)
        return replace(self.settings, connections=connections)

    def build(self) -> Hub:
        """Load the models."""
        metrics = Metrics()
        models = load_models(
            self.models, metrics, self.streams, self.device, self.dtype, self.compare
        )
        return Hub(models, self.limits, Keys(self.keys), metrics)
