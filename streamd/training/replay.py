"""Replay keeps a bounded sample of past chunks, so that training does not forget them.

Each chunk is self-contained: it holds its inputs and the memory states that they saw.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import structlog
import torch
from torch import Tensor

from streamd.errors import CorruptionError
from streamd.eventlog.deletions import Deletions
from streamd.models import LinkInputs, architecture_of
from streamd.models.inputs import joined, some_events, without_deleted
from streamd.models.widening import fits, widened_inputs
from streamd.ranks import ALONE, Ranks
from streamd.schema import Schema
from streamd.storage import write_durably
from streamd.tensors import pack, unpack
from streamd.training.learning_settings import LearningSettings

logger = structlog.get_logger()
Strategy = Literal["uniform", "recent", "none"]


@dataclass(frozen=True)
class ReplayChunk:
    """Inputs of some events, with the memory of the surrounding nodes at the time of recording.

    A training step on a replayed chunk does not move memory.

    first_edge: id of the chunk's first event.
    state_MD: float32[M, D], memory of `inputs.node_M`.
    num_events: events of the whole chunk; with several ranks each has the inputs of its share.
    """

    first_edge: int
    inputs: LinkInputs
    state_MD: Tensor
    num_events: int

    @classmethod
    def join(cls, parts: Sequence["ReplayChunk"]) -> "ReplayChunk":
        """Join the shares of all ranks into the whole chunk."""
        inputs, state_MD = joined([(part.inputs, part.state_MD) for part in parts])
        return cls(parts[0].first_edge, inputs, state_MD, parts[0].num_events)

    def without_deleted(self, deletions: Deletions) -> "ReplayChunk":
        """The chunk without deleted nodes and events; the same object if none of it is deleted."""
        remaining = without_deleted(
            self.inputs, self.state_MD, deletions.is_gone, deletions.hides_edges
        )
        if remaining is None:
            return self
        return replace(self, inputs=remaining[0], state_MD=remaining[1])

    def tensors(self) -> dict[str, Tensor]:
        """The chunk as named tensors, for a file."""
        return {**self.inputs.tensors(), "state_MD": self.state_MD.contiguous()}

    @classmethod
    def from_tensors(cls, first_edge: int, tensors: dict[str, Tensor]) -> "ReplayChunk":
        """Build a whole chunk from named tensors. Removes `state_MD` from `tensors`. Raises:
        KeyError."""
        state = tensors.pop("state_MD")
        inputs = LinkInputs.restored(tensors)
        return cls(first_edge, inputs, state, inputs.num_events)

    def widen(self, made_on: Schema, schema: Schema) -> "ReplayChunk | None":
        """The chunk under a schema; the same object if it was recorded under that schema.

        made_on: the older schema that the chunk may have been recorded under. Returns: None if the
        widths fit neither schema, for example because an older release recorded fewer facts.
        """
        if fits(self.inputs, schema):
            return self
        if not fits(self.inputs, made_on):
            return None
        return replace(self, inputs=widened_inputs(self.inputs, made_on, schema))


def whole_chunk(chunk: ReplayChunk, ranks: Ranks) -> ReplayChunk | None:
    """Gather the whole chunk on the first rank; None on the others. chunk: this rank's share."""
    if ranks.size == 1:
        return chunk
    parts = ranks.tensors_to_first(chunk.tensors())
    if parts is None:
        return None
    shares = [ReplayChunk.from_tensors(chunk.first_edge, part) for part in parts]
    return replace(ReplayChunk.join(shares), num_events=chunk.num_events)


