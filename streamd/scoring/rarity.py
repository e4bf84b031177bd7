"""How rare an event is among the newest events of its edge set: a p-value by conformal prediction.

An event's *surprise* is -log of the model's probability of its destination among its candidates.
Two further values count: -log of the destination's share of all events, and of the pair's share of
the source's events. Each is compared with those of the newest events, which gives a p-value; their
weighted product is compared once more (Fisher, "Statistical Methods for Research Workers", 1925,
combines p-values by their product; Good, "On the weighted combination of significance tests", 1955,
by a weighted one). A surprise alone misses rare destinations: it is relative to 100 others, most of
which are as unlikely. If the newest events are exchangeable, P(p <= a) = a for every a and any
model: Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World", 2005, chapter 2 (smoothed
conformal predictors). Under drift it holds as far as the newest MAX_KEPT events resemble the next.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from streamd.events import Float32, Float64, Int64
from streamd.graph.facts.columns import FactColumn
from streamd.graph.negatives import hashes

MIN_EVENTS = 1_000
"""Number of events of an edge set that are compared before there is a p-value."""
MAX_KEPT = 50_000
"""Number of newest events of an edge set that an event is compared with. The p-value of an event
that is more surprising than all of them is random below 1 / (MAX_KEPT + 1)."""
MAX_SOURCES = 100_000
"""Number of sources with a usual surprise; the one without an event for longest is forgotten."""
DECAY = 0.95
"""Weight of a source's event per later event of it, in its usual surprise."""
PRIOR_WEIGHT = 5.0
"""Weight of the edge set's mean surprise in the usual surprise of a source."""
MODEL_WEIGHT = 0.1
"""Weight of the p-value by the model's surprise, of which those by counts weigh 1. The loss
distinguishes little between unlikely destinations: with equal weights the precision of alarms on
generated flows was .28 instead of .43, and more weight than this changed little."""
TIE_SEED = 0x7A11
"""Seed of the hash that breaks ties, other than those of candidates and negatives."""


def surprise(score_C: Float32) -> float:
    """-log of the softmax share of the first of C scores, in nats; -inf marks no candidate."""
    scores = score_C.astype(np.float64)
    top = scores.max()
    return float(np.log(np.exp(scores - top).sum()) + top - scores[0])


def counted_surprises(facts_F: Float32) -> tuple[float, float]:
    """-log of the destination's share of all events, decayed, and of the pair's share of the
    source's events, which for a new pair is that of one event by the first share. facts_F: of the
    pair before the event."""
    share = float(facts_F[FactColumn.LOG_SHARE_5])
    met = float(facts_F[FactColumn.LOG_PAIR_SHARE]) if facts_F[FactColumn.MET] else -np.inf
    return -share, -float(np.logaddexp(met, share - facts_F[FactColumn.LOG_SOURCE_EVENTS]))


class NewestValues:
    """The newest values of a stream, with their order. Adding one costs a move of `most` floats."""

    def __init__(self, most: int, values: Iterable[float] = ()) -> None:
        """values: oldest first."""
        self._queue = deque(values, most)
        self._sorted = sorted(self._queue)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def values(self) -> list[float]:
        """The values, oldest first."""
        return list(self._queue)

    def p_value(self, value: float, tie: float) -> float:
        """The share of values, with this one, that are greater; of equal ones a part `tie`.

        tie: between 0 and 1, random. Returns: the smoothed p-value, in (0, 1].
        """
        count = len(self._sorted)
        end = bisect_right(self._sorted, value)
        equal = end - bisect_left(self._sorted, value)
        return (count - end + tie * (equal + 1)) / (count + 1)

    def add(self, value: float) -> float:
        """Add the newest value. Returns: the oldest if it is dropped for it, else 0."""
        dropped = 0.0
        if len(self._queue) == self._queue.maxlen:
            dropped = self._queue[0]
            del self._sorted[bisect_left(self._sorted, dropped)]
        self._queue.append(value)
        insort(self._sorted, value)
        return dropped


def ties_of(event: int) -> Float64:
    """Numbers between 0 and 1 that break ties of an event's p-values, by a hash: float64[6]."""
    hash_6 = hashes(np.array([event]), 6, TIE_SEED)[0]
    ties_6: Float64 = ((hash_6 >> np.uint64(11)) + 0.5) / 2.0**53
    return ties_6


@dataclass(frozen=True, slots=True)
class Rarity:
    """surprise: of the event, in nats. usual: of its source, before the event. p_value: None until
    MIN_EVENTS events of the edge set are compared."""

    surprise: float
    usual: float
    p_value: float | None


