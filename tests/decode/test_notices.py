"""What is odd in events that are taken is said once a process, never once an event."""

import json

import pytest
import structlog

from streamd.decode.wire import NDJSON
from streamd.telemetry import metrics
from tests.builders import Record
from tests.decode.test_decode import NOW, STAMP_MS, decoder, edge
from tests.readings import reading

LINES = (("content-type", NDJSON.encode()),)
NOW_MS = NOW // 1000


def records(*events, together):
    """Events as records of one each, as one array, or as lines."""
    raw = [json.dumps(e).encode() for e in events]
    if together == "singles":
        return [Record(value, at, NOW_MS) for at, value in enumerate(raw)]
    if together == "array":
        return [Record(b"[" + b",".join(raw) + b"]", timestamp=NOW_MS)]
    return [Record(b"\n".join(raw), timestamp=NOW_MS, headers=LINES)]


def noticed(*batches, **rules):
    """What one decoder warns of while it decodes batches of records, and how many events it took of each."""
    used = decoder(**rules)
    with structlog.testing.capture_logs() as logs:
        taken = [len(used.decode(batch, 0, NOW)[0]) for batch in batches]
    return logs, taken


@pytest.mark.parametrize("together", ["singles", "array", "lines"])
@pytest.mark.parametrize("beside", [[], [{"type": "node", "id": 5, "features": [1]}], [{"src": 1}]])
def test_fields_that_nothing_reads_are_named_once(together, beside):
    batch = records(edge(), edge(weight=3, **{"se\nller": "secret"}), *beside, edge(other=1), together=together)
    (log,), taken = noticed(batch, batch)
    assert log["event"] == "unknown_fields" and log["fields"] == r"weight, se\nller" and log["log_level"] == "warning"
    assert taken == [3 + (len(beside) if beside and "id" in beside[0] else 0)] * 2
    assert reading(metrics.odd_events.labels("unknown_fields")) == 1


@pytest.mark.parametrize("together", ["singles", "array", "lines"])
def test_a_missing_time_is_said_once(together):
    plain = {k: v for k, v in edge().items() if k != "time"}
    label = {"type": "label", "node": 1, "target": [1]}
    for batch in (records(edge(), plain, plain, together=together), records(label, edge(), together=together)):
        (log,), _ = noticed(batch, batch)
        assert log["event"] == "time_missing"


@pytest.mark.parametrize(("unit", "time", "looks"), [
    ("ms", NOW_MS // 1_000, "s"), ("us", NOW // 1_000, "ms"), ("us", NOW // 1_000_000, "s"),
    ("ms", NOW_MS * 1_000, "us"), ("ms", NOW_MS * 1_000_000, "ns"), ("s", NOW_MS, "ms")])
@pytest.mark.parametrize("together", ["singles", "array", "lines"])
def test_a_time_in_another_unit_is_said_once_whether_it_is_taken_or_not(unit, time, looks, together):
    right = NOW // {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
    batch = records(edge(time=right), edge(time=time), edge(time=time), together=together)
    (log,), _ = noticed(batch, batch, time_unit=unit)
    assert (log["event"], log["looks_like"], log["stream_time_unit"]) == ("time_unit_suspicious", looks, unit)


def test_days_as_seconds_are_said_unless_the_stream_counts_from_zero():
    today = NOW // 86_400_000_000
    days = records(edge(time=today - 1), edge(time=today), together="array")
    (log,), _ = noticed(days, days, time_unit="s")
    assert (log["event"], log["looks_like"]) == ("time_unit_suspicious", "days")
    counted = records(*(edge(time=t) for t in range(0, 2 * today, 500)), together="array")
    assert noticed(counted, days, time_unit="s")[0] == []


@pytest.mark.parametrize(("unit", "time", "action"), [
    ("s", NOW // 86_400_000_000, "give the topic a source with time: days"), ("s", 20_150_218, "give the topic a source with time: iso8601"),
    ("ms", NOW // 1_000_000, "set stream.time_unit to s")])
def test_the_warning_names_what_to_set(unit, time, action):
    (log,), _ = noticed(records(edge(time=time), edge(time=time), together="array"), time_unit=unit)
    assert log["action"] == f"send {unit}, or {action} before the first event"


@pytest.mark.parametrize("together", ["singles", "array", "lines"])
def test_a_timestamp_that_is_no_milliseconds_is_said_once_and_counted(together):
    before = reading(metrics.odd_timestamps)
    batch = [r._replace(timestamp=NOW // 1_000_000) for r in records(edge(), edge(), together=together)]
    (log,), taken = noticed(batch, batch)
    assert (log["event"], log["looks_like"], log["timestamp"]) == ("timestamp_suspicious", "s", str(NOW // 1_000_000))
    assert taken == [2, 2] and reading(metrics.odd_timestamps) - before == 2 * len(batch)


def test_usual_events_are_not_remarked_on():
    usual = [edge(time=NOW_MS), edge(time=NOW_MS - 20 * 365 * 86_400_000), edge(time=5), edge(time=STAMP_MS),
             {"type": "node", "id": 1, "features": [1]}, {"type": "delete", "node": 5},
             {"type": "label", "node": 1, "time": 7, "target": [1]}, edge(type="edge", id=None)]
    for together in ("singles", "array", "lines"):
        assert noticed(records(*usual, together=together)) == ([], [len(usual)])


def test_fields_of_refused_events_are_not_said_to_be_taken():
    refused = [{"user_id": 1, "item_id": 2}, {"src": 1, "dest": 2}, edge(extra=1, time=-5)]
    for together in ("singles", "array", "lines"):
        logs, taken = noticed(records(*refused, together=together))
        assert logs == [] and taken == [0]


def test_fields_once_named_are_no_longer_looked_for():
    used = decoder()
    assert used.notices.watches_fields
    used.decode(records(edge(weight=3), together="singles"), 0, NOW)
    assert not used.notices.watches_fields, "a stream that always has them goes by the fast parser"
