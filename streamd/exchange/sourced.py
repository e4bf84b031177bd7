"""Files whose rows have the shape of a mapped topic, to be sent to that topic."""

import itertools
from collections.abc import Iterator
from pathlib import Path

from streamd.clock import Clock
from streamd.decode.decoder import first_events, make_decoder
from streamd.decode.sources.formats import JSON_FORMATS
from streamd.errors import SettingsError
from streamd.exchange.load import RECORDS, FileRow
from streamd.exchange.produce import Outgoing
from streamd.exchange.tables import read_rows
from streamd.settings.loading import Settings, schema_of
from streamd.settings.sets import nearest_of
from streamd.settings.sources import SourceSettings, steps_of


def source_named(settings: Settings, topic: str) -> SourceSettings:
    """The source of a topic. Raises: SettingsError where there is none."""
    for source in settings.sources:
        if source.topic == topic:
            return source
    known = [source.topic for source in settings.sources]
    raise SettingsError(f"There is no source of topic {topic}{nearest_of(topic, known)}.")


def rows_of_source(source: SourceSettings, path: Path) -> Iterator[tuple[int, bytes]]:
    """Read a file's rows, which must have the columns that the source names.

    With an envelope, the envelope's columns are required instead. Raises: as `read_rows`.
    """
    paths = () if source.envelope is not None else tuple(source.paths())
    first_steps = (steps_of(one)[0] for one in paths)
    return read_rows(path, [step for step in dict.fromkeys(first_steps) if step[0] != "$"])


def rows_to_send(settings: Settings, topic: str, path: Path, clock: Clock) -> Iterator[Outgoing]:
    """A file's rows as they are, each checked as ingest will check it.

    The key of a record is that of its first event's source or node, the time is in microseconds.
    The call checks the columns; each row is checked when it is read. Raises: SettingsError naming
    the first row that does not fit, or if the topic is not JSON.
    """
    source = source_named(settings, topic)
    if source.format not in JSON_FORMATS:
        raise SettingsError(
            f"Topic {topic} is {source.format}, and rows are sent as JSON.",
            "send them by a producer of that format.",
        )
    return _check_rows(settings, topic, path, rows_of_source(source, path), clock)


def _check_rows(
    settings: Settings, topic: str, path: Path, rows: Iterator[tuple[int, bytes]], clock: Clock
) -> Iterator[Outgoing]:
    """Yield rows as records. Raises: SettingsError."""
    decoder = make_decoder(settings, schema_of(settings))
    while batch := list(itertools.islice(rows, RECORDS)):
        # Kafka will stamp them when they are sent.
        now_us = clock.now_us()
        records = [FileRow(offset=n, value=v, timestamp=now_us // 1000) for n, v in batch]
        block, rejected = decoder.decode(records, 0, now_us, topic)
        for r in rejected:
            raise SettingsError(
                f"{path} row {r.offset}: {r.error} ({r.reason}).",
                "correct it in the file, or the source in the settings.",
            )

        # A row that is skipped is sent too: it belongs to the topic.
        first = first_events(block, decoder.keys.keys)
        for number, value in batch:
            key, time = first.get(number, ("", None))
            yield Outgoing(key.encode(), value, time, number)
