"""The branches of the settings that training reads."""

from dataclasses import dataclass
from typing import Any

from streamd.registry.manifest import fixed_settings, learn_alike
from streamd.settings.tree import (
    GpuSettings,
    GraphSettings,
    ModelSettings,
    Settings,
    TrainingSettings,
    WindowSettings,
)

MORE_EPOCHS = 2
"""Upper bound of the epochs on a window of few events, as a multiple of `training.epochs`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningSettings:
    """The settings that a learner and its recorder share, and their device.

    device: "cpu" or "cuda", as `streamd.gpu.choose_device` returned it to the training process.
    label_dim: number of values in the target of a label event, 0 for none.
    """

    device: str
    model: ModelSettings
    training: TrainingSettings
    windows: WindowSettings
    graph: GraphSettings
    gpu: GpuSettings
    label_dim: int

    @classmethod
    def of(cls, settings: Settings, device: str) -> "LearningSettings":
        """Select the branches of these settings. device: "cpu" or "cuda", never "auto"."""
        return cls(
            device=device,
            model=settings.model,
            training=settings.training,
            windows=settings.windows,
            graph=settings.graph,
            gpu=settings.gpu,
            label_dim=settings.stream.label_dim,
        )

    @property
    def width_us(self) -> int:
        """Width of a window of event time, microseconds."""
        return self.windows.width_seconds * 1_000_000

    def epochs_of(self, num_events: int) -> int:
        """Epochs on a window of `num_events` events: `training.epochs`, or more to reach
        `training.min_steps`, but at most MORE_EPOCHS times `training.epochs`."""
        epochs = self.training.epochs
        steps = -(-num_events // self.model.memory_chunk)
        wanted = -(-self.training.min_steps // max(steps, 1))
        return min(max(epochs, wanted), MORE_EPOCHS * epochs)

    @property
    def resume_settings(self) -> dict[str, Any]:
        """The settings that must be equal for training to continue: see `fixed_settings`."""
        return fixed_settings(self.model, self.windows.width_seconds)

    def continues(self, stored: dict[str, Any]) -> bool:
        """Whether training can continue from a state that has these `fixed_settings`."""
        return learn_alike(stored, self.model, self.windows.width_seconds)
