"""Record batches as they may come: what can be read is read, the rest is one refused record, and nothing is raised."""

import collections
import gzip
import random
import struct
from types import SimpleNamespace
from unittest.mock import MagicMock

import lz4.frame
import pytest
import zstandard
from kafka import TopicPartition
from kafka.codec import snappy_encode
from kafka.consumer.fetcher import Fetcher
from kafka.consumer.subscription_state import SubscriptionState
from kafka.protocol.consumer import IsolationLevel
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import calc_crc32c, encode_varint

from streamd.decode.block import Origin
from streamd.decode.wire import REFUSED_HEADER
from streamd.ingest.kafka import record_columns, safe_records
from streamd.ingest.kafka.record_headers import MAX_HEADERS
from streamd.ingest.kafka.safe_records import (
    CHECKSUM_TRIES,
    SafeBatch,
    bound_polls,
    make_reading_safe,
)

LIMIT = 100_000
ENCODE = {1: gzip.compress, 2: snappy_encode, 3: lz4.frame.compress, 4: zstandard.ZstdCompressor().compress}


@pytest.fixture(autouse=True, params=["by columns", "one by one"])
def safe(request, monkeypatch):
    monkeypatch.setattr(safe_records, "MIN_COLUMN", 1 if request.param == "by columns" else 10**9)
    SafeBatch._bad_checksums.clear()
    before, records = memory_records.DefaultRecordBatch, Fetcher.PartitionRecords
    make_reading_safe(LIMIT)
    yield
    memory_records.DefaultRecordBatch, Fetcher.PartitionRecords = before, records


def batch(codec, value, count, headers=()):
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 10**9)
    for i in range(count):
        builder.append(i, 1000 + i, b"k", value, list(headers))
    return bytes(builder.build())


def with_checksum(data):
    """The same batch with the checksum that its bytes have."""
    data = bytearray(data)
    struct.pack_into(">I", data, 17, calc_crc32c(memoryview(data)[21:]))
    return bytes(data)


def read(*batches, fetch_offset=0):
    """All records as the consumer's own generator gives them, and the offset that it goes on with."""
    part = Fetcher.PartitionRecords(fetch_offset, TopicPartition("t", 0), MemoryRecords(b"".join(batches)), None, None, True,
                                    IsolationLevel.READ_COMMITTED)
    return part.take(), part.next_fetch_offset


@pytest.mark.parametrize("codec", [0, *ENCODE])
def test_a_batch_within_the_limit_is_read_record_by_record(codec):
    records, following = read(batch(codec, b"x" * 50, 9, [("content-type", b"text"), ("empty", None)]))
    assert [(r.offset, r.key, r.value, r.timestamp) for r in records] == [(i, b"k", b"x" * 50, 1000 + i) for i in range(9)]
    assert records[0].headers == [("content-type", b"text"), ("empty", None)] and following == 9


@pytest.mark.parametrize("codec", ENCODE)
def test_a_batch_beyond_the_limit_becomes_one_record_that_says_why(codec):
    (record,), following = read(batch(codec, bytes(50_000), 9))
    assert record.headers == [(REFUSED_HEADER, b"")] and b"offsets 0 to 8" in record.value and b"max_batch_bytes" in record.value
    assert following == 9, "reading goes on behind it"


def test_a_header_name_that_is_not_utf_8_harms_nobody():
    data = with_checksum(batch(0, b"{}", 3, [("name", b"v")]).replace(b"\x08name", b"\x08\xff\xfeme"))
    records, following = read(data)
    assert [r.value for r in records] == [b"{}"] * 3 and following == 3
    assert records[0].headers == [("��me", b"v")]


def record_bytes(value, offset_delta, length=None):
    body = bytearray(b"\x00")
    for number in (0, offset_delta, -1, len(value)):
        encode_varint(number, body.append)
    body += value + b"\x00"
    out = bytearray()
    encode_varint(len(body) if length is None else length, out.append)
    return bytes(out + body)


def batch_of(*records, codec=0):
    """A batch whose records are these bytes."""
    plain = batch(0, b"", len(records))
    return with_checksum(plain[:61] + b"".join(records))


def reframed(data):
    data = bytearray(data)
    struct.pack_into(">i", data, 8, len(data) - 12)
    return with_checksum(data)


def test_a_malformed_record_is_refused_and_its_neighbors_are_read():
    bad = bytearray(record_bytes(b"bad", 1))
    bad[5] = 0x7F  # announces a value longer than the record
    data = reframed(batch_of(record_bytes(b"a", 0), bytes(bad), record_bytes(b"c", 2)))
    records, following = read(data)
    assert [(r.offset, r.headers == [(REFUSED_HEADER, b"")]) for r in records] == [(0, False), (1, True), (2, False)]
    assert records[2].value == b"c" and following == 3


