"""Imports the events of unigraph tables: sends them to a topic, or appends them to a log."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from streamd.clock import Clock, utc
from streamd.decode.checks import rules_of
from streamd.decode.decoder import Decoder
from streamd.errors import SettingsError, StreamdError
from streamd.exchange.load import RECORDS, FileRow, open_loader
from streamd.exchange.produce import Outgoing, send_events
from streamd.exchange.row_form import REMEDIES
from streamd.exchange.times import other_unit_words
from streamd.settings.loading import Settings, schema_of
from streamd.tfgnn.logs.table_events import TableEvents

Progress = Callable[[int], None]
"""Called with the number of events so far."""


def append_tables(
    settings: Settings, tables: TableEvents, clock: Clock, progress: Progress = lambda done: None
) -> int:
    """Append the events of tables to the log, while no ingest runs. Returns: their number.

    Raises: StreamdError with the row that does not fit, and the number of events appended before.
    """
    find_unit = tables.find_other_unit
    with open_loader(
        settings, clock, "The tables", location_of=tables.location_of, find_other_unit=find_unit
    ) as loader:
        first = tables.first_us
        # Late rows would get the log's newest time instead of their own.
        if first is not None and first < loader.watermark:
            raise StreamdError(
                f"The tables begin at {utc(first)}, before the log's time of "
                f"{utc(loader.watermark)}.",
                REMEDIES["late"],
            )
        return loader.rows(tables.events("us"), progress)


def send_tables(
    settings: Settings,
    tables: TableEvents,
    topic: str,
    speed: float,
    clock: Clock,
    progress: Progress = lambda done: None,
) -> int:
    """Send the events of tables to a topic of streamd's own events. Returns: their number.

    speed: seconds of event time per second, 0 for no pauses. Raises: SettingsError if the topic has
    a mapped source, or with a row that ingest would refuse; KafkaError.
    """
    if topic in (source.topic for source in settings.sources):
        raise SettingsError(
            f"Topic {topic} has a source, and tables are sent as streamd's own events.",
            "name a topic without one.",
        )
    unit = settings.stream.time_unit
    events = checked_events(settings, tables, clock)
    return send_events(settings.kafka, topic, events, unit, speed, progress)


def checked_events(settings: Settings, tables: TableEvents, clock: Clock) -> Iterator[Outgoing]:
    """Yield the events with times in `stream.time_unit`, after the checks of ingest. Raises:
    SettingsError with a row, or with another unit that all times look like."""
    found = None if settings.ingest.accept_first_times else tables.find_other_unit()
    first = tables.first_us
    if found is not None and first is not None:
        # Ingest would hold such times, or move them to the end of the log.
        position = tables.location_of(tables.num_node_events + 1)
        raise SettingsError(*other_unit_words(replace(found, example_us=first), position))
    decoder = Decoder(rules_of(settings, schema_of(settings)))
    events = tables.events(settings.stream.time_unit)
    while batch := list(itertools.islice(events, RECORDS)):
        records = [FileRow(offset=e.row, value=e.value) for e in batch]
        _, rejected = decoder.decode(records, 0, clock.now_us(), "")
        # No event of a batch is sent if ingest would refuse one of them.
        for r in rejected:
            raise SettingsError(
                f"{tables.location_of(r.offset)}: {r.error} ({r.reason}).",
                "correct it in the table.",
            )
        yield from batch
