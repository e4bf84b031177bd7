import json
import random
import resource

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.decode.checks import Rules
from streamd.decode.decoder import Decoder
from streamd.decode.wire import ARROW, NDJSON
from streamd.events import DELETE, EDGE, LABEL, NODE, Schema
from streamd.ingest.dead_letters.sinks import REASONS
from tests.builders import Record, spell

NOW = 1_700_000_000_000_000
STAMP_MS = 1_690_000_000_000


def decoder(**rules):
    return Decoder(Rules(**{"schema": Schema(2, 1, 1), "tombstones": True, **rules}))


def decode(value, headers=(), stamp=STAMP_MS, log_append_time=False, key=None, **rules):
    raw = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return decode_all([Record(raw, 42, stamp, int(log_append_time), tuple(headers), key)], **rules)


def decode_all(records, **rules):
    used = decoder(**rules)
    block, rejected = used.decode(records, 3, NOW)
    return spell(block, used.keys.keys), rejected


def edge(**fields):
    return {"src": "u:1", "dst": "i:2", "time": 1_672_531_200_123, "features": [1.5, 2], **fields}


def test_an_edge_is_decoded_in_microseconds():
    (event,), bad = decode(edge())
    assert bad == [] and event == (1_672_531_200_123_000, 3, 42, 0, EDGE, "u:1", "i:2", [1.5, 2.0])


def test_a_string_key_is_not_the_integer_that_looks_like_it():
    (event,), _ = decode(edge(src="1", dst=1))
    assert (event.a, event.b) == ("1", 1)


def test_an_event_without_time_takes_the_kafka_timestamp():
    plain = edge()
    del plain["time"]
    assert decode(plain)[0][0].time == STAMP_MS * 1000
    assert decode([plain, edge()])[0][0].time == STAMP_MS * 1000
    assert decode(plain, stamp=-1)[1][0].reason == "bad_time"


def test_nodes_and_labels_are_decoded():
    events, bad = decode([{"type": "node", "id": "u:1", "features": [3]},
                          {"type": "label", "node": "u:1", "time": 5, "target": [1]}])
    assert not bad and [(e.kind, e.a, e.time, e.values) for e in events] == [(NODE, "u:1", 0, [3.0]), (LABEL, "u:1", 5000, [1.0])]


