"""The evidence against a source: a sum over its newest events, since an attack or a fault seldom
is one event.

It is the cumulative sum of Page, "Continuous inspection schemes", Biometrika 41, 1954, with
forgetting. An event adds -log of its p-value less REFERENCE, and the sum is never below 0. So rare
events add up, usual ones reduce it, and the events of a busy source do not add up by their number.
"""

import math
from collections import OrderedDict

import msgspec

from streamd.events import Int64
from streamd.scoring.rarity import MAX_KEPT, MAX_SOURCES, MIN_EVENTS, NewestValues

REFERENCE = 2.0
"""Page's reference value: the mean of -log p is 1 for usual events, and 3 if a p-value of .05 is
the usual one; it is halfway."""


class StoredEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence in a file. newest: of the newest events, oldest first. sources: node id, evidence,
    and its time in microseconds."""

    newest: list[float]
    sources: list[tuple[int, float, int]]


NO_EVIDENCE = StoredEvidence(newest=[], sources=[])


class SourceEvidence:
    """Sums the evidence against each source, and compares it with that of the newest events.
    Owner: the alarms."""

    def __init__(self, half_life_us: int, stored: StoredEvidence = NO_EVIDENCE) -> None:
        """half_life_us: event time after which evidence weighs half; 0 compares each event
        alone. stored: as returned by `state`."""
        self._half_life_us = half_life_us
        self._newest = NewestValues(MAX_KEPT, stored.newest)
        self._sources = OrderedDict((node, (sum_, at)) for node, sum_, at in stored.sources)
        """Source -> evidence, and its time in microseconds."""

    def state(self) -> StoredEvidence:
        """The state, for a file."""
        return StoredEvidence(
            newest=self._newest.values,
            sources=[(node, *values) for node, values in self._sources.items()],
        )

    def rate(
        self, src: int, time_us: int, p_value: float, tie: float, is_new: bool
    ) -> float | None:
        """The p-value of a source's evidence with an event of it, None until MIN_EVENTS events are
        compared. tie: as of `NewestValues`. is_new: False for an event that is counted already."""
        # The evidence so far has decayed since.
        before, at = self._sources.get(src, (0.0, time_us))
        if self._half_life_us > 0:
            before *= 2.0 ** (-max(0, time_us - at) / self._half_life_us)
        elif is_new:
            before = 0.0
        # An event that is scored again is in it already.
        added = -math.log(p_value) - REFERENCE if is_new else 0.0
        evidence = max(0.0, before + added)
        found = self._newest.p_value(evidence, tie) if len(self._newest) >= MIN_EVENTS else None
        # Forget the source without an event for longest.
        if is_new:
            self._newest.add(evidence)
            self._sources[src] = evidence, time_us
            self._sources.move_to_end(src)
            if len(self._sources) > MAX_SOURCES:
                self._sources.popitem(last=False)
        return found

    def forget(self, nodes: Int64) -> None:
        """Forget the evidence against deleted nodes."""
        for node in nodes.tolist():
            self._sources.pop(node, None)
