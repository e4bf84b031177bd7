"""The samples of a run: their seeds, names and shards."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streamd.errors import TFGNNError
from streamd.tfgnn.sampling.draws import ENDLESS, Array, hash_strings
from streamd.tfgnn.tables.reading import read_seeds


@dataclass(frozen=True, slots=True, eq=False)
class Seeds:
    """S samples. seed_ids: ids of their seed nodes. nth_S: int64, counts the samples of one node
    from 0. until_S: int64, the sample's time, before which its edges are; ENDLESS for all edges.
    Two samples differ in node or count."""

    seed_ids: list[bytes]
    nth_S: Array
    until_S: Array

    def __len__(self) -> int:
        return len(self.seed_ids)

    @property
    def sample_ids(self) -> list[bytes]:
        """The names of the samples: the seed's id, with `:1` appended for its second sample, and so
        on."""
        pairs = zip(self.seed_ids, self.nth_S.tolist(), strict=True)
        return [b"%s:%d" % (id, nth) if nth else id for id, nth in pairs]

    @property
    def handles(self) -> list[bytes]:
        """A unique text for each sample: its count and its seed's id."""
        pairs = zip(self.seed_ids, self.nth_S.tolist(), strict=True)
        return [b"%d:%s" % (nth, id) for id, nth in pairs]

    @classmethod
    def of_handles(cls, handles: list[bytes], until_S: Array) -> "Seeds":
        """The samples of some handles."""
        parts = [handle.partition(b":") for handle in handles]
        nth_S = np.array([int(nth) for nth, _, _ in parts], np.int64)
        return cls([id for _, _, id in parts], nth_S, until_S)

    @property
    def hash_S(self) -> Array:
        """A hash of each sample's handle, uint64."""
        return hash_strings(self.handles)

    def take(self, samples: Array) -> "Seeds":
        """Some of the samples. samples: int64, indices."""
        seed_ids = [self.seed_ids[s] for s in samples.tolist()]
        return Seeds(seed_ids, self.nth_S[samples], self.until_S[samples])

    def in_order(self) -> "Seeds":
        """The samples in the order of a shard: by name, then by seed."""
        names = list(zip(self.sample_ids, self.seed_ids, range(len(self.seed_ids)), strict=True))
        return self.take(np.array([location for _, _, location in sorted(names)], np.int64))

    def shards(self, count: int) -> list["Seeds"]:
        """The samples of each shard; the hash of a sample determines its shard."""
        # By hash, so that a sample's shard does not depend on the other samples.
        shard_S = shard_of(self.hash_S, count)
        order = np.argsort(shard_S, kind="stable")
        bounds = np.searchsorted(shard_S[order], np.arange(1, count))
        return [self.take(indices).in_order() for indices in np.split(order, bounds)]


def shard_of(hash_S: Array, count: int) -> Array:
    """The shard of each sample by its hash, int64."""
    return (hash_S % np.uint64(count)).astype(np.int64)


def name_samples(ids: list[bytes], times: list[int]) -> Seeds:
    """The samples of a table's rows; the samples of one node are counted in time order."""
    # Sorted, so that names do not depend on the order of the table's rows.
    rows = sorted(zip(ids, times, strict=True))
    nth, counted = [], 0
    for i, (id, _) in enumerate(rows):
        counted = counted + 1 if i and rows[i - 1][0] == id else 0
        nth.append(counted)
    return Seeds(
        [id for id, _ in rows],
        np.array(nth, np.int64),
        np.array([time for _, time in rows], np.int64),
    )


def load_seeds(path: Path) -> tuple[Seeds, bool]:
    """The samples of a table of seeds, and whether they have times. Raises: TFGNNError."""
    ids: list[bytes] = []
    times: list[int] = []
    has_times = False
    for rows in read_seeds(path):
        assert rows.ids is not None
        ids += rows.ids.tolist()
        if rows.time is None:
            if has_times:
                raise TFGNNError(f"{path} has times in some of its files.", "write them in all.")
            times += [int(ENDLESS)] * rows.num
            continue
        if len(times) and not has_times:
            raise TFGNNError(f"{path} has times in some of its files.", "write them in all.")
        has_times = True
        times += rows.time.tolist()
    return name_samples(ids, times), has_times


def every_node(ids: Iterable[bytes]) -> Seeds:
    """One sample for each node."""
    known = list(ids)
    return name_samples(known, [int(ENDLESS)] * len(known))