class _OfSet:
    """The newest events of an edge set.

    surprises, excesses: values of the events. counts: of `counted_surprises`, each in a list.
    rarest: minus the log of the product of p-values; an event's p-value compares it once more,
    since that is not uniform.
    """

    def __init__(
        self,
        surprises: Iterable[float] = (),
        excesses: Iterable[float] = (),
        rarest: Iterable[float] = (),
        *counts: Iterable[float],
    ) -> None:
        """A file of an older release has no counts; its `rarest` is another value then."""
        self.surprises = NewestValues(MAX_KEPT, surprises)
        self.excesses = NewestValues(MAX_KEPT, excesses)
        self.counts = tuple(NewestValues(MAX_KEPT, values) for values in counts or ((), ()))
        self.rarest = NewestValues(MAX_KEPT, rarest if counts else ())
        self._sum = sum(self.surprises.values)

    @property
    def mean(self) -> float:
        """The mean surprise, 0 without events."""
        return self._sum / max(1, len(self.surprises))

    def add(self, surprise: float, excess: float, counts: Sequence[float], rarest: float) -> None:
        """Add the newest event."""
        self._sum += surprise - self.surprises.add(surprise)
        self.excesses.add(excess)
        for newest, value in zip(self.counts, counts, strict=True):
            newest.add(value)
        self.rarest.add(rarest)


class StoredRarity(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration in a file.

    next_event: as in `RarityCalibration`. sets: edge set -> surprises, excesses, rarest and the two
    counts as of `_OfSet`, oldest first; without the counts in files of older releases. sources:
    node id, weight, total.
    """

    next_event: int
    sets: dict[str, list[list[float]]]
    sources: list[tuple[int, float, float]]


class RarityCalibration:
    """Rates events one after another. Owner: the scoring role's loop.

    next_event: events with lower ids are compared; one that is scored again is rated only.
    """

    def __init__(self, stored: StoredRarity | None = None) -> None:
        """stored: as returned by `state`, to continue from there."""
        stored = stored or StoredRarity(next_event=0, sets={}, sources=[])
        self.next_event = stored.next_event
        self._sets = {name: _OfSet(*values) for name, values in stored.sets.items()}
        self._sources = OrderedDict((node, (w, total)) for node, w, total in stored.sources)
        """Source -> decayed number of its events, and decayed sum of their surprises."""

    def state(self) -> StoredRarity:
        """The state, for a file."""
        return StoredRarity(
            next_event=self.next_event,
            sets={
                name: [one.values for one in (s.surprises, s.excesses, s.rarest, *s.counts)]
                for name, s in self._sets.items()
            },
            sources=[(node, *values) for node, values in self._sources.items()],
        )

    def rate(
        self, event: int, edge_set: str, src: int, value: float, counts: tuple[float, float]
    ) -> Rarity:
        """Rate an event by those before it, then add it.

        src: node id. value: its surprise. counts: as of `counted_surprises`. The p-value is a
        function of the event's id and of the events before it.
        """
        of_set = self._sets.get(edge_set) or self._sets.setdefault(edge_set, _OfSet())
        # A source without events has the usual surprise of its edge set.
        weight, total = self._sources.get(src, (0.0, 0.0))
        usual = (PRIOR_WEIGHT * of_set.mean + total) / (PRIOR_WEIGHT + weight)
        excess = value - usual

        # The smaller p-value of surprise and excess, those of the counts, and their product's.
        ties = ties_of(event)
        by_model = min(
            of_set.surprises.p_value(value, float(ties[0])),
            of_set.excesses.p_value(excess, float(ties[1])),
        )
        by_count = (
            newest.p_value(count, float(tie))
            for newest, count, tie in zip(of_set.counts, counts, ties[3:5], strict=True)
        )
        rarest = -math.fsum([MODEL_WEIGHT * math.log(by_model), *map(math.log, by_count)])
        p_value = of_set.rarest.p_value(rarest, float(ties[2]))
        is_rated = len(of_set.rarest) >= MIN_EVENTS
        # An event that is scored again, as after a kill, is already among them.
        if event >= self.next_event:
            self.next_event = event + 1
            of_set.add(value, excess, counts, rarest)
            self._sources[src] = (weight * DECAY + 1, total * DECAY + value)
            self._sources.move_to_end(src)
            if len(self._sources) > MAX_SOURCES:
                self._sources.popitem(last=False)
        return Rarity(value, usual, p_value if is_rated else None)

    def forget(self, nodes: Int64) -> None:
        """Forget the usual surprises of deleted nodes."""
        for node in nodes.tolist():
            self._sources.pop(node, None)
