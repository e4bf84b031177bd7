"""Novelty: whether an event's pair, destination and source were seen before it. Tables of accuracy
have a column for each part."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from streamd.events import Bools, Float32, Int64
from streamd.graph.facts.columns import NUM_FACTS, FactColumn
from streamd.graph.facts.kernels import NEVER_LOG_SECONDS

NOVELTIES = {
    "pair_seen": "pair seen",
    "pair_new": "pair new",
    "destination_new": "destination new",
    "source_new": "source new",
}
"""Parts of the events, with their names in tables. The first two parts together are all events;
events with a new destination or source also have a new pair."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoveltyCounts:
    """Numbers of scored events in each part of NOVELTIES."""

    pair_seen: int
    pair_new: int
    destination_new: int
    source_new: int


@dataclass(frozen=True)
class Novelty:
    """Facts about scored events from the time before each, bool[E].

    pair_seen_E: whether an event of the same edge set had the same source and destination before.
    known_E: whether its destination was a destination before.
    source_known_E: whether its source took part in an event before, of any edge set.
    """

    pair_seen_E: Bools
    known_E: Bools
    source_known_E: Bools

    @classmethod
    def of(cls, facts_EF: Float32, known_E: Bools) -> "Novelty":
        """facts_EF: float32[E, F], facts of the true destinations, as of each event."""
        # With several edge sets, facts of the event's set come first, then those over all sets.
        all_sets = NUM_FACTS if facts_EF.shape[-1] > NUM_FACTS else 0
        return cls(
            facts_EF[:, FactColumn.LOG_SECONDS_SINCE_SENT] < NEVER_LOG_SECONDS,
            known_E,
            facts_EF[:, all_sets + FactColumn.LOG_SOURCE_EVENTS] > 0,
        )

    @classmethod
    def join(cls, parts: Sequence["Novelty"]) -> "Novelty":
        """Concatenate the events of all parts; no events if there are no parts."""
        none = np.zeros(0, np.bool_)
        return cls(
            np.concatenate([none, *(part.pair_seen_E for part in parts)]),
            np.concatenate([none, *(part.known_E for part in parts)]),
            np.concatenate([none, *(part.source_known_E for part in parts)]),
        )

    def rows(self, row_N: Int64 | Bools) -> "Novelty":
        """Select events, by their indices or by bool[E]."""
        return Novelty(self.pair_seen_E[row_N], self.known_E[row_N], self.source_known_E[row_N])

    @cached_property
    def mask_KE(self) -> NDArray[np.float64]:
        """1 for the events of each part, else 0, in the order of NOVELTIES, float64[4, E]."""
        seen = self.pair_seen_E
        return np.stack([seen, ~seen, ~self.known_E, ~self.source_known_E]).astype(np.float64)

    def means(self, value_E: NDArray[np.float64]) -> dict[str, float]:
        """Mean of a value over each part that has events, by the part's name."""
        counts = self.mask_KE.sum(1)
        sums = self.mask_KE @ value_E
        of_parts = zip(NOVELTIES, sums.tolist(), counts.tolist(), strict=True)
        return {name: total / count for name, total, count in of_parts if count}

    @cached_property
    def counts(self) -> "NoveltyCounts":
        """Number of events in each part."""
        of_parts = self.mask_KE.sum(1).astype(int).tolist()
        return NoveltyCounts(**dict(zip(NOVELTIES, of_parts, strict=True)))


def recurrence(parts: Iterable[NoveltyCounts | None]) -> float | None:
    """Share of scored events with a pair that was seen before, over the windows that have counts;
    None if none has."""
    # Records of older releases have no counts.
    counted = [part for part in parts if part is not None]
    num_events = sum(part.pair_seen + part.pair_new for part in counted)
    return sum(part.pair_seen for part in counted) / num_events if num_events else None
