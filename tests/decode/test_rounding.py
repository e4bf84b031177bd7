"""Whole numbers that float32 does not hold are counted, each once, in every way in which events come."""

import json

import numpy as np
import pyarrow as pa
import pytest
import structlog
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.cli.maintenance import _log_of
from streamd.decode.rounding import NOTHING, Rounded, count_rounded
from streamd.decode.wire import ARROW, NDJSON
from streamd.exchange.tables import Columns
from tests.builders import Record
from tests.decode.mapped import CLICKS, Topic, click, settings_of
from tests.decode.test_decode import NOW, arrow, decoder, edge

BIG = 2**24 + 1
"""The smallest whole number that float32 does not hold."""
STAMP_MS = NOW // 1000
HELD = [0, 1, -(2**24), 2**24 + 2, 2**30, 3 * 2**40, 0.1, 1e-30]


def invoke(*words):
    return CliRunner().invoke(app, [str(w) for w in words])


def records(*events, together):
    raw = [json.dumps(e).encode() for e in events]
    if together == "singles":
        return [Record(value, at, STAMP_MS) for at, value in enumerate(raw)]
    if together == "array":
        return [Record(b"[" + b",".join(raw) + b"]", timestamp=STAMP_MS)]
    return [Record(b"\n".join(raw), timestamp=STAMP_MS, headers=(("content-type", NDJSON.encode()),))]


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.float64])
def test_the_rule_is_that_of_exact_arithmetic(dtype):
    draw = np.random.default_rng(0)
    most = 2**31 - 1 if dtype == np.int32 else 2**63 - 1
    sizes = draw.integers(1, most, 3000) >> draw.integers(0, 40, 3000).clip(max=30 if dtype == np.int32 else 40)
    near = [2**24 - 1, 2**24, BIG, 2**24 + 2, 2**30 + 1, *([2**53, 2**62, 2**62 + 2**39, most] if dtype != np.int32 else [])]
    values = np.array([*sizes.tolist(), *near], dtype)
    if dtype != np.uint64:
        values = np.concatenate([values, -values, np.array([np.iinfo(dtype).min if dtype != np.float64 else -(2.0**63)], dtype)])
    want = [v for v in values.tolist() if int(np.float32(int(v))) != int(v)]
    found = count_rounded(values.reshape(-1, 1), ["n"])
    assert 0 < found.num == len(want) < len(values) and found.example == f"n {int(want[0])} as {int(np.float32(int(want[0])))}"
    assert count_rounded(values[:0].reshape(-1, 1), ["n"]) is NOTHING


def test_fractions_and_numbers_that_are_held_are_not_counted():
    assert count_rounded(np.array([HELD, [1 / 3] * len(HELD)]), [""] * len(HELD)) == NOTHING
    assert count_rounded(np.array([[1.5, BIG + 0.5, BIG]]), ["a", "b", "c"]) == Rounded(1, "c 16777217 as 16777216")


@pytest.mark.parametrize("together", ["singles", "array", "lines"])
@pytest.mark.parametrize("beside", [[], [{"type": "node", "id": 5, "features": [BIG]}, {"type": "label", "node": 1, "target": [BIG]}],
                                    [{"src": 1, "features": [BIG, BIG]}], [edge(dst="", features=[BIG, BIG])]])
def test_events_are_counted_once_and_warned_of_once(together, beside):
    used = decoder()
    batch = records(edge(), edge(features=[2, BIG]), *beside, edge(features=[-BIG, BIG]), together=together)
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            used.decode(batch, 0, NOW)
    taken = 3 + (2 if beside and beside[0].get("type") else 0)
    assert used.rounded == Rounded(2 * taken, "features[1] 16777217 as 16777216")
    assert [log["example"] for log in logs if log["event"] == "feature_rounded"] == ["features[1] 16777217 as 16777216"]


def test_columns_of_arrow_are_counted():
    used = decoder()
    table = {"src": ["u", "u"], "dst": ["i", "i"], "time": [1, 2], "features": pa.array([[BIG, 0], [5, BIG]], pa.list_(pa.float64()))}
    head = [("content-type", ARROW.encode())]
    used.decode([Record(arrow(pa.table(table)), 0, STAMP_MS, 0, tuple(head))], 0, NOW)
    assert used.rounded == Rounded(2, "features 16777217 as 16777216")
    table["features"] = pa.array([[BIG, 0], [5, BIG]], pa.list_(pa.int64()))
    used.decode([Record(arrow(pa.table(table)), 1, STAMP_MS, 0, tuple(head))], 0, NOW)
    assert used.rounded.num == 4


@pytest.mark.parametrize("beside", [[], [click(user_id=None, dwell={"s": BIG})], [click(dwell={"s": str(BIG)})]])
def test_mapped_records_are_counted_by_their_feature(tmp_path, beside):
    topic = Topic(CLICKS, tmp_path)
    topic.decode(click(), click(dwell={"s": BIG}), *beside, click(kind="other", dwell={"s": BIG}))
    assert topic.decoder.rounded == Rounded(1 + (beside != [] and beside[0]["user_id"] is not None), "seconds 16777217 as 16777216")


def test_commands_say_how_many_values_were_rounded(tmp_path):
    words = "values of features rounded: float32 does not hold all whole numbers above 16,777,216, such as"
    (tmp_path / "c.yaml").write_text(CLICKS)
    rows = [click(dwell={"s": s}) for s in (3, BIG, BIG + 2)]
    (tmp_path / "clicks.ndjson").write_text("\n".join(map(json.dumps, rows)))
    done = invoke("sources", "check", tmp_path / "clicks.ndjson", "--config", tmp_path / "c.yaml")
    assert f"2 {words} seconds 16777217 as 16777216" in done.output and done.exit_code == 0
    given = ("--source", "clicks", "--config", tmp_path / "c.yaml", "--data-dir", tmp_path / "log")
    assert f"2 {words} seconds" in invoke("tguf", "import", tmp_path / "clicks.ndjson", *given).output
    made = settings_of(CLICKS, tmp_path)
    with _log_of(made, tmp_path / "clicks.ndjson", Columns(source="clicks"), lambda *_: None) as (_, caption):
        assert f"2 {words} seconds 16777217 as 16777216" in caption

    (tmp_path / "graph.pbtxt").write_text("""node_sets { key: "n" value { metadata { filename: "n.csv" } features { key: "key" value { dtype: DT_INT64 } } } }
      edge_sets { key: "e" value { source: "n" target: "n" metadata { filename: "e.csv" } features { key: "d" value { dtype: DT_DOUBLE } } } }""")
    (tmp_path / "n.csv").write_text("id,key\na,562949953421313\nb,5\n")
    (tmp_path / "e.csv").write_text(f"source,target,time,d\na,b,1,{BIG}\na,b,2,0.1\n")
    (tmp_path / "t.yaml").write_text(invoke("config", "--from-schema", tmp_path).output)
    done = invoke("tfgnn", "import", tmp_path, "--config", tmp_path / "t.yaml", "--data-dir", tmp_path / "tables")
    assert f"2 {words} d 16777217 as 16777216" in done.output, done.output
