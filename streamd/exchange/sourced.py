"""Reads files with records of a mapped topic as rows, to send them to that topic or to import
them."""

import datetime
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from streamd.clock import Clock
from streamd.decode.block import Block, has_time
from streamd.decode.decoder import first_events, make_decoder
from streamd.decode.encoding import Times
from streamd.decode.plain_values import time_text
from streamd.decode.sources.formats import JSON_FORMATS
from streamd.decode.sources.paths import first_value, follow, parsed
from streamd.decode.time_units import UNIT_WORDS
from streamd.errors import BadEvent, SettingsError
from streamd.events import EDGE, LABEL, MICROSECONDS, Key, Schema, split_key
from streamd.exchange.event_files import CSV, EventFile
from streamd.exchange.key_cells import KeyCells, is_integer_key
from streamd.exchange.load import RECORDS, FileRow
from streamd.exchange.produce import Outgoing
from streamd.exchange.published import Published, add_published_source, find_data_set
from streamd.exchange.sorting import TimedRow, sort_rows
from streamd.exchange.tables import Columns, read_first, without_nan
from streamd.exchange.text_files import Row
from streamd.exchange.times import UNIT_OPTION, Misfit, other_unit_words
from streamd.ingest.order.batch_builder import as_json
from streamd.number_texts import count_noun
from streamd.settings.loading import Settings, schema_of
from streamd.settings.sets import nearest_of, text_of
from streamd.settings.sources import (
    Scalar,
    SourceSettings,
    by_topic,
    fields_of,
    is_outside,
    steps_of,
)

KEYS = ("src", "dst", "node", "id")
"""Fields of events that are keys."""
SOURCE_COLUMNS = (
    "rename the columns, or correct the paths in the source of {topic}, which names them; add "
    "--no-header if the file has no names."
)
TYPE_HINT = "write type: text with the key's path in the source."


def sources_of(settings: Settings, topic: str) -> tuple[SourceSettings, ...]:
    """The sources of a topic. Raises: SettingsError if there is none."""
    known = by_topic(settings.sources)
    if topic not in known:
        raise SettingsError(
            f"There is no source of topic {topic}{nearest_of(topic, known)}.",
            f"name a topic with a source, or give it one: `streamd sources guess {topic}`.",
        )
    return known[topic]


