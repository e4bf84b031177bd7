"""The manifest of a version, and the settings that learning must share to go on from it."""

from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from streamd.errors import VersionError
from streamd.events import EDGE_SETS, Schema
from streamd.settings.loading import ModelSettings, Settings

MEMORY = "memory-{:03d}.safetensors"
"""Name of the n-th file of a version's memory, from 0 on."""
OLD_MEMORY = "state.safetensors"
"""The one file of a memory before format 4."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The manifest of a version: its position in the log, how it was made, how it scored.

    Times are in microseconds, but `created`, which is wall time in seconds. edge: event id up to
    which memory has advanced. facts: names of the fact columns that the weights know, in order;
    empty in versions of a release before they had names. tail: MRR before and after learning on the
    held-out events, None where the window was too small to hold any out. checksums: CRC32C of each
    file of tensors, by name; empty before format 2.
    """

    name: str
    window_start_us: int
    window_end_us: int
    first_edge: int
    edge: int
    seq: int
    memory_us: int
    parent: str
    model: dict[str, Any]
    schema: dict[str, Any]
    window_seconds: int
    training: dict[str, Any]
    scores: dict[str, dict[str, float]]
    tail: dict[str, float | None]
    loss: float
    code: str
    created: float
    facts: tuple[str, ...] = ()
    sets: tuple[str, ...] = EDGE_SETS
    format: int = 1
    checksums: dict[str, str] = field(default_factory=dict)

    def model_settings(self) -> ModelSettings:
        """The model settings of the version. Raises: VersionError where this release does not know
        one of them."""
        try:
            return ModelSettings(**self.model)
        except ValidationError as error:
            problem = error.errors()[0]
            setting = ".".join(map(str, problem["loc"]))
            raise VersionError(
                f"Version {self.name} has a model setting this streamd does not know: {setting}: "
                f"{problem['msg']}.",
                "use the streamd that made it.",
            ) from None

    def log_schema(self) -> Schema:
        return Schema.restored(self.schema)

    @property
    def fixed_settings(self) -> dict[str, Any]:
        """The settings that learning must share to go on from the version: see `fixed_settings`."""
        return {"model": self.model, "window": self.window_seconds}


def memory_names(manifest: Manifest) -> list[str]:
    """Names of the files of a version's memory, in order."""
    if manifest.format < 4:
        return [OLD_MEMORY]
    return sorted(name for name in manifest.checksums if name.startswith("memory-"))


def fixed_settings(settings: Settings) -> dict[str, Any]:
    """The settings that must be equal for learning to go on from a version or a checkpoint."""
    return {
        "model": settings.model.model_dump(mode="json"),
        "window": settings.windows.width_seconds,
    }


def learn_alike(stored: dict[str, Any], settings: Settings) -> bool:
    """Whether learning can go on from what was learned under stored `fixed_settings`.

    A setting that the release which stored them did not know has its default.
    """
    try:
        model = ModelSettings(**stored["model"]).model_dump(mode="json")
    except ValidationError:
        return False
    return {**stored, "model": model} == fixed_settings(settings)
