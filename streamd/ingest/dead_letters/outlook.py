"""Predicts what ingest will do with dead letters that are sent again."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from streamd.decode.block import Block, has_time, joined
from streamd.decode.decoder import NUM_SINGLES, Decoder, make_decoder
from streamd.errors import SchemaRegistryError
from streamd.events import Key
from streamd.ingest.dead_letters.replay import StoredLetter, as_record
from streamd.ingest.order.batch_builder import BatchBuilder, CountEdges
from streamd.settings.loading import Settings, schema_of


@dataclass(frozen=True, kw_only=True, slots=True)
class LogView:
    """The state of the log that decides which events it accepts.

    watermark_us: microseconds. num_nodes: node ids given out so far. ids_of: returns the node ids
    of those of some keys that the log holds and has not deleted. count_edges: as in `BatchBuilder`.
    """

    watermark_us: int
    num_nodes: int
    ids_of: Callable[[Collection[Key]], dict[Key, int]]
    count_edges: CountEdges


@dataclass(kw_only=True, slots=True)
class Outlook:
    """Predicted results, as indices of the given letters.

    late: have an event before the log's watermark. refused: will be dead letters again with these
    settings, for another reason. unknown: the schema registry does not answer now. behind_us: time
    from the oldest late event to the watermark, microseconds.
    """

    late: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    behind_us: int = 0


def outlook(
    settings: Settings, letters: Sequence[StoredLetter], log: LogView | None, now_us: int
) -> Outlook:
    """Predict the results by handling letters as ingest will. log: None if there is none; now_us:
    wall clock."""
    watermark_us = 0 if log is None else log.watermark_us
    found = Outlook()
    by_topic: dict[str, list[int]] = defaultdict(list)
    for i, stored in enumerate(letters):
        by_topic[stored.letter.topic].append(i)
    for topic, numbers in by_topic.items():
        # Decode a topic's letters as if all were from one partition.
        decoder = make_decoder(settings, schema_of(settings))
        blocks = []
        for first in range(0, len(numbers), NUM_SINGLES):
            part = numbers[first : first + NUM_SINGLES]
            try:
                blocks.append(_decode(decoder, topic, letters, part, (watermark_us, now_us), found))
            except SchemaRegistryError:
                found.unknown.update(part)
        if log is not None and blocks:
            found.refused |= _refused_by_log(settings, decoder, joined(blocks), log)
    return found


def _refused_by_log(settings: Settings, decoder: Decoder, events: Block, log: LogView) -> set[int]:
    """The offsets of events that the log cannot accept in its present state, without late ones. An
    event may depend on one of an earlier letter, as a delete does on its edge."""
    keys = decoder.keys
    ingest = settings.ingest
    builder = BatchBuilder(
        schema_of(settings),
        log.ids_of(keys.keys),
        ingest.max_nodes,
        ingest.late_policy,
        log.count_edges,
    )
    refused = builder.build(events, keys.keys, keys.epoch, log.watermark_us, log.num_nodes)[2]
    return {int(events.rows["offset"][r.row]) for r in refused if r.reason != "late"}


def _decode(
    decoder: Decoder,
    topic: str,
    letters: Sequence[StoredLetter],
    numbers: Sequence[int],
    clocks: tuple[int, int],
    found: Outlook,
) -> Block:
    """Decode some letters of a topic. numbers: their indices, used as offsets. clocks: watermark
    and wall clock, microseconds. Returns: their valid events. Raises: SchemaRegistryError."""
    watermark_us, now_us = clocks
    records = [as_record(letters[i].letter, i) for i in numbers]
    mapped = decoder.mapped.get(topic)
    if mapped is not None:
        mapped.prepare(records, lambda: None)
    block, rejected = decoder.decode(records, 0, now_us, topic)
    rows = block.rows[has_time(block.rows)]
    late = rows[rows["time"] < watermark_us]
    found.late.update(np.unique(late["offset"]).tolist())
    found.refused.update(r.offset for r in rejected)
    if len(late):
        found.behind_us = max(found.behind_us, watermark_us - int(late["time"].min()))
    return block
