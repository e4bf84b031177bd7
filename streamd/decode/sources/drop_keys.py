"""The keys of a topic's sources that are no nodes: their events are dropped."""

from collections.abc import Sequence

import numpy as np

from streamd.decode.block import Block
from streamd.decode.node_ids import KeyTable
from streamd.settings.sources import SourceSettings
from streamd.telemetry import metrics

REASON = "drop_keys"
"""The reason of such events in `streamd_dropped_events_total`."""


class DropKeys:
    """Leaves out events of the keys in `drop_keys`, as they are in records. Owner: the topic.

    It works on blocks, so it does not matter how their events were decoded.
    """

    def __init__(self, sources: Sequence[SourceSettings], keys: KeyTable) -> None:
        """sources: of one topic."""
        # A prefix is put before the key of a record.
        self._names: list[str | int] = [key for source in sources for key in source.drop_keys]
        self._names += [
            f"{prefix}{key}"
            for source in sources
            for prefix in sorted(source.prefixes())
            for key in source.drop_keys
        ]
        self._keys = keys
        self._dropped = metrics.dropped.labels(sources[0].topic, REASON) if self._names else None

    def keep(self, block: Block) -> Block:
        """The events of a block of which neither end is such a key; the others are counted."""
        if self._dropped is None or not len(block):
            return block
        # Keys have numbers once they came; most blocks hold none of these.
        numbers = [number for name in self._names for number in self._keys.find(name)]
        if not numbers:
            return block
        rows = block.rows
        kept = ~(np.isin(rows["a"], numbers) | np.isin(rows["b"], numbers))
        if kept.all():
            return block
        self._dropped.inc(int(len(block) - kept.sum()))
        return block.take(kept)
