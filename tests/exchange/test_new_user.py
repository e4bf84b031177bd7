"""A new user's topics go in with the settings that `guess` prints: an event bus, nested JSON, a table's changes."""

import json

import pytest

from streamd.exchange.guess import guess
from streamd.exchange.sample import Sample, judge
from streamd.settings.loading import load_settings
from tests.builders import ManualClock, Record
from tests.exchange.shapes import S0, d, iso

NOW_US = (S0 + 10_000) * 1_000_000
NUM = 60


def bus(i):
    """Views, orders of several lines, follows, and logins without a second key."""
    kind = ("view", "order", "follow", "login")[i % 4]
    return {"type": kind, "id": f"e{i}"} | {
        "view": {"user_id": d(i, 9), "product_id": f"p{d(i, 7, 2)}", "ts": (S0 + i) * 1000, "seconds": d(i, 50)},
        "order": {"buyer": {"id": d(i, 9)}, "created_at": iso(i), "lines": [{"sku": f"p{d(i, 7, k)}", "qty": k + 1} for k in range(1 + i % 3)]},
        "follow": {"follower_id": d(i, 9), "followee_id": d(i, 8, 3), "at": S0 + i},
        "login": {"user_id": d(i, 9), "ts": (S0 + i) * 1000, "ok": True}}[kind]


def nested(i):
    """Times are seconds with a fraction; a visitor who has not logged in has a null user."""
    return {"event": {"user": {"id": None if i % 3 == 0 else d(i, 9), "name": None}, "item": {"sku": f"p{d(i, 7, 2)}"}, "at": S0 + i + 0.25}, "meta": {"source": "web"}}


def order(i):
    return {"id": i, "customer_id": d(i, 9), "product_id": 40 + d(i, 7, 2), "amount": 2.5 + i, "created_at": (S0 + i) * 1_000_000}


def orders(i):
    """A table's rows are created, updated and deleted."""
    op = "d" if i % 6 == 5 else "u" if i % 6 == 3 else "c"
    return {"before": order(i) if op == "d" else None, "after": None if op == "d" else order(i), "source": {"connector": "postgresql", "table": "orders"},
            "op": op, "ts_ms": (S0 + i) * 1000}