class ReplayStore:
    """A bounded store of past chunks, one file each. Owner: the trainer.

    Its content after n offers depends only on the seed and the offers. All ranks make the same
    offers and hold their shares of the same chunks; only the first rank writes files, of whole
    chunks.

    strategy: "uniform" holds a uniform sample of all chunks (reservoir sampling, Vitter 1985,
    algorithm R), "recent" the newest ones, "none" nothing.
    """

    def __init__(
        self,
        folder: Path | None,
        capacity_chunks: int,
        seed: int,
        strategy: Strategy = "uniform",
        ranks: Ranks = ALONE,
        windows: bool = False,
    ) -> None:
        """folder: holds the files; None keeps chunks in memory only.
        capacity_chunks: the most chunks that the store holds.
        windows: whether the model's hops are windows of time.
        """
        self._folder = folder
        self._ranks = ranks
        self._windows = windows
        self.capacity = capacity_chunks
        self._seed = seed
        self._strategy = strategy
        self.num_offered = 0
        self._chunks: list[ReplayChunk] = []
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def of(
        cls, settings: LearningSettings, folder: Path | None = None, ranks: Ranks = ALONE
    ) -> "ReplayStore":
        """A store for `training.replay_capacity_events` events, in chunks of
        `model.memory_chunk`."""
        training = settings.training
        return cls(
            folder,
            max(1, training.replay_capacity_events // settings.model.memory_chunk),
            training.seed,
            training.replay,
            ranks,
            architecture_of(settings.model).plan(settings.model).window_us > 0,
        )

    def copy(self) -> "ReplayStore":
        """An independent copy of the store. It shares the chunks, which are immutable."""
        copied = copy.copy(self)
        copied._chunks = list(self._chunks)
        return copied

    def offer(self, chunk: ReplayChunk) -> None:
        """Offer one more chunk. A full store either replaces a chunk by it or drops it."""
        self.num_offered += 1
        slot = len(self._chunks)
        if self._strategy == "none":
            return

        # A full store replaces the oldest chunk ("recent") or one drawn at random ("uniform"); the
        # offered chunk itself may be the one that is dropped.
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
        """Draw distinct chunks, without replacement, until they have `num_events` events.

        The number is met on average over windows, as long as the store holds enough events. The
        seed is `window_edge`, the window's first event id.
        """
        rng = np.random.default_rng([self._seed, 2, window_edge])
        drawn: list[ReplayChunk] = []
        left = num_events
        for i in rng.permutation(len(self._chunks)).tolist():
            # A chunk with more events than are left is taken whole or not at all, at random.
            if left <= rng.random() * self._chunks[i].num_events:
                break
            drawn.append(self._chunks[i])
            left -= self._chunks[i].num_events
        return drawn

    def chunks_of(self, first_edges: Sequence[int]) -> list[ReplayChunk]:
        """The chunks with these first event ids, in this order. Raises: KeyError for an unknown
        id."""
        by_edge = {chunk.first_edge: chunk for chunk in self._chunks}
        return [by_edge[edge] for edge in first_edges]

    def drop_deleted(self, deletions: Deletions) -> None:
        """Remove deleted nodes and events from all chunks and their files."""
        remaining = [chunk.without_deleted(deletions) for chunk in self._chunks]
        pairs = zip(remaining, self._chunks, strict=True)
        # If a delete changes one rank's share, all ranks take part in writing the whole chunk
        # again.
        changed = self._ranks.total([float(now is not before) for now, before in pairs])
        self._chunks = remaining
        if self._folder is not None:
            for chunk, count in zip(remaining, changed, strict=True):
                if count:
                    self._store(chunk)

    @property
    def chunks(self) -> list[ReplayChunk]:
        """The chunks that the store holds, in no particular order."""
        return list(self._chunks)

    @property
    def num_events(self) -> int:
        """Number of events in all chunks of the store."""
        return sum(c.num_events for c in self._chunks)

    def index(self) -> dict[str, list[int] | int]:
        """The index for a checkpoint. It names the chunks; their files are already written."""
        return {"offered": self.num_offered, "chunks": [c.first_edge for c in self._chunks]}

    def restore(self, index: dict[str, list[int] | int], made_on: Schema, schema: Schema) -> None:
        """Load the chunks that a checkpoint's index names.

        A store with a smaller capacity than then loads a sample of them. A chunk that cannot be
        read, or was recorded with another number of facts, is logged and left out.

        made_on: the log's schema at the time of the checkpoint. schema: the log's schema now; older
        chunks are widened to it.
        """
        names = index["chunks"]
        assert isinstance(names, list) and isinstance(index["offered"], int)
        chunks = []
        num_left_out = 0
        for name in self._fitting(names, index["offered"]):
            try:
                arrays = unpack(self._file(name))[0]
                read = ReplayChunk.from_tensors(
                    name, {n: torch.from_numpy(a) for n, a in arrays.items()}
                )
                chunk = read.widen(made_on, schema)
                if chunk is None:
                    num_left_out += 1
                    continue
                if chunk is not read and self._ranks.is_first:
                    # The next checkpoint records the new schema for all chunks, so the file must
                    # have it too.
                    self._write(chunk)
                chunks.append(self.share_of(chunk))
            except (CorruptionError, FileNotFoundError, KeyError) as error:
                logger.error(
                    "replay_chunk_lost",
                    file=str(self._file(name)),
                    error=str(error),
                    meaning="it is not replayed any more",
                )
        self.num_offered = index["offered"]
        self._chunks = chunks

        if num_left_out:
            logger.warning(
                "replay_chunks_dropped",
                chunks=num_left_out,
                reason="an older release recorded them with fewer facts",
                meaning="they are not replayed any more",
            )

    def share_of(self, chunk: ReplayChunk) -> ReplayChunk:
        """This rank's share of a whole chunk."""
        if self._ranks.size == 1:
            return chunk
        events = self._ranks.share(chunk.num_events)
        inputs, state_MD = some_events(chunk.inputs, chunk.state_MD, events, self._windows)
        return replace(chunk, inputs=inputs, state_MD=state_MD)

    def sweep(self) -> None:
        """Remove the files of chunks no longer held. Call it once no checkpoint names them."""
        if self._folder is not None and self._ranks.is_first:
            held = {self._file(c.first_edge).name for c in self._chunks}
            for path in self._folder.glob("*.safetensors"):
                if path.name not in held:
                    path.unlink()

    def _fitting(self, names: list[int], num_offered: int) -> list[int]:
        """At most `capacity` of the names, in their order: a uniform sample, or the newest."""
        if len(names) <= self.capacity:
            return names
        if self._strategy == "recent":
            return sorted(names)[-self.capacity :]
        rng = np.random.default_rng([self._seed, 4, num_offered])
        return [
            names[i] for i in np.sort(rng.choice(len(names), self.capacity, replace=False)).tolist()
        ]

    def _store(self, chunk: ReplayChunk) -> None:
        """Write a chunk. chunk: this rank's share; all ranks call this at the same time."""
        whole = whole_chunk(chunk, self._ranks)
        if whole is not None:
            self._write(whole)

    def _write(self, chunk: ReplayChunk) -> None:
        write_durably(
            self._file(chunk.first_edge), pack({n: t.numpy() for n, t in chunk.tensors().items()})
        )

    def _file(self, first_edge: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{first_edge:020d}.safetensors"
