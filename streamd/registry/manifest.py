"""The manifest of a version, and the settings that later training must share with it."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from streamd import __version__
from streamd.errors import VersionError
from streamd.events import EDGE_SETS, Schema
from streamd.registry.candidate import Candidate
from streamd.settings.tree import ModelSettings
from streamd.tensors import FORMAT

MEMORY = "memory-{:03d}.safetensors"
"""Name of the n-th file of a version's memory, from 0 on."""
OLD_MEMORY = "state.safetensors"
"""The one file of a memory before format 4."""
REMOVE = "remove its folder from models/, or restore it from a backup."
"""What the operator does about a damaged version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The manifest of a version: its position in the log, its training and its scores.

    Times are in microseconds, but `created`, which is wall time in seconds. edge: event id up to
    which memory has advanced. facts: names of the fact columns that the weights know, in order;
    empty in versions of a release before they had names. tail: MRR before and after learning on the
    held-out events, None if the window was too small to hold any out. checksums: CRC32C of each
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
        """The model settings of the version. Raises: VersionError if this release does not know one
        of them."""
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
        """The settings that later training must share with the version: see `fixed_settings`."""
        return {"model": self.model, "window": self.window_seconds}


def memory_names(manifest: Manifest) -> list[str]:
    """Names of the files of a version's memory, in order."""
    if manifest.format < 4:
        return [OLD_MEMORY]
    return sorted(name for name in manifest.checksums if name.startswith("memory-"))


def fixed_settings(model: ModelSettings, window_seconds: int) -> dict[str, Any]:
    """The settings that must be equal for learning to go on from a version or a checkpoint."""
    return {"model": model.model_dump(mode="json"), "window": window_seconds}


def learn_alike(stored: dict[str, Any], model: ModelSettings, window_seconds: int) -> bool:
    """Whether training can continue from a version or checkpoint with these stored
    `fixed_settings`.

    A setting that the release which stored them did not know has its default.
    """
    try:
        known = ModelSettings(**stored["model"]).model_dump(mode="json")
    except ValidationError:
        return False
    return {**stored, "model": known} == fixed_settings(model, window_seconds)


def read_manifest(path: Path, name: str) -> Manifest:
    """Read the manifest of the version `name`.

    Raises: VersionError if it cannot be read, is of a newer release, or of another version.
    """
    # The trainer may drop a version meanwhile.
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise VersionError(
            f"Version {name!r} is gone.", "pick one of `streamd models list`."
        ) from None
    except OSError as error:
        raise VersionError(
            f"The manifest of version {name} cannot be read: {error.strerror}.", REMOVE
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise VersionError(f"The manifest of version {name} is damaged: {error}.", REMOVE) from None

    # Refuse the versions of newer releases, and a folder that was copied by hand.
    if manifest.format > FORMAT:
        raise VersionError(
            f"Version {name} has format {manifest.format}, this streamd reads up to {FORMAT}.",
            "use the streamd that made it.",
        )
    if manifest.sets != EDGE_SETS:
        raise VersionError(
            f"Version {name} is of edge sets {', '.join(manifest.sets)}; this streamd knows "
            f"{EDGE_SETS[0]} only.",
            "use the streamd that made it.",
        )
    if manifest.name != name:
        raise VersionError(f"The folder {name} holds a copy of version {manifest.name}.", REMOVE)
    return manifest


def manifest_of(name: str, candidate: Candidate, checksums: dict[str, str]) -> Manifest:
    """Make the manifest of a candidate, immediately before it is written under a name.

    checksums: CRC32C of its files, by name.
    """
    learned, window = candidate.learned, candidate.window
    return Manifest(
        name=name,
        window_start_us=window.start_us,
        window_end_us=window.end_us,
        first_edge=window.first_edge,
        edge=candidate.edge,
        seq=candidate.seq,
        memory_us=candidate.memory_us,
        parent=candidate.parent,
        # Learning continues from the version only under the same model and window width.
        model=candidate.model.model_dump(mode="json"),
        schema=candidate.schema.fields(),
        window_seconds=candidate.window_seconds,
        training=candidate.training.model_dump(mode="json"),
        scores=candidate.scores,
        tail={
            "before": learned.tail_before,
            "after": learned.tail_after,
            "events": learned.num_tail,
        },
        loss=learned.loss,
        code=__version__,
        created=time.time(),
        facts=candidate.facts,
        format=FORMAT,
        checksums=checksums,
    )