BAD = {
    "broken JSON": (b'{"src": "a", ', "bad_json"), "not UTF-8": (b'{"src": "\xff\xfe"}', "bad_json"),
    "a number": (b"17", "wrong_type"), "empty value": (b"", "bad_json"), "no value": (None, "tombstone"),
    "src a list": (edge(src=[1]), "wrong_type"), "src a float": (edge(src=1.5), "wrong_type"),
    "src true": (edge(src=True), "wrong_type"), "float time": (edge(time=5.0), "bad_time"),
    "fractional time": (edge(time=5.5), "bad_time"), "string time": (edge(time="5"), "wrong_type"),
    "negative time": (edge(time=-1), "bad_time"), "a century ahead": (edge(time=NOW // 1000 + 3_155_760_000_000), "time_ahead"),
    "time beyond int64": (edge(time=2**62), "bad_time"), "huge time": (edge(time=10**30), "wrong_type|bad_time|bad_json"),
    "NaN feature": (b'{"src":1,"dst":2,"time":5,"features":[NaN,1]}', "bad_json"),
    "infinite feature": (b'{"src":1,"dst":2,"time":5,"features":[1e39,1]}', "bad_features"),
    "feature beyond float64": (b'{"src":1,"dst":2,"time":5,"features":[1e999,1]}', "bad_json|wrong_type|bad_features"),
    "wrong width": (edge(features=[1]), "feature_width"), "no features": ({"src": 1, "dst": 2, "time": 5}, "feature_width"),
    "text feature": (edge(features=["a", 1]), "wrong_type"), "unknown type": (edge(type="edgy"), "unknown_type"),
    "missing dst": ({"src": 1, "time": 5, "features": [1, 2]}, "missing_field"),
    "key with newline": (edge(src="a\nb"), "bad_key"), "empty key": (edge(src=""), "bad_key"),
    "long key": (edge(src="x" * 257), "bad_key"), "lone surrogate": (b'{"src":"\\ud800","dst":2,"time":5,"features":[1,2]}', "bad_key|bad_json"),
    "key beyond int64": (edge(src=2**63), "bad_key|wrong_type"), "10 MB record": (b'{"src": "' + b"x" * 10_000_000 + b'"}', "record_too_large"),
    "empty array": (b"[]", "empty"), "deep nesting": (b'{"src":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too_deep|wrong_type"),
    "deep array": (b"[" * 100_000 + b"]" * 100_000, "too_deep|wrong_type|bad_json"),
    "delete of nothing": ({"type": "delete"}, "missing_field"), "delete without time": ({"type": "delete", "src": 1, "dst": 2}, "missing_field"),
    "delete of a node and an edge": ({"type": "delete", "node": 1, "src": 2}, "wrong_type"), "edge with a target": (edge(target=[1]), "wrong_type"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_rejected_with_its_reason_and_bytes(name):
    value, reason = BAD[name]
    good, bad = decode(value)
    assert good == [] and len(bad) == 1
    assert bad[0].reason in reason.split("|") and bad[0].reason in REASONS
    assert bad[0].raw == (value if isinstance(value, bytes) else b"" if value is None else json.dumps(value).encode())
    assert bad[0].error


def test_an_unknown_content_type_is_rejected():
    assert decode(edge(), [("content-type", b"text/csv")])[1][0].reason == "unknown_content_type"
    assert len(decode(edge(), [("Content-Type", b"application/json; charset=utf-8")])[0]) == 1


@pytest.mark.parametrize("name", [n for n, (v, _) in BAD.items() if isinstance(v, dict)])
def test_neighbors_of_a_bad_event_in_an_array_are_kept(name):
    good, bad = decode([edge(src="first"), BAD[name][0], edge(src="last")])
    assert [(e.a, e.item) for e in good] == [("first", 0), ("last", 2)]
    assert [b.index for b in bad] == [1]


def test_too_many_events_in_one_record_are_rejected_whole():
    good, bad = decode([edge()] * 11, max_record_events=10)
    assert not good and bad[0].reason == "too_many_events" and bad[0].index == -1


def test_an_event_beyond_the_brokers_own_time_is_ahead_even_if_our_clock_is_wrong():
    for append_time in (True, False):
        (refused,) = decode(edge(time=1_000_000 + 61_000), stamp=1_000_000, log_append_time=append_time)[1]
        assert refused.reason == "time_ahead" and "61 s ahead" in refused.error and "at most 60 s" in refused.error
        assert decode(edge(time=1_000_000 + 59_000), stamp=1_000_000, log_append_time=append_time)[0]
        assert decode([edge(time=1_000_000 + 61_000)] * 2, stamp=1_000_000, log_append_time=append_time)[0] == []


def test_without_a_timestamp_of_the_record_the_wall_clock_says_what_is_ahead():
    assert decode(edge(time=NOW // 1000 + 59_000), stamp=-1)[0]
    assert decode(edge(time=NOW // 1000 + 61_000), stamp=-1)[1][0].reason == "time_ahead"
    assert decode(edge(time=NOW // 1000 + 61_000), stamp=NOW // 1000 + 10**9)[1][0].reason == "time_ahead"


def test_features_beyond_the_bound_are_rejected():
    for many in (1, 20):
        good, bad = decode([edge(features=[1, 2])] * many + [edge(features=[1, -1e7])], max_feature=1e6)
        assert len(good) == many and bad[0].reason == "bad_features" and bad[0].error.endswith("ingest.max_feature, 1e+06, in features[1]")


def test_a_record_that_claims_to_be_refused_is_so_and_harms_nobody():
    (refused,) = decode(b"\xff\xfe", headers=[("streamd-refused-batch", b"")])[1]
    assert refused.reason == "bad_batch"


@pytest.mark.parametrize("name", ["content-type", "Content-Type", "CONTENT-TYPE"])
def test_a_dead_letter_keeps_the_content_type_of_its_record(name):
    (refused,) = decode(b"\xff" * 9, headers=[(name, ARROW.encode())])[1]
    assert refused.content_type == ARROW


def test_deletes_name_a_node_or_an_edge_and_have_no_time_of_their_own():
    good, bad = decode([{"type": "delete", "node": "u:1"}, edge(), {"type": "delete", "src": 1, "dst": "x", "time": 5}])
    assert not bad and [(e.kind, e.a, e.b, e.values) for e in good if e.kind == DELETE] == [
        (DELETE, "u:1", None, []), (DELETE, 1, "x", [5000, 0])]
    assert [e.time for e in good] == [0, edge()["time"] * 1000, 0]


def test_a_null_value_deletes_the_node_of_its_key_only_where_the_settings_say_so():
    good, bad = decode(None, key=b"u:1")
    assert not bad and (good[0].kind, good[0].a) == (DELETE, "u:1")
    assert decode(None, key=None)[1][0].reason == "tombstone" and decode(None, key=b"\xff")[1][0].reason == "bad_key"
    refused, = decode(None, key=b"u:1", tombstones=Rules(Schema()).tombstones)[1]
    assert refused.reason == "tombstone" and "ingest.tombstones" in refused.error


def single_records(events):
    return [Record(e if isinstance(e, bytes) else json.dumps(e).encode(), i) for i, e in enumerate(events)]


def test_single_events_decoded_together_are_those_decoded_alone():
    rng = random.Random(4)
    pool = [edge(src=f"u:{i}", features=[i, -i / 3]) for i in range(40)] + [
        {"type": "node", "id": "n", "features": [1]}, {"type": "label", "node": "n", "time": 5, "target": [2]},
        {"src": "a", "dst": 5, "features": [1, 2]}] + [v for v, _ in BAD.values() if v is not None and len(str(v)) < 1000] + [
        b'{"src":1,\n"dst":2,"time":5,"features":[1,2]}', b'{"src":"a","dst":"b","features":[1,2]},{"src":"c"}',
        b'{"src":"a', b'","dst":2,"time":5,"features":[1,2]}', b'{"src":1,"dst":2,', b'"time":5,"features":[1,2]}',
        b'{"src":1,"dst":2,"time":5,"features":[1,2]} {"src":1,"dst":2,"time":5,"features":[1,2]}']
    for bad_share in (0.0, 0.02, 0.5):
        events = [rng.choice(pool) if rng.random() < bad_share else rng.choice(pool[:40]) for _ in range(700)]
        together = decode_all(single_records(events))
        alone = [], []
        for record in single_records(events):
            used = decoder()
            block, rejected = used.decode([record], 3, NOW)
            alone[0].extend(spell(block, used.keys.keys))
            alone[1].extend(rejected)
        assert together == alone


CUT_IN_THREE = [b'{"src":1,"dst":2,"time":5,"features":[1,2],"x":', b'{"y":1}}', 2 * b'{"src":3,"dst":4,"time":6,"features":[1,2]}']
"""Three values that are no JSON alone, and three objects where they are read as one text."""


def test_an_object_cut_in_two_and_two_objects_in_one_value_are_no_three_events():
    good, bad = decode_all(single_records([edge(), *CUT_IN_THREE, edge()]))
    assert [e.offset for e in good] == [0, 4] and [(b.offset, b.reason) for b in bad] == [(i, "bad_json") for i in (1, 2, 3)]
    good, bad = decode(b"\n".join(CUT_IN_THREE), [("content-type", NDJSON.encode())])
    assert not good and [(b.index, b.raw) for b in bad] == list(enumerate(CUT_IN_THREE))


@pytest.mark.parametrize("blanks", [(b" ", b""), (b"", b"\r"), (b"\t", b" \n")])
def test_blanks_around_a_value_are_none_of_it(blanks):
    values = [blanks[0] + json.dumps(edge(src=f"u:{i}")).encode() + blanks[1] for i in range(20)]
    assert decoder().own._reader.of_lines(values) is not None
    good, bad = decode_all(single_records(values))
    assert len(good) == 20 and not bad


def test_ndjson_lines_are_judged_one_by_one():
    lines = [json.dumps(edge(src="first")).encode(), b"", b'{"src": 1', json.dumps(edge(src="last")).encode(), b" "]
    good, bad = decode(b"\n".join(lines), [("content-type", NDJSON.encode())])
    assert [(e.a, e.item) for e in good] == [("first", 0), ("last", 2)] and [(b.index, b.raw) for b in bad] == [(1, b'{"src": 1')]
    good, bad = decode(b"\n".join([lines[0]] * 5), [("content-type", b"application/x-ndjson")])
    assert [e.item for e in good] == [0, 1, 2, 3, 4] and not bad
    assert decode(b"\n\n", [("content-type", NDJSON.encode())])[1][0].reason == "empty"


def arrow(table, rows_a_batch=7, **options):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=rows_a_batch)
    return sink.getvalue().to_pybytes()


def decode_arrow(table, **rules):
    return decode(table if isinstance(table, bytes) else arrow(table), [("content-type", ARROW.encode())], **rules)


def plain_table(n=20, **columns):
    return pa.table({"src": [f"u:{i % 5}" for i in range(n)], "dst": list(range(n)), "time": [1000 + i for i in range(n)],
                     "features": pa.array([[i, 0.5] for i in range(n)], pa.list_(pa.float32(), 2)), **columns})


@pytest.mark.parametrize("change", [
    {}, {"dst": pa.array(range(20), pa.int32())},
    {"features": pa.array([[i, 0.5] for i in range(20)], pa.list_(pa.float64()))},
    {"src": pa.array([f"u:{i % 5}" for i in range(20)], pa.large_string())},
    {"time": pa.array([1000 + i for i in range(20)], pa.timestamp("ms"))},
])
def test_arrow_columns_are_the_events_of_the_same_json(change):
    got, bad = decode_arrow(plain_table(**change))
    want, _ = decode([{"src": f"u:{i % 5}", "dst": i, "time": 1000 + i, "features": [i, 0.5]} for i in range(20)])
    assert got == want and not bad


def test_arrow_rows_that_do_not_fit_leave_their_neighbors_in():
    table = plain_table(3, dst=["a", None, "b"], time=[5, 6, -1])
    good, bad = decode_arrow(table)
    assert [(e.b, e.item) for e in good] == [("a", 0)] and [(b.index, b.reason) for b in bad] == [(1, "missing_field"), (2, "bad_time")]
    mixed = pa.table({"type": ["node", "label", "delete"], "id": ["n", None, None], "node": [None, "n", "n"],
                      "time": [None, 5, None], "features": [[1.0], None, None], "target": [None, [2.0], None]})
    assert [e.kind for e in decode_arrow(mixed)[0]] == [NODE, LABEL, DELETE]


@pytest.mark.parametrize(("value", "reason"), [
    (b"", "bad_arrow"), (b"ARROW1", "bad_arrow"), (arrow(plain_table())[:200], "bad_arrow"), (b"\xff" * 100, "bad_arrow"),
    (arrow(plain_table(), options=pa.ipc.IpcWriteOptions(compression="zstd")), "bad_arrow"),
    (arrow(plain_table(0)), "empty"), (arrow(plain_table(500)), "too_many_events"),
    (arrow(pa.table({"id": pa.nulls(10**9)}), 10**9), "too_many_events"),
])
def test_arrow_streams_that_cannot_be_trusted_are_rejected_whole(value, reason):
    good, bad = decode_arrow(value, max_record_events=100)
    assert not good and [(b.index, b.reason) for b in bad] == [(-1, reason)]


def test_arrow_bytes_that_were_tampered_with_never_crash_and_never_pass_unchecked():
    raw = arrow(plain_table())
    rng = np.random.default_rng(2)
    for _ in range(400):
        fuzzed = bytearray(raw)
        for at in rng.integers(0, len(raw), int(rng.integers(1, 6))):
            fuzzed[at] = int(rng.integers(0, 256))
        good, bad = decode_arrow(bytes(fuzzed))
        assert len(good) + len(bad) >= 1 and all(b.reason in REASONS for b in bad)


JUNK = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(
                        ["src", "dst", "time", "type", "features", "id", "node", "target", "x"]), x, max_size=5), max_leaves=12)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=60), JUNK.map(lambda x: json.dumps(x).encode())))
def test_no_input_crashes_the_decoder_or_goes_unaccounted(value):
    good, bad = decode(value)
    assert good or bad
    assert all(b.reason in REASONS for b in bad)


MUTATED = [json.dumps(edge(src=f"u:{i}")).encode() for i in range(8)] + [
    json.dumps([edge(), edge(src=5)]).encode(), b'{"type":"node","id":1,"features":[2]}', b'{"type":"delete","node":"u:1"}']


def fuzz(count, seed):
    """Feed `count` mutated values between two good ones; every good neighbor must come through."""
    rng, used, alive = random.Random(seed), decoder(), 0
    for start in range(0, count, 64):
        values = []
        for _ in range(min(64, count - start)):
            raw = bytearray(rng.choice(MUTATED))
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(len(raw))
                raw[at: at + rng.randint(0, 2)] = rng.choice([b"", b'"', b"{", b"}", b",", b"[", b"\n", b"\\", bytes([rng.randrange(256)])])
            values += [bytes(raw), MUTATED[0]]
        headers = (("content-type", NDJSON.encode()),) if rng.random() < 0.1 else ()
        block, rejected = used.decode([Record(v, i, headers=headers if i % 2 == 0 else ()) for i, v in enumerate(values)], 0, NOW)
        whole = set(block.rows["offset"].tolist())
        assert set(range(1, len(values), 2)) <= whole, "a good neighbor was lost"
        assert whole | {r.offset for r in rejected} == set(range(len(values))), "a value went unaccounted"
        assert all(r.reason in REASONS for r in rejected)
        alive += len(values) // 2
        if used.keys.is_full:
            used.keys.shrink(np.zeros(0, np.int64))
    return alive


def test_good_neighbors_survive_mutated_values():
    assert fuzz(20_000, 1) == 20_000


@pytest.mark.slow
def test_a_million_mutated_values_crash_nothing_and_grow_nothing():
    fuzz(100_000, 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert fuzz(1_000_000, 3) == 1_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000, "KiB; the key table may hold a million keys"
