"""Decoding records of one event that carry headers, beside the same records without any; in processor time."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from kafka import TopicPartition
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from streamd.decode.checks import Rules
from streamd.decode.decoder import Decoder
from streamd.events import Schema
from streamd.ingest.kafka.safe_records import SafeRecords, make_reading_safe
from tests.benchmarks.measure import Row, pick_size

RECORDS, ROUNDS = pick_size((100_000, 5), (1_000, 1))
FORMS = {
    "no header": lambda i: [],
    "traceparent": lambda i: [("traceparent", b"00-%032x-%016x-01" % (i, i))],
    "content-type": lambda i: [("content-type", b"application/json")],
    "three headers": lambda i: [("content-type", b"application/json"), ("traceparent", b"00-%032x" % i), ("id", b"%d" % i)],
}


def run() -> list[Row]:
    make_reading_safe()
    batches = {name: batch_of(form) for name, form in FORMS.items()}
    records = {name: read_all(data) for name, data in batches.items()}
    read = dict.fromkeys(FORMS, 0.0)
    decoded = dict(read)
    # In turns, so that a noisy neighbor harms all forms alike.
    for _ in range(ROUNDS):
        for name in FORMS:
            read[name] = max(read[name], speed(read_all, batches[name]))
            decoded[name] = max(decoded[name], speed(decode, records[name]))
    return [Row(f"{what}, {name}", found[name], "records/s", found["no header"], "no header")
            for what, found in (("records decoded", decoded), ("records read from a batch", read)) for name in list(FORMS)[1:]]


def batch_of(headers: Callable[[int], list]) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 10**9)
    for i in range(RECORDS):
        value = b'{"src":"user:%d","dst":"page:%d","time":%d}' % (7 * i % 5003, 11 * i % 997, 1_600_000_000_000 + i)
        builder.append(i, 1_690_000_000_000 + i, None, value, headers(i))
    return bytes(builder.build())


def decode(records: Sequence[Any]) -> None:
    decoder = Decoder(Rules(Schema()))
    for at in range(0, len(records), 20_000):
        block, rejected = decoder.decode(records[at:at + 20_000], 0, 1_700_000_000_000_000)
        assert not rejected and len(block)


def read_all(data: bytes) -> list[Any]:
    part = SafeRecords(0, TopicPartition("t", 0), MemoryRecords(data))
    records = part.take()
    assert len(records) == RECORDS
    return records


def speed(work: Callable[[Any], Any], given: Any) -> float:
    """Records a second of processor time."""
    begun = time.process_time()
    work(given)
    return RECORDS / (time.process_time() - begun)
