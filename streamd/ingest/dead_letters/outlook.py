"""Predicts what ingest will do with dead letters that are sent again."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from streamd.decode.block import has_time
from streamd.decode.decoder import NUM_SINGLES, Decoder, make_decoder
from streamd.errors import SchemaRegistryError
from streamd.ingest.dead_letters.replay import StoredLetter, as_record
from streamd.settings.loading import Settings, schema_of


@dataclass(kw_only=True, slots=True)
class Outlook:
    """Predicted results, as indices of the given letters.

    late: have an event before the log's watermark. refused: will be dead letters again with these
    settings. unknown: the schema registry does not answer now. behind_us: time from the oldest late
    event to the watermark, microseconds.
    """

    late: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    behind_us: int = 0


def outlook(
    settings: Settings, letters: Sequence[StoredLetter], watermark_us: int, now_us: int
) -> Outlook:
    """Predict the results by decoding letters as ingest will. watermark_us: of the log; now_us:
    wall clock."""
    found = Outlook()
    by_topic: dict[str, list[int]] = defaultdict(list)
    for i, stored in enumerate(letters):
        by_topic[stored.letter.topic].append(i)
    for topic, numbers in by_topic.items():
        # Decode a topic's letters as if all were from one partition.
        decoder = make_decoder(settings, schema_of(settings))
        for first in range(0, len(numbers), NUM_SINGLES):
            part = numbers[first : first + NUM_SINGLES]
            try:
                _decode(decoder, topic, letters, part, (watermark_us, now_us), found)
            except SchemaRegistryError:
                found.unknown.update(part)
    return found


def _decode(
    decoder: Decoder,
    topic: str,
    letters: Sequence[StoredLetter],
    numbers: Sequence[int],
    clocks: tuple[int, int],
    found: Outlook,
) -> None:
    """Decode some letters of a topic. numbers: their indices, used as offsets. clocks: watermark
    and wall clock, microseconds. Raises: SchemaRegistryError."""
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
