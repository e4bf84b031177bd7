"""Replay keeps a bounded sample of past chunks, so that learning does not forget them.

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
    """Inputs of some events, with the memory of the nodes around them as it was then.

    Learning from a replayed chunk moves no memory. first_edge: id of its chunk's first event.
    state_MD: float32[M, D], memory of `inputs.node_M`. num_events: of the chunk; of several ranks
    each has the inputs of its share of them.
    """

    first_edge: int
    inputs: LinkInputs
    state_MD: Tensor
    num_events: int

    @classmethod
    def joined(cls, parts: Sequence["ReplayChunk"]) -> "ReplayChunk":
        """The whole chunk of all ranks' shares."""
        inputs, state_MD = joined([(part.inputs, part.state_MD) for part in parts])
        return cls(parts[0].first_edge, inputs, state_MD, parts[0].num_events)

    def without_deleted(self, deletions: Deletions) -> "ReplayChunk":
        """The chunk without what deletes hide; the same object where they hide nothing of it."""
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
    def restored(cls, first_edge: int, tensors: dict[str, Tensor]) -> "ReplayChunk":
        """The whole chunk of named tensors. Takes `state_MD` out of `tensors`. Raises: KeyError."""
        state = tensors.pop("state_MD")
        inputs = LinkInputs.restored(tensors)
        return cls(first_edge, inputs, state, inputs.num_events)

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


def whole_chunk(chunk: ReplayChunk, ranks: Ranks) -> ReplayChunk | None:
    """The whole chunk, on the first rank; None on the others. chunk: this rank's share."""
    if ranks.size == 1:
        return chunk
    parts = ranks.tensors_to_first(chunk.tensors())
    if parts is None:
        return None
    shares = [ReplayChunk.restored(chunk.first_edge, part) for part in parts]
    return replace(ReplayChunk.joined(shares), num_events=chunk.num_events)


class ReplayStore:
    """A bounded store of past chunks, each in a file of its own. Owner: the trainer.

    What it holds after n offers depends on the seed and the offers alone. Several ranks make the
    same offers and hold their shares of the same chunks; the first one alone writes files, of whole
    chunks.

    strategy: "uniform" holds a uniform sample of all chunks (reservoir sampling, Vitter 1985,
    algorithm R), "recent" the newest, "none" nothing.
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
        """folder: where the files are; None keeps chunks in memory only. capacity_chunks: most
        chunks that it holds. windows: whether hops are windows of time."""
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
        """A store of `training.replay_capacity_events`, in chunks of `model.memory_chunk`."""
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
        """A store equal to this one, to be changed by itself. The chunks, which never change, are
        shared."""
        twin = copy.copy(self)
        twin._chunks = list(self._chunks)
        return twin

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
            if left <= rng.random() * self._chunks[i].num_events:
                break
            drawn.append(self._chunks[i])
            left -= self._chunks[i].num_events
        return drawn

    def named(self, first_edges: Sequence[int]) -> list[ReplayChunk]:
        """The chunks with these first event ids, in this order. Raises: KeyError for others."""
        by_edge = {chunk.first_edge: chunk for chunk in self._chunks}
        return [by_edge[edge] for edge in first_edges]

    def drop_deleted(self, deletions: Deletions) -> None:
        """Remove what deletes hide from all chunks and their files."""
        remaining = [chunk.without_deleted(deletions) for chunk in self._chunks]
        pairs = zip(remaining, self._chunks, strict=True)
        # Where a delete hides something of one rank's share, the whole chunk is written again.
        changed = self._ranks.total([float(now is not before) for now, before in pairs])
        self._chunks = remaining
        if self._folder is not None:
            for chunk, count in zip(remaining, changed, strict=True):
                if count:
                    self._store(chunk)

    @property
    def chunks(self) -> list[ReplayChunk]:
        """The chunks that it holds, in no order."""
        return list(self._chunks)

    @property
    def num_events(self) -> int:
        """Number of events in the chunks that it holds."""
        return sum(c.num_events for c in self._chunks)

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
        chunks = []
        num_left_out = 0
        for name in self._fitting(names, index["offered"]):
            try:
                arrays = unpack(self._file(name))[0]
                read = ReplayChunk.restored(
                    name, {n: torch.from_numpy(a) for n, a in arrays.items()}
                )
                chunk = read.widened(made_on, schema)
                if chunk is None:
                    num_left_out += 1
                    continue
                if chunk is not read and self._ranks.is_first:
                    # The next checkpoint says that all are of the schema now.
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
                "replay_chunks_left_out",
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
        """Remove files of chunks no longer held. Call it once no checkpoint names them."""
        if self._folder is not None and self._ranks.is_first:
            held = {self._file(c.first_edge).name for c in self._chunks}
            for path in self._folder.glob("*.safetensors"):
                if path.name not in held:
                    path.unlink()

    def _fitting(self, names: list[int], num_offered: int) -> list[int]:
        """As many names as the store holds, in their order: a uniform sample, or the newest."""
        if len(names) <= self.capacity:
            return names
        if self._strategy == "recent":
            return sorted(names)[-self.capacity :]
        rng = np.random.default_rng([self._seed, 4, num_offered])
        return [
            names[i] for i in np.sort(rng.choice(len(names), self.capacity, replace=False)).tolist()
        ]

    def _store(self, chunk: ReplayChunk) -> None:
        """Write a chunk. chunk: this rank's share; all ranks store it at the same time."""
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