def test_behind_a_record_whose_end_cannot_be_found_all_are_refused_at_once():
    data = reframed(batch_of(record_bytes(b"a", 0), record_bytes(b"b", 1, length=10**6), record_bytes(b"c", 2)))
    records, following = read(data, batch(0, b"next", 1))
    assert [r.value for r in records[:1]] == [b"a"] and records[1].headers == [(REFUSED_HEADER, b"")] and records[1].offset == 2
    assert records[2].value == b"next"


def test_a_wrong_checksum_is_fetched_again_and_then_refused():
    data = bytearray(batch(0, b"precious", 4))
    data[-3] ^= 1
    for _ in range(CHECKSUM_TRIES - 1):
        with pytest.raises(Exception, match="crc"):
            read(bytes(data))
    (record,), following = read(bytes(data))
    assert b"checksum" in record.value and following == 4


@pytest.mark.parametrize("codec", [0, 4])
def test_noise_behind_a_right_checksum_raises_nothing(codec):
    rng, good = random.Random(codec), batch(codec, b"x" * 30, 6, [("h", b"v")])
    kinds = set()
    for _ in range(2_000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(61, len(data))] = rng.randrange(256)
        records, following = read(with_checksum(data), batch(0, b"behind", 1))
        kinds |= {r.headers == [(REFUSED_HEADER, b"")] for r in records}
        assert records[-1].value == b"behind" and all(0 <= r.offset < 6 for r in records[:-1])
    assert kinds == {True, False}


def test_the_class_of_kafka_python_that_is_replaced_is_the_one_its_reader_uses():
    assert isinstance(MemoryRecords(batch(0, b"", 1)).next_batch(), SafeBatch)


def test_a_record_of_very_many_headers_is_refused_and_its_neighbors_are_read():
    many = [("", b"")] * (MAX_HEADERS + 1)
    records, following = read(batch(0, b"a", 1), batch(4, b"b", 1, many), batch(0, b"c", 1, many[1:]))
    assert [r.headers == [(REFUSED_HEADER, b"")] for r in records] == [False, True, False]
    assert b"1001 headers, at most 1000" in records[1].value and len(records[2].headers) == MAX_HEADERS


def fetcher_of(parts, max_bytes):
    """kafka-python's own fetcher with what was fetched of each partition, polled within a bound."""
    state = SubscriptionState()
    state.assign_from_user(parts)
    for tp in parts:
        state.seek(tp, 0)
    fetcher = Fetcher(MagicMock(), state)
    fetcher._completed_fetches = collections.deque(SimpleNamespace(topic_partition=tp, fetched_offset=0) for tp in parts)
    fetcher._parse_fetched_data = lambda fetch: Fetcher.PartitionRecords(
        0, fetch.topic_partition, MemoryRecords(parts[fetch.topic_partition]), isolation_level=IsolationLevel.READ_COMMITTED)
    bound_polls(SimpleNamespace(_fetcher=fetcher), max_bytes)
    return fetcher


def test_a_poll_ends_where_its_bytes_are_spent_and_the_next_goes_on_there():
    # 40 batches of 9 records, half a megabyte a partition, compressed to a few hundred bytes each.
    one = [batch(4, b"x" * 6_000, 9) for _ in range(10)]
    for at, data in enumerate(one):
        one[at] = struct.pack(">q", 9 * at) + data[8:]
    parts = {TopicPartition("t", p): b"".join(one) for p in range(4)}
    fetcher = fetcher_of(parts, 100_000)
    found, polls = {tp: [] for tp in parts}, 0
    while any(len(f) < 90 for f in found.values()):
        records, _ = fetcher.fetched_records(20_000)
        assert sum(len(r.value) for rs in records.values() for r in rs) <= 100_000 + 6_000
        for tp, new in records.items():
            found[tp] += [r.offset for r in new]
        polls += 1
        assert polls < 100
    assert all(f == list(range(90)) for f in found.values()) and polls >= 4 * 540_000 // 106_000


def test_a_poll_takes_no_more_records_than_it_was_asked_for():
    parts = {TopicPartition("t", p): batch(0, b"x", 50) for p in range(2)}
    fetcher = fetcher_of(parts, 10**9)
    sizes = [sum(map(len, fetcher.fetched_records(30)[0].values())) for _ in range(5)]
    assert sizes == [30, 30, 30, 10, 0]


