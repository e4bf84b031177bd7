"""Replay keeps a bounded sample of past chunks, so that learning does not forget them.

Each chunk is self-contained: it holds its inputs and the memory states that they saw.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import structlog
import torch
from torch import Tensor

from streamd.errors import CorruptionError
from streamd.models import LinkInputs
from streamd.models.inputs import without_deleted
from streamd.models.widening import fits, widened_inputs
from streamd.schema import Schema
from streamd.segments.deletions import Deletions
from streamd.settings import Settings
from streamd.storage import write_durably
from streamd.tensors import pack, unpack

logger = structlog.get_logger()
Strategy = Literal["uniform", "recent", "none"]


@dataclass(frozen=True)
class ReplayChunk:
    """Inputs of some events, with the memory of the nodes around them as it was then.

    Learning from a replayed chunk moves no memory. first_edge: id of its chunk's first event.
    state_MD: float32[M, D], memory of `inputs.node_M`.
    """

    first_edge: int
    inputs: LinkInputs
    state_MD: Tensor

    def without_deleted(self, deletions: Deletions) -> "ReplayChunk":
        """The chunk without what deletes hide; the same object where they hide nothing of it."""
        remaining = without_deleted(
            self.inputs, self.state_MD, deletions.is_gone, deletions.hides_edges
        )
        return self if remaining is None else ReplayChunk(self.first_edge, *remaining)

    def tensors(self) -> dict[str, Tensor]:
        """The chunk as named tensors, for a file."""
        return {**self.inputs.tensors(), "state_MD": self.state_MD.contiguous()}

    @classmethod
    def restored(cls, first_edge: int, tensors: dict[str, Tensor]) -> "ReplayChunk":
        """The chunk of named tensors. Takes `state_MD` out of `tensors`. Raises: KeyError."""
        state = tensors.pop("state_MD")
        return cls(first_edge, LinkInputs.restored(tensors), state)

    def widened(self, made_on: Schema, schema: Schema) -> "ReplayChunk | None":
        """The chunk under a schema; the same object where it was recorded under it.

        made_on: a schema that it may have been recorded under instead. Returns: None where it has
        other widths, as where an older release recorded fewer facts.
        """
        if fits(self.inputs, schema):
            return self
        if not fits(self.inputs, made_on):
            return None
        return replace(self, inputs=widened_inputs(self.inputs, made_on, schema))


class ReplayStore:
    """A bounded store of past chunks, each in a file of its own. Owner: the trainer.

    What it holds after n offers depends on the seed and the offers alone.

    strategy: "uniform" holds a uniform sample of all chunks (reservoir sampling, Vitter 1985,
    algorithm R), "recent" the newest, "none" nothing.
    """

    def __init__(
        self, folder: Path | None, capacity_chunks: int, seed: int, strategy: Strategy = "uniform"
    ) -> None:
        """folder: where the files are; None keeps chunks in memory only. capacity_chunks: most
        chunks that it holds."""
        self._folder = folder
        self.capacity = capacity_chunks
        self._seed = seed
        self._strategy = strategy
        self.num_offered = 0
        self._chunks: list[ReplayChunk] = []
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def of(cls, settings: Settings, folder: Path | None = None) -> "ReplayStore":
        """A store of `training.replay_capacity_events`, in chunks of `model.memory_chunk`."""
        training = settings.training
        return cls(
            folder,
            max(1, training.replay_capacity_events // settings.model.memory_chunk),
            training.seed,
            training.replay,
        )

    def offer(self, chunk: ReplayChunk) -> None:
        """Offer the store one more chunk. A full store may take it in place of another."""
        self.num_offered += 1
        slot = len(self._chunks)
        if self._strategy == "none":
            return

        # A full store: the oldest goes, or a chunk by chance, perhaps the one offered.
        if slot >= self.capacity and self._strategy == "recent":
            slot = (self.num_offered - 1) % self.capacity
        elif slot >= self.capacity:
            slot = int(
                np.random.default_rng([self._seed, 1, chunk.first_edge]).integers(self.num_offered)
            )
            if slot >= self.capacity:
                return
        self._chunks[slot : slot + 1] = [chunk]
        if self._folder is not None:
            self._store(chunk)

    def draw(self, num_events: float, window_edge: int) -> list[ReplayChunk]:
        """Draw distinct chunks with `num_events` events in all, on average over windows while there
        are as many. The window is the seed."""
        rng = np.random.default_rng([self._seed, 2, window_edge])
        drawn: list[ReplayChunk] = []
        left = num_events
        for i in rng.permutation(len(self._chunks)).tolist():
            # Of a chunk with more events than are left, take all or nothing, by chance.
            if left <= rng.random() * self._chunks[i].inputs.num_events:
                break
            drawn.append(self._chunks[i])
            left -= self._chunks[i].inputs.num_events
        return drawn

    def named(self, first_edges: Sequence[int]) -> list[ReplayChunk]:
        """The chunks with these first event ids, in this order. Raises: KeyError for others."""
        by_edge = {chunk.first_edge: chunk for chunk in self._chunks}
        return [by_edge[edge] for edge in first_edges]

    def hide_deleted(self, deletions: Deletions) -> None:
        """Remove what deletes hide from all chunks and their files."""
        for slot, chunk in enumerate(self._chunks):
            remaining = chunk.without_deleted(deletions)
            if remaining is not chunk:
                self._chunks[slot] = remaining
                if self._folder is not None:
                    self._store(remaining)

    @property
    def chunks(self) -> list[ReplayChunk]:
        """The chunks that it holds, in no order."""
        return list(self._chunks)

    @property
    def num_events(self) -> int:
        """Number of events in the chunks that it holds."""
        return sum(c.inputs.num_events for c in self._chunks)

    def index(self) -> dict[str, list[int] | int]:
        """The index that a checkpoint stores; the chunks themselves are files already."""
        return {"offered": self.num_offered, "chunks": [c.first_edge for c in self._chunks]}

    def restore(self, index: dict[str, list[int] | int], made_on: Schema, schema: Schema) -> None:
        """Load the chunks that a checkpoint's index names.

        made_on: the log's schema as of the checkpoint. schema: the log's now; chunks from before it
        was extended are widened. A store that has become smaller takes a sample of them. A chunk
        that cannot be read is logged and left out, and so is one that was recorded with another
        number of facts.
        """
        names = index["chunks"]
        assert isinstance(names, list) and isinstance(index["offered"], int)
        self.num_offered = index["offered"]
        self._chunks = []
        num_left_out = 0
        for name in self._fitting(names):
            try:
                arrays = unpack(self._file(name))[0]
                read = ReplayChunk.restored(
                    name, {n: torch.from_numpy(a) for n, a in arrays.items()}
                )
                chunk = read.widened(made_on, schema)
                if chunk is None:
                    num_left_out += 1
                    continue
                if chunk is not read:
                    # The next checkpoint says that all are of the schema now.
                    self._store(chunk)
                self._chunks.append(chunk)
            except (CorruptionError, FileNotFoundError, KeyError) as error:
                logger.error(
                    "replay_chunk_lost",
                    file=str(self._file(name)),
                    error=str(error),
                    meaning="it is not replayed any more",
                )

        if num_left_out:
            logger.warning(
                "replay_chunks_left_out",
                chunks=num_left_out,
                reason="an older release recorded them with fewer facts",
                meaning="they are not replayed any more",
            )

    def sweep(self) -> None:
        """Remove files of chunks no longer held. Call it once no checkpoint names them."""
        if self._folder is not None:
            held = {self._file(c.first_edge).name for c in self._chunks}
            for path in self._folder.glob("*.safetensors"):
                if path.name not in held:
                    path.unlink()

    def _fitting(self, names: list[int]) -> list[int]:
        """As many names as the store holds, in their order: a uniform sample, or the newest."""
        if len(names) <= self.capacity:
            return names
        if self._strategy == "recent":
            return sorted(names)[-self.capacity :]
        rng = np.random.default_rng([self._seed, 4, self.num_offered])
        return [
            names[i] for i in np.sort(rng.choice(len(names), self.capacity, replace=False)).tolist()
        ]

    def _store(self, chunk: ReplayChunk) -> None:
        write_durably(
            self._file(chunk.first_edge), pack({n: t.numpy() for n, t in chunk.tensors().items()})
        )

    def _file(self, first_edge: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{first_edge:020d}.safetensors"
