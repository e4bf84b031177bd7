"""Checks a file's events before they are sent to a topic, as ingest will check them.

No event can be corrected after it is sent, so the first row that does not fit ends the command.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from streamd.clock import Clock
from streamd.decode.block import Rejected
from streamd.decode.checks import Rules, rules_of
from streamd.decode.decoder import Decoder
from streamd.decode.event_sets import NamedFeatures
from streamd.errors import SettingsError
from streamd.events import Schema
from streamd.exchange.event_files import EventFile
from streamd.exchange.load import RECORDS, FileRow
from streamd.exchange.produce import Outgoing
from streamd.exchange.row_form import RowForm
from streamd.exchange.tables import read_first
from streamd.exchange.times import Times, other_unit_words
from streamd.settings.loading import Settings, schema_of

OF_STREAM = ("feature_width", "unknown_set", "unsupported")
"""Reasons of refusals that follow from the widths and sets of the stream that reads a topic."""


def check_events(
    settings: Settings,
    topic: str,
    events: Iterator[Outgoing],
    form: RowForm,
    times: Times,
    clock: Clock,
    doubt: Callable[[str], None] = lambda _: None,
) -> Iterator[Outgoing]:
    """Check streamd's own events in batches, before any event of the batch is sent; the call itself
    checks the first batch.

    If the settings do not read the topic, the widths and sets of its stream are unknown: events
    that only these refuse are sent, with a doubt.

    Args: form: of the file's rows; times: their reader; doubt: called with a sentence at the end.
    Raises: SettingsError naming the first row that ingest would refuse, or the unit that the times
    of the first batch look like.
    """
    rules = rules_of(settings, schema_of(settings))
    check = _EventsCheck(rules, form, clock, topic in settings.kafka.topics)

    def events_of_batches() -> Iterator[Outgoing]:
        # A pipe may be slow, and its events are sent as they come.
        size = 1 if check.file.is_pipe else RECORDS
        is_first = True
        while batch := list(itertools.islice(events, size)):
            if is_first and not settings.ingest.accept_first_times:
                _check_unit(batch, form, times)
            is_first = False
            check.refuse(batch)
            yield from batch
        if check.num_unknown:
            doubt(
                f"{topic} is not in kafka.topics, so the widths and sets of its stream are "
                f"unknown; a stream of these settings would refuse {check.num_unknown:,} of the "
                f"events ({check.reason})"
            )

    return read_first(events_of_batches())


class _EventsCheck:
    """Refuses events that ingest would refuse. Owner: `check_events`.

    num_unknown: events so far that are refused only for a reason of `OF_STREAM`, by settings that
    do not read the topic. reason: of the first of them.
    """

    def __init__(self, rules: Rules, form: RowForm, clock: Clock, is_read: bool) -> None:
        assert form.file is not None
        self.file: EventFile = form.file
        self.num_unknown = 0
        self.reason = ""
        self._form = form
        self._clock = clock
        self._is_read = is_read
        self._decoder = Decoder(rules, form.time_unit, form.names)
        # Checks the keys and the time of an edge alone.
        bare = replace(rules, schema=Schema(0, 0, 0), features=NamedFeatures())
        self._bare_decoder = Decoder(bare, form.time_unit, form.names)

    def refuse(self, batch: Sequence[Outgoing]) -> None:
        """Refuse the first event that does not fit. Raises: SettingsError."""
        unknown = set()
        for r in self._rejected(self._decoder, batch):
            if self._is_read or r.reason not in OF_STREAM:
                raise self._error(r)
            self.reason = self.reason or r.reason
            unknown.add(r.offset)
        self.num_unknown += len(unknown)
        bare = [replace(e, value=_bare_edge(e.value)) for e in batch if e.row in unknown]
        for r in self._rejected(self._bare_decoder, bare):
            raise self._error(r)

    def _rejected(self, decoder: Decoder, batch: Sequence[Outgoing]) -> list[Rejected]:
        # Kafka will add the timestamp when they are sent.
        now_us = self._clock.now_us()
        records = [FileRow(offset=e.row, value=e.value, timestamp=now_us // 1000) for e in batch]
        return decoder.decode(records, 0, now_us).rejected

    def _error(self, r: Rejected) -> SettingsError:
        position = self.file.position(r.offset)
        return SettingsError(f"{position}: {r.error} ({r.reason}).", self._form.action(r))


def _bare_edge(value: bytes) -> bytes:
    """An edge without features and set; any other event becomes a valid edge."""
    row = json.loads(value)
    if row.get("type", "edge") != "edge":
        return b'{"src": 0, "dst": 0, "time": 0}'
    return json.dumps({name: row[name] for name in ("src", "dst", "time") if name in row}).encode()


def _check_unit(batch: Sequence[Outgoing], form: RowForm, times: Times) -> None:
    """Refuse events if all times so far look like another unit. Raises: SettingsError."""
    found = times.find_other_unit()
    first = next((event for event in batch if event.time is not None), None)
    if found is None or first is None or first.time is None or form.file is None:
        return
    found = replace(found, example_us=first.time * times.unit_us)
    words, action = other_unit_words(found, form.file.position(first.row), form.columns.time)
    raise SettingsError(words, action)
