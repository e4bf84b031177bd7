"""Records with headers take the fast path, and mean what they mean record by record, whatever their bytes."""

import struct

from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.consumer.fetcher import ConsumerRecord
from kafka.record.util import decode_varint, encode_varint

from streamd.decode.checks import Rules
from streamd.decode.decoder import Decoder
from streamd.decode.headers import MAX_KNOWN
from streamd.decode.wire import REFUSED_HEADER
from streamd.events import Schema
from streamd.ingest.kafka.record_headers import MAX_HEADERS, UNREADABLE
from streamd.ingest.kafka.safe_records import SafeBatch
from tests.builders import Record, spell

NOW = 1_700_000_000_000_000
PLAIN = b'{"src": "a", "dst": "b", "time": 5}'
VALUES = (PLAIN, b'{"src": 1, "dst": 2}', b'{"src": "a"}', b"[1]", b'[{"src": 1, "dst": 2}]', b"", None, b'{"src":"a","dst":"b"}\n{"src":"c","dst":"d"}',
          b'{"type": "node", "id": "n", "features": [1.0]}')
TYPES = (b"application/json", b"Application/JSON; charset=utf-8", b"application/x-ndjson", b"text/plain", b"", None, b"\xff\xfe",
         b"application/vnd.apache.arrow.stream")
headers = st.lists(st.one_of(
    st.tuples(st.sampled_from(["content-type", "Content-Type", "CONTENT-TYPE"]), st.sampled_from(TYPES)),
    st.tuples(st.just("traceparent"), st.binary(max_size=60)),
    st.tuples(st.sampled_from(["", "id", REFUSED_HEADER, REFUSED_HEADER.upper(), "x" * 200]), st.one_of(st.none(), st.binary(max_size=200)))),
    max_size=4)
records = st.lists(st.tuples(st.sampled_from(VALUES), headers), max_size=30)


def decoded(some, one_by_one):
    decoder = Decoder(Rules(Schema(0, 1, 0)))
    if one_by_one:
        decoder.own.form_of = lambda record: None
    block, rejected = decoder.decode(some, 0, NOW)
    return spell(block, decoder.keys.keys), rejected


@settings(max_examples=150, deadline=None)
@given(records)
@example([(PLAIN, [("content-type", b"application/x-ndjson"), ("content-type", b"application/json")])])
@example([(PLAIN, [("content-type", b"application/json")]), (PLAIN, [(REFUSED_HEADER, b"")]), (PLAIN, [("a", None)])])
def test_records_decoded_together_are_what_they_are_one_by_one(chosen):
    some = [Record(value, at, headers=tuple(more)) for at, (value, more) in enumerate(chosen)]
    assert decoded(some, one_by_one=False) == decoded(some, one_by_one=True)


def test_no_producer_makes_the_decoder_remember_without_limit():
    decoder = Decoder(Rules(Schema(0, 0, 0)))
    some = [Record(PLAIN, at, headers=((f"name-{at}", b"x"), ("y" * 500 + str(at), b""))) for at in range(3 * MAX_KNOWN)]
    block, rejected = decoder.decode(some, 0, NOW)
    assert len(block) == len(some) and not rejected and len(decoder.own.headers.harmless) <= MAX_KNOWN


def varint(number):
    out = bytearray()
    encode_varint(number, out.append)
    return bytes(out)


numbers = st.one_of(st.integers(-3, 200), st.sampled_from([2**31, -2**31, 2**62, -2**62, MAX_HEADERS, MAX_HEADERS + 1]))
sound = st.tuples(st.sampled_from([b"id", b"traceparent", b"", b"\xff\xfe", b"n" * 90]), st.one_of(st.none(), st.binary(max_size=90)))


@st.composite
def header_bytes(draw):
    """The bytes of a record's headers, from their count on: sound, or damaged in a way that a producer may think of."""
    fields = draw(st.lists(sound, max_size=5))
    parts = [varint(len(fields))]
    for name, content in fields:
        parts += [varint(len(name)) + name, varint(-1) if content is None else varint(len(content)) + content]
    how = draw(st.sampled_from(["sound", "number", "cut", "bytes"]))
    at = draw(st.integers(0, len(parts) - 1))
    if how == "number":
        parts[at] = varint(draw(numbers)) + parts[at][1:]
    raw = b"".join(parts)
    if how == "cut":
        raw = raw[: draw(st.integers(0, len(raw)))]
    return raw + draw(st.binary(max_size=12)) if how == "bytes" else raw


def plainly(raw):
    """(headers, position behind) by the plain reading of Kafka's message format; None where it cannot be read."""
    def nullable(pos):
        length, pos = decode_varint(raw, pos)
        if length < 0:
            return None, pos
        if pos + length > len(raw):
            raise ValueError
        return raw[pos: pos + length], pos + length

    try:
        count, pos = decode_varint(raw, 0)
        if not 0 <= count <= MAX_HEADERS:
            return None
        out = []
        for _ in range(count):
            name, pos = nullable(pos)
            content, pos = nullable(pos)
            out.append(((name or b"").decode(errors="replace"), content))
    except UNREADABLE:
        return None
    return out, pos


def batch_of(*bodies):
    """An uncompressed batch of records with these bytes behind their lengths."""
    data = b"".join(varint(len(b)) + b for b in bodies)
    head = struct.pack(">hiqqqhii", 0, len(bodies) - 1, 1000, 1000, -1, -1, -1, len(bodies))
    return struct.pack(">qiibI", 0, 9 + len(head) + len(data), 0, 2, 0) + head + data


@settings(max_examples=300, deadline=None)
@given(header_bytes())
@example(varint(1) + b"\x80" * 12)
@example(varint(2) + varint(2) + b"id" + varint(-5) + varint(2**40) + b"x")
@example(varint(1) + varint(-1) + varint(-1))
def test_headers_of_any_bytes_are_read_plainly_or_refused_and_harm_no_other_record(raw):
    def body(delta, more):
        return b"\0" + varint(0) + varint(delta) + varint(-1) + varint(len(PLAIN)) + PLAIN + more

    place = ConsumerRecord("t", 0, -1, *[None] * 10)
    whole = varint(1) + varint(2) + b"id" + varint(1) + b"7"
    ways = []
    for one_by_one in (False, True):
        batch = SafeBatch(batch_of(body(0, whole), body(1, raw), body(2, whole)))
        batch._is_read_one_by_one = one_by_one
        ways.append([r for run in batch for r in run.records_for(place)])
    assert ways[0] == ways[1]
    first, second, third = ways[0]
    assert [(r.offset, r.value, r.headers) for r in (first, third)] == [(0, PLAIN, [("id", b"7")]), (2, PLAIN, [("id", b"7")])]
    want = plainly(raw)
    # A length may reach into the record behind, which the end of this one then tells.
    if want is not None and want[1] == len(raw):
        assert second.value == PLAIN and second.headers == want[0]
    else:
        assert second.headers == [(REFUSED_HEADER, b"")] and second.offset == 1