def any_records(rng, count):
    """Bytes of records of all forms that a producer may send."""
    short = [None, 0, 1, 5, 20]
    records = []
    for i in range(count):
        body = bytearray(b"\x00")
        encode_varint(rng.choice([0, 1, -1, 63, 64, 10**6, -(10**12), 2**62]), body.append)
        encode_varint(i, body.append)
        for size in (rng.choice(short), rng.choice(short if rng.random() < 0.95 else [63, 64, 200, 8_191, 9_000])):
            encode_varint(-1 if size is None else size, body.append)
            body += rng.randbytes(size or 0)
        names = rng.choice([[], [], [b"id"], [b"content-type", b"\xff"], [b""]])
        encode_varint(len(names), body.append)
        for name in names:
            encode_varint(len(name), body.append)
            body += name
            encode_varint(rng.choice([-1, 0]), body.append)
        out = bytearray()
        encode_varint(len(body), out.append)
        records.append(bytes(out + body))
    return records


@pytest.mark.parametrize("attributes", [0, 8], ids=["the producer's time", "the broker's time"])
def test_records_of_any_form_sound_or_damaged_are_read_by_columns_as_one_by_one(attributes, monkeypatch):
    rng = random.Random(attributes)
    monkeypatch.setattr(record_columns, "MAX_RECORDS", 7)
    refused = 0
    for turn in range(300):
        data = bytearray(reframed(batch_of(*any_records(rng, rng.randint(1, 20)))))
        data[22] |= attributes
        struct.pack_into(">q", data, 35, 5_000_000_000)
        for _ in range(rng.choice([0, 1, 4])):
            data[rng.randrange(61, len(data))] = rng.randrange(256)
        first = rng.choice([0, 0, rng.randrange(20)])
        ways = []
        for fewest in (1, 10**9):
            monkeypatch.setattr(safe_records, "MIN_COLUMN", fewest)
            ways.append(read(with_checksum(data), batch(0, b"next", 1), fetch_offset=first))
        assert ways[0] == ways[1], turn
        refused += any(r.headers == [(REFUSED_HEADER, b"")] for r in ways[0][0])
    assert 30 < refused < 200


@pytest.mark.parametrize("first", [2**63 - 1, 2**62, -(2**63)])
def test_a_timestamp_beyond_int64_is_the_nearest_that_fits_and_one_before_1970_none(first):
    data = bytearray(reframed(batch_of(*any_records(random.Random(1), 60))))
    struct.pack_into(">q", data, 27, first)
    records, following = read(with_checksum(data))
    assert following == 60 and not any(r.headers == [(REFUSED_HEADER, b"")] for r in records)
    stamps = {r.timestamp for r in records}
    assert stamps == {-1} if first < 0 else 2**63 - 1 in stamps and all(first - 10**12 <= stamp < 2**63 for stamp in stamps)
    assert len(Origin.of_records(records, 0, 0).stamp) == 60


def test_reading_goes_on_in_the_middle_of_a_batch():
    records, following = read(batch(4, b"x", 100), fetch_offset=70)
    assert [r.offset for r in records] == list(range(70, 100)) and following == 100


def transactional(data, base, producer, control=None):
    """A batch as one of a transaction; as the marker that ends it where `control` is 0, abort, or 1, commit."""
    data = bytearray(data)
    struct.pack_into(">q", data, 0, base)
    data[22] |= 0x10 | (0x20 if control is not None else 0)
    struct.pack_into(">q", data, 43, producer)
    return with_checksum(data)


def marker(base, producer, control):
    plain = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 10**9)
    plain.append(0, 1000, struct.pack(">hh", 0, control), b"", [])
    return transactional(bytes(plain.build()), base, producer, control)


def test_records_of_an_aborted_transaction_are_left_out_and_those_of_a_committed_one_are_read():
    data = [transactional(batch(0, b"a", 3), 0, 7), transactional(batch(0, b"b", 40), 3, 8), marker(43, 7, 0), marker(44, 8, 1),
            transactional(batch(0, b"c", 2), 45, 7), marker(47, 7, 1)]
    aborted = [SimpleNamespace(producer_id=7, first_offset=0)]
    part = Fetcher.PartitionRecords(0, TopicPartition("t", 0), MemoryRecords(b"".join(data)), None, None, True,
                                    IsolationLevel.READ_COMMITTED, aborted)
    records = part.take()
    assert [r.value for r in records] == [b"b"] * 40 + [b"c"] * 2 and part.next_fetch_offset == 48
    assert [r.offset for r in records] == [*range(3, 43), 45, 46]