def rows_of_sources(
    sources: Sequence[SourceSettings],
    file: EventFile,
    unit: str,
    doubt: Callable[[str], None] = lambda _: None,
    published: Published | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Read a file's rows as JSON objects, with their numbers from 1.

    A table must have the columns that the sources name, unless they have an envelope. Timestamps
    are written in a form that the source reads. The call itself checks the columns.

    Args: sources: of one topic; unit: of times if a source names none; doubt: called with a
    sentence on cells that may be wrong; published: the public data set of the file, if it is one.
    Raises: SettingsError if the file cannot be read.
    """
    # With an envelope, columns are fields of objects, which only the decoder reads.
    bare = [source for source in sources if source.envelope is None]
    all_steps = (steps_of(path) for source in bare for path in source.paths())
    wanted = list(dict.fromkeys(steps[0] for steps in all_steps if not is_outside(steps)))
    if published is not None:
        # The data set's form has all other columns.
        wanted = [name for s in sources if s.fields is not None for name in s.fields.features]
    return read_first(
        _rows_as_json(file, wanted, sources, _times_of(sources, unit), doubt, published)
    )


def read_rows(file: EventFile) -> Iterator[tuple[int, bytes]]:
    """Read the rows of a file of any columns as JSON objects, with their numbers from 1.

    In CSV an empty cell is null, and the text of an integer becomes one. Timestamps become ISO
    8601. Raises: SettingsError if the file cannot be read.
    """
    return read_first(_rows_as_json(file, (), (), Times("iso8601"), lambda _: None, None))


def _times_of(sources: Sequence[SourceSettings], unit: str) -> Times:
    """The form in which a table's timestamps are written: that of the first source with times."""
    forms = (source.time or unit for source in sources)
    return Times(next((form for form in forms if form != "record"), "record"))


def _rows_as_json(
    file: EventFile,
    wanted: Sequence[str],
    sources: Sequence[SourceSettings],
    times: Times,
    doubt: Callable[[str], None],
    published: Published | None,
) -> Iterator[tuple[int, bytes]]:
    # The kind of a pipe is known only after reading starts, so make the readers at the first row.
    cells: CellReaders | None = None
    time_columns = _time_columns(sources)
    num_left_out = 0
    # The source names the columns, so no option may.
    action = SOURCE_COLUMNS.format(topic=sources[0].topic) if sources else ""
    for number, row in file.rows(wanted, action):
        if isinstance(row, str):
            if line := row.strip():
                yield number, without_nan(line).encode()
            continue
        if cells is None:
            cells = CellReaders(sources if file.kind == CSV else (), doubt)
        try:
            if published is not None:
                row = published.change(row)
                if not all(row[name] for name in published.needs):
                    num_left_out += 1
                    continue
            if file.kind == CSV:
                row = cells.read(row)
        except (Misfit, BadEvent) as misfit:
            odd = misfit if isinstance(misfit, Misfit) else Misfit(str(misfit))
            raise odd.at(file.position(number)) from None
        # A timestamp that is not the time of an event becomes text.
        for name, value in row.items():
            if type(value) is datetime.datetime and name not in time_columns:
                row[name] = time_text(value)
        yield number, times.as_json(row)
    if num_left_out and published is not None:
        without = f"{count_noun(num_left_out, 'row')} without {' or '.join(published.needs)}"
        doubt(f"left out: {without}")


def _time_columns(sources: Sequence[SourceSettings]) -> set[str]:
    """The columns of times that the rules of sources name."""
    return {
        steps_of(path)[0]
        for source in sources
        for rule in source.rules
        if rule.fields is not None
        for place, field in fields_of(rule.fields)
        if place == ("time",)
        for path in field.path
    }


class CellReaders:
    """Converts cells of CSV, which are text, to the values that a source compares and takes as
    keys.

    sources: of the rows; without any, the text of an integer becomes one. An empty cell becomes
    null. A cell of a condition becomes the value in the condition, if its text is the same.
    """

    def __init__(self, sources: Sequence[SourceSettings], doubt: Callable[[str], None]) -> None:
        self._keys: dict[str, KeyCells] = {}
        self._conditions: dict[str, dict[str, Scalar]] = {}
        self._knows_columns = bool(sources)
        for rule in (rule for source in sources for rule in source.rules):
            for path, values in rule.where.items():
                of_text = self._conditions.setdefault(steps_of(path)[0], {})
                of_text.update((_as_cell(value), value) for value in values)
            for place, field in () if rule.fields is None else fields_of(rule.fields):
                # A key with a prefix is text, even if digits follow.
                kind = "text" if field.prefix else field.type
                for path in field.path if place[0] in KEYS else ():
                    column = steps_of(path)[0]
                    self._keys[column] = KeyCells(column, kind, TYPE_HINT, doubt)

    def read(self, row: Row) -> Row:
        """Convert the cells of a row. Raises: Misfit."""
        return {name: self._read(name, cell) for name, cell in row.items()}

    def _read(self, name: str, cell: Any) -> Any:
        if type(cell) is not str:
            return cell
        if not cell:
            return None
        # Without a source the row is for a guess, which needs integers as numbers.
        if not self._knows_columns:
            return int(cell) if is_integer_key(cell) else cell
        if name in self._keys:
            try:
                return self._keys[name].read(cell)
            except Misfit as misfit:
                raise Misfit(f"column {name!r}: {misfit}", misfit.action) from None
        return self._conditions.get(name, {}).get(cell, cell)


def _as_cell(value: Scalar) -> str:
    """Write a value of a condition as CSV would."""
    return text_of(value) if isinstance(value, str | int) else str(value)


def sort_rows_of_sources(
    sources: Sequence[SourceSettings], unit: str, rows: Iterator[tuple[int, bytes]]
) -> Iterator[tuple[int, bytes]]:
    """Sort rows by the sources' times; one without a time stays after the row before it.

    Raises: SettingsError if no source names a time.
    """
    # Read times as the decoder does.
    readers = [
        ([follow(steps_of(path)) for path in source.fields.time.path], Times(source.time or unit))
        for source in sources
        if source.fields is not None and source.fields.time is not None
    ]
    if not readers:
        raise SettingsError(
            f"The source of {sources[0].topic} has no field of times to sort by.",
            "leave out --sort.",
        )

    def with_times() -> Iterator[TimedRow]:
        last_us = 0
        for index, (number, value) in enumerate(rows):
            # Ignore a bad time: the decoder refuses it later, unless it skips the row.
            for walks, times in readers:
                with suppress(BadEvent):
                    row = parsed(value)
                    last_us = times.one(first_value([walk(row) for walk in walks]), "time")
                    break
            yield TimedRow(last_us, index, number, value)

    return ((row.number, row.value) for row in sort_rows(with_times()))


def _with_time_unit(settings: Settings, topic: str, unit: str) -> Settings:
    """Set the unit of numeric times in a topic's sources. Raises: SettingsError if a source has
    another form of times."""
    # A source without a form takes the command's unit; any other must have the same.
    for source in sources_of(settings, topic):
        if source.time not in (None, unit):
            raise SettingsError(
                f"The source of {topic} has times in the form {source.time}.",
                f"leave out {UNIT_OPTION}.",
            )
    sources = tuple(
        one.model_copy(update={"time": unit}) if one.topic == topic else one
        for one in settings.sources
    )
    return settings.model_copy(update={"sources": sources})


def resolve_source(settings: Settings, columns: Columns) -> tuple[Settings, Columns]:
    """Add the source of a public data set to the settings and columns, or set the unit of times of
    the named source, if the columns ask for either. Raises: SettingsError."""
    if columns.source and columns.time_unit:
        settings = _with_time_unit(settings, columns.source, columns.time_unit)
    if not columns.published:
        return settings, columns
    form = find_data_set(columns.published).form
    settings = add_published_source(settings, columns.published, columns.edge_set)
    return settings, replace(columns, source=columns.published, form=form, sort=True)


def rows_for_source(
    settings: Settings,
    columns: Columns,
    file: EventFile,
    unit: str,
    doubt: Callable[[str], None],
) -> Iterator[tuple[int, bytes]]:
    """Read a file's rows for the source that `columns` name. Arguments and errors as
    `rows_of_sources`."""
    sources = sources_of(settings, columns.source)
    published = find_data_set(columns.published) if columns.published else None
    rows = rows_of_sources(sources, file, unit, doubt, published)
    return sort_rows_of_sources(sources, unit, rows) if columns.sort else rows


def rows_to_send(
    settings: Settings,
    columns: Columns,
    file: EventFile,
    clock: Clock,
    doubt: Callable[[str], None],
) -> Iterator[Outgoing]:
    """Read a file's rows, to be sent unchanged, and check each as ingest will check it.

    The record's key is that of its first event's source or node; its time is in microseconds. The
    call itself checks the columns; each row is checked when it is read. Raises: SettingsError
    naming the first row that does not fit, or if the topic is not JSON.
    """
    source = sources_of(settings, columns.source)[0]
    if source.format not in JSON_FORMATS:
        raise SettingsError(
            f"Topic {source.topic} is {source.format}, and rows are sent as JSON.",
            "send them by a producer of that format.",
        )
    rows = rows_for_source(settings, columns, file, settings.stream.time_unit, doubt)
    return _rows_as_they_are(settings, source.topic, file, rows, clock)


def _rows_as_they_are(
    settings: Settings,
    topic: str,
    file: EventFile,
    rows: Iterator[tuple[int, bytes]],
    clock: Clock,
) -> Iterator[Outgoing]:
    for batch, block, keys in _decode_rows(settings, topic, file, rows, clock):
        # Send skipped rows too: they belong to the topic.
        first = first_events(block, keys)
        for number, value in batch:
            key, time = first.get(number, ("", None))
            yield Outgoing(key.encode(), value, time, number)


def events_to_send(
    settings: Settings,
    columns: Columns,
    file: EventFile,
    clock: Clock,
    doubt: Callable[[str], None],
) -> Iterator[Outgoing]:
    """Convert a file's rows by a source to streamd's own events, for another topic.

    Raises: as `rows_to_send`; SettingsError for a time that is finer than `stream.time_unit`, in
    which events are sent.
    """
    unit = settings.stream.time_unit
    rows = rows_for_source(settings, columns, file, unit, doubt)
    decoded = _decode_rows(settings, columns.source, file, rows, clock)
    return _own_events(decoded, schema_of(settings), unit, file)


def _own_events(
    decoded: Iterator[tuple[list[tuple[int, bytes]], Block, Sequence[Key]]],
    schema: Schema,
    time_unit: str,
    file: EventFile,
) -> Iterator[Outgoing]:
    scale = MICROSECONDS[time_unit]
    # Refuse a finer time instead of rounding it, which would change the event.
    for _, block, keys in decoded:
        for row, event in enumerate(block.rows):
            number = int(event["offset"])
            time_us = int(event["time"]) if event["kind"] in (EDGE, LABEL) else None
            if time_us is not None and time_us % scale:
                raise SettingsError(
                    f"{file.position(number)}: a time is finer than {UNIT_WORDS[time_unit]}.",
                    "set stream.time_unit to us, or round it.",
                )
            key = str(split_key(keys[int(event["a"])])[1]).encode()
            value = as_json(block, row, keys, time_unit, schema)
            yield Outgoing(key, value, None if time_us is None else time_us // scale, number)


def _decode_rows(
    settings: Settings,
    topic: str,
    file: EventFile,
    rows: Iterator[tuple[int, bytes]],
    clock: Clock,
) -> Iterator[tuple[list[tuple[int, bytes]], Block, Sequence[Key]]]:
    """Decode rows in batches. Yields: the rows, their events, and the keys by the numbers in the
    events. Raises: SettingsError, also if all times of the first batch look like another unit."""
    decoder = make_decoder(settings, schema_of(settings))
    is_first = not settings.ingest.accept_first_times
    while batch := list(itertools.islice(rows, RECORDS)):
        # Kafka will add the timestamp when they are sent.
        now_us = clock.now_us()
        records = [FileRow(offset=n, value=v, timestamp=now_us // 1000) for n, v in batch]
        block, rejected = decoder.decode(records, 0, now_us, topic)
        for r in rejected:
            raise SettingsError(
                f"{file.position(r.offset)}: {r.error} ({r.reason}).",
                "correct it in the file, or the source in the settings.",
            )
        # Ingest would hold such times, or move them to the end of the log.
        found = decoder.other_unit if is_first else None
        is_first = False
        if found is not None:
            event = block.rows[has_time(block.rows)][0]
            found = replace(found, example_us=int(event["time"]))
            raise SettingsError(*other_unit_words(found, file.position(int(event["offset"]))))
        yield batch, block, decoder.keys.keys
