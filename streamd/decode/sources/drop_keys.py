"""Drops the events of keys that are no nodes, as listed in a topic's sources."""

from collections.abc import Sequence

import numpy as np

from streamd.decode.block import Block
from streamd.decode.node_ids import KeyTable
from streamd.settings.sources import SourceSettings
from streamd.telemetry import metrics

REASON = "drop_keys"
"""Label of these events in `streamd_dropped_events_total`."""


class DropKeys:
    """Drops events with a key in `drop_keys`, which are written as in records. Owner: the topic.

    It works on blocks, so it applies to events of every way of decoding.
    """

    def __init__(self, sources: Sequence[SourceSettings], keys: KeyTable) -> None:
        """sources: of one topic."""
        # The mapping adds a source's prefixes to keys.
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
        """The events of a block without those that have such a key at either end; these are
        counted."""
        if self._dropped is None or not len(block):
            return block
        # A key has a number only after it occurred; most topics contain none of these keys.
        numbers = [number for name in self._names for number in self._keys.find(name)]
        if not numbers:
            return block
        rows = block.rows
        kept = ~(np.isin(rows["a"], numbers) | np.isin(rows["b"], numbers))
        if kept.all():
            return block
        self._dropped.inc(int(len(block) - kept.sum()))
        return block.take(kept)