def verdict_of(record, tmp_path, edits=()):
    """What the printed settings make of the records, once some of their words were edited."""
    assert len(edits) <= 2
    records = [Record(json.dumps(record(i)).encode(), i, timestamp=NOW_US // 1000) for i in range(NUM)]
    guessed = guess("t", records, NOW_US)
    text = guessed.settings
    for old, new in edits:
        assert text.count(old) == 1, text
        text = text.replace(old, new)
    (tmp_path / "guess.yaml").write_text(text)
    settings = load_settings(tmp_path / "guess.yaml", {"data_dir": tmp_path}, {})[0]
    return guessed, settings, judge(settings, Sample("t", {0: records}), ManualClock(NOW_US))


def test_an_event_bus_goes_in_as_it_is(tmp_path):
    guessed, settings, verdict = verdict_of(bus, tmp_path)
    lines = sum(len(bus(i)["lines"]) for i in range(NUM) if i % 4 == 1)
    assert verdict.counts == {"edge": NUM // 2 + lines} and not verdict.refused and not verdict.absent and verdict.num_skipped == NUM // 4
    assert [(s["where"], s["time"], s.get("each"), *(s["fields"][name] for name in ("src", "dst", "time"))) for s in guessed.sources] == [
        ({"type": ["view"]}, "ms", None, "user_id", "product_id", "ts"), ({"type": ["order"]}, "iso8601", "lines", "buyer.id", "lines.sku", "created_at"),
        ({"type": ["follow"]}, "s", None, "follower_id", "followee_id", "at")]
    assert settings.kafka.topics == ("t",) and "type login: no two keys, so such records are skipped" in guessed.doubts
    assert any(doubt.startswith("type names the kind of a record: each kind has a source") for doubt in guessed.doubts)


def test_nested_json_with_float_seconds_goes_in_but_for_null_users(tmp_path):
    guessed, _, verdict = verdict_of(nested, tmp_path)
    assert guessed.source["time"] == "s" and (guessed.source["fields"]["src"], guessed.source["fields"]["dst"]) == ("event.user.id", "event.item.sku")
    assert verdict.counts == {"edge": 40} and verdict.refused == {"missing_field": 20}
    (doubt,) = (doubt for doubt in guessed.doubts if doubt.startswith("event.user.id (src) is missing in 20 of 60 records: such records become dead letters"))
    # One edit gives those visitors a node.
    _, _, verdict = verdict_of(nested, tmp_path, [("src: event.user.id", "src: {path: event.user.id, default: visitor}")])
    assert verdict.counts == {"edge": NUM} and not verdict.refused
    # The edits that the guess names drop them.
    edits = [("src: event.user.id", "src: {path: event.user.id, default: anonymous}"), ("  fields:", "  drop_keys: [anonymous]\n  fields:")]
    assert edits[0][1] in doubt and "drop_keys: [anonymous]" in doubt
    _, _, verdict = verdict_of(nested, tmp_path, edits)
    assert verdict.counts == {"edge": 40} and not verdict.refused and verdict.num_skipped == 20


def test_a_key_that_another_path_has_is_no_dead_letter(tmp_path):
    for anonymous, whole in ((lambda i: f"a{i % 5}", True), (lambda i: None if i % 6 == 0 else f"a{i % 5}", False)):
        guessed, _, verdict = verdict_of(lambda i, a=anonymous: {"userId": None if i % 3 == 0 else i % 9, "anonymousId": a(i), "item": d(i, 7, 2), "ts": S0 + i}, tmp_path)
        (doubt,) = (doubt for doubt in guessed.doubts if "(src) is missing in 20 of 60 records" in doubt)
        assert guessed.source["fields"]["src"] == ["userId", "anonymousId"] and bool(verdict.refused) != whole
        assert ("src: {path: [userId, anonymousId], default: anonymous}" in doubt) != whole, guessed.doubts


def test_first_states_only_are_the_edges_of_a_table_by_the_condition_that_the_guess_names(tmp_path):
    """Rows of id 3, 9, ... are updates: each is an edge more, unless the condition leaves it out."""
    guessed, _, _ = verdict_of(orders, tmp_path)
    (doubt,) = (doubt for doubt in guessed.doubts if "each update of a row (op u) makes a further edge with its created_at" in doubt)
    condition = "where: {$envelope.op: [c, r, d]}"
    assert condition in doubt
    _, _, verdict = verdict_of(orders, tmp_path, [("  fields:", f"  {condition}\n  fields:")])
    assert verdict.counts == {"edge": 40, "delete": 10} and verdict.num_skipped == 10


def test_a_tables_changes_go_in_as_they_are(tmp_path):
    guessed, _, verdict = verdict_of(orders, tmp_path)
    assert verdict.counts == {"edge": 50, "delete": 10} and not verdict.refused
    assert guessed.source["envelope"] == "debezium" and guessed.source["time"] == "us"


@pytest.mark.parametrize("kind", ["one mapping fits", "no kind has two keys"])
def test_records_of_several_types_that_one_mapping_fits_have_one_source(kind, tmp_path):
    records = {"one mapping fits": lambda i: {"type": ("view", "like")[i % 2], "user": d(i, 9), "item": d(i, 7, 2), "ts": S0 + i},
               "no kind has two keys": lambda i: {"type": ("a", "b")[i % 2], "x": i / 7, "ts": S0 + i}}
    guessed = guess("t", [Record(json.dumps(records[kind](i)).encode(), i) for i in range(NUM)], NOW_US)
    assert len(guessed.sources) == 1 and "where" not in guessed.source and any("type is one of" in doubt for doubt in guessed.doubts)
