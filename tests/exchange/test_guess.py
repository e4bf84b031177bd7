"""`streamd sources guess` on the shapes of public sources: the first proposal is right, or a doubt names what is wrong with it."""

import datetime
import json
import re

import pytest

from streamd.decode.wire import OWN_EVENT
from streamd.errors import SettingsError
from streamd.exchange.chosen_fields import Chosen
from streamd.exchange.event_files import EventFile
from streamd.exchange.field_names import head_of, is_measure, is_technical, last_words
from streamd.exchange.guess import guess
from streamd.exchange.load import FileRow
from streamd.exchange.sample import Sample, as_json_rows, judge
from streamd.exchange.sourced import read_rows
from streamd.settings.loading import load_settings
from streamd.settings.sources import UNAVAILABLE
from tests.builders import ManualClock, Record
from tests.decode.registry import CLICK, Registry, avro
from tests.exchange.shapes import S0, SHAPES

NOW_US = (S0 + 10_000) * 1_000_000
NUM_RECORDS = 60
WRONG = {"mastodon stream", "aml transactions", "ethereum transfers", "iot without a second key"}
"""Shapes of which no mapping is right yet: their doubt names the reason."""


def records_of(shape):
    return [Record(json.dumps(shape.record(i)).encode(), i, timestamp=NOW_US // 1000) for i in range(NUM_RECORDS)]


def is_right(got, want):
    return got in want if isinstance(want, tuple) else got == want or (not want and got.startswith("REPLACE_"))


def outcome(shape):
    """The guess of a shape, and its fields that a person would not have chosen."""
    guessed = guess("t", records_of(shape), NOW_US)
    fields = guessed.source["fields"]
    got = {"src": fields["src"], "dst": fields["dst"], "time": fields.get("time", ""), "form": guessed.source["time"]}
    return guessed, {name: value for name, value in got.items() if not is_right(value, getattr(shape, name))}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_a_guess_is_right_or_a_doubt_names_what_is_wrong(shape):
    guessed, wrong = outcome(shape)
    assert not shape.doubt or any(shape.doubt in doubt for doubt in guessed.doubts), guessed.doubts
    if shape.name in WRONG:
        assert shape.doubt
    else:
        assert not wrong, guessed.doubts
    if shape.deletes:
        assert guessed.source["deletes"].items() >= shape.deletes.items()


def test_forty_shapes_of_which_most_are_right_at_once():
    assert len({shape.name for shape in SHAPES}) == len(SHAPES) >= 40 and len(WRONG) <= 6


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.name not in WRONG], ids=lambda s: s.name)
def test_the_proposal_loads_and_maps_its_records(shape, tmp_path):
    """Each record becomes an edge, or a delete; those without the row are left out by the proposal's own conditions."""
    guessed, _ = outcome(shape)
    (tmp_path / "guess.yaml").write_text(guessed.settings)
    settings = load_settings(tmp_path / "guess.yaml", {"data_dir": tmp_path}, {})[0]
    verdict = judge(settings, Sample("t", {0: records_of(shape)}), ManualClock(NOW_US))
    # A record of a list is several edges.
    mapped = len({one.offset for one in verdict.judged if one.event}) + verdict.num_skipped
    missing = sum(str(guessed.source["fields"]["src"]) in error.error for error in verdict.judged if error.error)
    assert mapped + missing == NUM_RECORDS and verdict.counts["edge"] >= NUM_RECORDS // 2, (guessed.settings, verdict.refused)


@pytest.mark.parametrize("same", [("userId", "user_id", "UserID", "user-id", "userid", "user.id", "USER_ID"), ("srcaddr", "src_addr", "srcAddr", "SrcAddr"),
                                  ("eventTimestamp", "event_timestamp", "EVENT_TIMESTAMP", "event-timestamp")])
def test_a_name_is_the_same_words_however_it_is_written(same):
    words = {tuple(w for step in name.replace("\\.", ".").split(".") for w in last_words(step)) for name in same}
    assert len(words) == 1


@pytest.mark.parametrize("name", ["orig_bytes", "bytesIn", "playtime_seconds", "dst_port", "num_items", "total_price", "msPlayed", r"id\.orig_p"])
def test_a_count_is_no_key(name):
    assert is_measure(name)


@pytest.mark.parametrize("name", ["user_id", "reportId", "importer", "page_url", "chapter", "accountNumber", r"id\.orig_h"])
def test_a_key_is_no_count(name):
    assert not is_measure(name) and not is_technical(name)


def test_the_noun_of_a_name_is_that_of_its_step_or_of_the_one_around_it():
    assert [head_of(path)[0] for path in ("actor.login", "repo.name", "properties.product_id", "user_agent", "userid")] == ["actor", "repo", "product", "agent", "user"]


def rows(value):
    return [Record(json.dumps(value(i)).encode(), i, timestamp=NOW_US // 1000) for i in range(NUM_RECORDS)]


@pytest.mark.parametrize("kind", ["received_at", "syncedAt", "ended", "updated_ms"])
def test_a_second_time_is_named_and_is_no_feature(kind):
    guessed = guess("t", rows(lambda i: {"user": i % 7, "item": i % 9, "ts": (S0 + i) * 1000, kind: (S0 + i + 3) * 1000}), NOW_US)
    assert "features" not in guessed.source["fields"] and guessed.source["fields"]["time"] == "ts"
    assert any("the time may also be" in doubt and kind in doubt for doubt in guessed.doubts)


@pytest.mark.parametrize(("data", "time", "form"), [({"user": 1}, "$envelope.time", "iso8601"), ({"user": 1, "ts": S0 * 1000}, "ts", "ms")])
def test_the_time_of_a_cloudevent_is_that_of_its_data_or_of_its_envelope(tmp_path, data, time, form):
    def event(i):
        return {"specversion": "1.0", "id": str(i), "source": "/s", "type": "view", "time": "2026-11-18T11:06:41Z", "data": data | {"user": i % 7, "item": i % 9}}

    guessed = guess("t", rows(event), NOW_US)
    assert (guessed.source["fields"]["time"], guessed.source["time"]) == (time, form)
    assert ("the time is that of the envelope" in guessed.doubts) == (time == "$envelope.time") and not any("Kafka timestamp" in doubt for doubt in guessed.doubts)
    (tmp_path / "g.yaml").write_text(guessed.settings)
    settings = load_settings(tmp_path / "g.yaml", {"data_dir": tmp_path}, {})[0]
    assert judge(settings, Sample("t", {0: rows(event)}), ManualClock(NOW_US)).counts == {"edge": NUM_RECORDS}
    without = rows(lambda i: {name: value for name, value in event(i).items() if i or name != "time"})
    assert guess("t", without, NOW_US).source["time"] == ("record" if form == "iso8601" else form), "one event lacks it"


def test_a_list_of_one_element_is_read_as_one_of_more_would_be():
    guessed = guess("t", rows(lambda i: {"user": i % 7, "items": [{"sku": f"s{i % 9}"}], "tags": [f"t{i % 5}"], "ts": (S0 + i) * 1000}), NOW_US)
    assert (guessed.source["each"], guessed.source["fields"]["dst"]) == ("items", "items.sku")
    assert "items has one element in all of these records: of several, each would be an edge of its own" in guessed.doubts
    assert "features" not in guessed.source["fields"]


def test_records_of_a_table_without_a_header_are_doubted():
    doubts = guess("t", rows(lambda i: {"u0": f"u{i % 7}", "p0": f"p{i % 9}", str(S0 * 1000): (S0 + i) * 1000, "0.5": i % 5 + 0.5}), NOW_US).doubts
    assert f"a field is called {S0 * 1000}: if that is a value, the table has no header; add one" in doubts


def test_a_table_with_a_name_twice_is_refused_and_one_with_blank_names_is_not(tmp_path):
    (tmp_path / "t.csv").write_text("user,item,ts,ts\n1,2,3,4\n")
    with pytest.raises(SettingsError, match="2 columns 'ts'"):
        list(read_rows(EventFile(tmp_path / "t.csv")))
    (tmp_path / "u.csv").write_text("user,item,ts,,\n1,2,3,,\n")
    assert len(list(read_rows(EventFile(tmp_path / "u.csv")))) == 1


def test_json_that_no_topic_has_is_refused_or_read(tmp_path):
    (tmp_path / "t.json").write_text('[\n{"user": 1}\n]\n')
    with pytest.raises(SettingsError, match="begins with a JSON array of several lines"):
        list(read_rows(EventFile(tmp_path / "t.json")))
    (tmp_path / "n.json").write_text('{"user": 1, "x": NaN, "y": "NaN"}\n')
    assert [json.loads(value) for _, value in read_rows(EventFile(tmp_path / "n.json"))] == [{"user": 1, "x": None, "y": "NaN"}]


def test_whole_floats_are_keys_as_they_are_in_a_topic():
    guessed = guess("t", rows(lambda i: {"user": float(i % 7), "item": float(i % 9), "ts": (S0 + i) * 1000.0, "part": i % 9 + 0.5}), NOW_US)
    fields = guessed.source["fields"]
    assert (fields["src"], fields["dst"], fields["time"], fields["features"]) == ("user", "item", "ts", {"part": "part"})


def test_fields_that_are_nested_too_deep_are_named():
    guessed = guess("t", rows(lambda i: {"a": [{"b": [{"c": [{"user": i % 7}]}]}]}), NOW_US)
    assert "fields inside a.0.b.0.c.0.user are nested too deep to be looked at" in guessed.doubts


def test_days_of_the_name_of_a_time_are_read_as_days():
    guessed = guess("t", rows(lambda i: {"user": i % 7, "item": i % 9, "when": 20_415 + i // 20}), NOW_US)
    assert (guessed.source["fields"]["time"], guessed.source["time"]) == ("when", "days")


@pytest.mark.parametrize(("value", "shown"), [("20261122", "2026-11-22T00:00:00Z"), (20261122, "2026-11-22T00:00:00Z"), ("20261122101500", "2026-11-22T10:15:00Z"),
                                             (20261122101500, "2026-11-22T10:15:00Z"), (202611221015, "2026-11-22T10:15:00Z"), ("2026112210", "2026-11-22T10:00:00Z")])
def test_dates_in_digits_are_read_and_doubted(value, shown):
    guessed = guess("t", rows(lambda i: {"user": i % 7, "item": i % 9, "when": value}), NOW_US)
    assert (guessed.source["fields"]["time"], guessed.source["time"]) == ("when", "iso8601")
    assert f"when is read as dates in digits, in UTC: {value} is {shown}" in guessed.doubts


@pytest.mark.parametrize("name", ["year", "pubYear", "publication_year"])
def test_years_are_times_by_their_name_alone(name):
    guessed = guess("t", rows(lambda i: {"author": i % 7, "paper": i % 9, name: 2000 + i % 20}), NOW_US)
    assert (guessed.source["fields"]["time"], guessed.source["time"]) == (name, "iso8601")
    assert f"{name} is read as dates in digits, in UTC: 2000 is 2000-01-01T00:00:00Z" in guessed.doubts
    guessed = guess("t", rows(lambda i: {"author": i % 7, "paper": i % 9, "score": 2000 + i % 20}), NOW_US)
    assert guessed.source["time"] == "record"


@pytest.mark.parametrize("forms", [("2026-11-22T10:00:00Z", 1_795_255_200), (1_795_255_200, 1_795_255_200_000)])
def test_times_of_several_forms_are_named_with_an_example_of_each(forms):
    guessed = guess("t", rows(lambda i: {"user": i % 7, "item": i % 9, "time": forms[i % 2]}), NOW_US)
    assert guessed.source["time"] == "record"
    (doubt,) = [doubt for doubt in guessed.doubts if "several forms" in doubt]
    assert all(f"({value})" in doubt for value in forms) and "let the producer or the table write one" in doubt


@pytest.mark.parametrize(("value", "says"), [
    ("22/Nov/2026:10:00:00 +0000", "is not ISO 8601"), ("22.11.2026 10:00", "is not ISO 8601"), ("11/22/2026 10:00 PM", "is not ISO 8601"),
    ("Sun Nov 22 10:00:00 +0000 2026", "is not ISO 8601"), ("2026-11-22 10:00:00 UTC", "is not ISO 8601"), ("2026/11/22 10:00", "is not ISO 8601")])
def test_a_time_that_no_form_reads_is_named_and_not_taken(value, says):
    guessed = guess("t", rows(lambda i: {"user": i % 7, "item": i % 9, "when": value}), NOW_US)
    fields = guessed.source["fields"]
    assert (fields["src"], fields["dst"], guessed.source["time"]) == ("user", "item", "record")
    assert any(doubt.startswith("when looks like a time, but") and says in doubt for doubt in guessed.doubts), guessed.doubts


@pytest.mark.parametrize(("live", "gone", "where"), [
    ({"__deleted": "false"}, {"__deleted": "true"}, {"__deleted": ["true"]}), ({"_fivetran_deleted": False}, {"_fivetran_deleted": True}, {"_fivetran_deleted": [True]}),
    ({"is_deleted": 0}, {"is_deleted": 1}, {"is_deleted": [1]}), ({"op_type": "I"}, {"op_type": "D"}, {"op_type": ["D"]}), ({"__op": "c"}, {"__op": "d"}, {"__op": ["d"]}),
    ({"_change_type": "insert"}, {"_change_type": "delete"}, {"_change_type": ["delete"]}), ({"METADATA$ACTION": "INSERT"}, {"METADATA$ACTION": "DELETE"}, {"METADATA$ACTION": ["DELETE"]}),
    ({"__$operation": 2}, {"__$operation": 1}, {"__$operation": [1]}), ({"Op": "Insert"}, {"Op": "Delete"}, {"Op": ["Delete"]}),
    ({"row_kind": "+I"}, {"row_kind": "-D"}, {"row_kind": ["-D"]}), ({"header__change_oper": "I"}, {"header__change_oper": "D"}, {"header__change_oper": ["D"]}),
    ({"_fivetran_deleted": None}, {"_fivetran_deleted": True}, {"_fivetran_deleted": [True]}), ({"tombstone": False}, {"tombstone": True}, {"tombstone": [True]}),
    ({"__hevo__marked_deleted": False}, {"__hevo__marked_deleted": True}, {"__hevo__marked_deleted": [True]}), ({"is_deleted": "N"}, {"is_deleted": "Y"}, {"is_deleted": ["Y"]}),
    ({"ChangeEventHeader": {"changeType": "CREATE"}}, {"ChangeEventHeader": {"changeType": "DELETE"}}, {"ChangeEventHeader.changeType": ["DELETE"]}),
    ({"op": "INSERT"}, {"op": "delete"}, {"op": ["delete"]}), ({"metadata": {"operation": "load"}}, {"metadata": {"operation": "delete"}}, {"metadata.operation": ["delete"]}),
    ({"delete_flag": ""}, {"delete_flag": "X"}, {"delete_flag": ["X"]}), ({"deleted": None}, {"deleted": "D"}, {"deleted": ["D"]})])
def test_marks_of_change_streams_without_their_envelope_make_deletes(live, gone, where, tmp_path):
    records = rows(lambda i: {"id": i, "customer_id": i % 7, "product_id": 40 + i % 9, "at": (S0 + i) * 1000} | (gone if i % 6 == 5 else live))
    guessed = guess("t", records, NOW_US)
    assert guessed.source["deletes"]["where"] == where and any("marks deletes" in doubt for doubt in guessed.doubts)
    assert not any(next(iter(live)) == path for path in guessed.source["fields"].get("features", {}).values())
    (tmp_path / "guess.yaml").write_text(guessed.settings)
    verdict = judge(load_settings(tmp_path / "guess.yaml", {"data_dir": tmp_path}, {})[0], Sample("t", {0: records}), ManualClock(NOW_US))
    assert verdict.counts == {"edge": 50, "delete": 10}


@pytest.mark.parametrize(("path", "words"), [
    ("__op", "cud"), ("op_type", "IUD"), ("row_kind", ["+I", "+U", "-D"]), ("operation", ["insert", "replace", "delete"]), ("Op", ["Created", "Modified", "Deleted"])])
def test_first_states_alone_are_edges_without_the_words_that_a_guess_names(path, words, tmp_path):
    records = rows(lambda i: {"customer_id": i % 7, "product_id": 40 + i % 9, "at": (S0 + i) * 1000, path: words[i % 3]})
    guessed = guess("t", records, NOW_US)
    (named,) = (found[1].split(", ") for doubt in guessed.doubts if (found := re.search("for first states only, leave (.*) out of `where`", doubt)))
    part = NUM_RECORDS // 3
    for left_out, edges in (((), 2 * part), (named, part)):
        guessed.source["where"][path] = [word for word in guessed.source["where"][path] if word not in left_out]
        (tmp_path / "guess.yaml").write_text(guessed.settings)
        verdict = judge(load_settings(tmp_path / "guess.yaml", {"data_dir": tmp_path}, {})[0], Sample("t", {0: records}), ManualClock(NOW_US))
        assert verdict.counts == {"edge": edges, "delete": part}, (guessed.source, named)


@pytest.mark.parametrize(("path", "words", "gone"), [
    ("__op", "cudt", "t"), ("op_type", "IUDT", "T"), ("action", ["I", "U", "D", "T", "B", "C"], "T"), ("type", ["insert", "update", "delete", "truncate"], "truncate"),
    ("type", ["INSERT", "UPDATE", "DELETE", "TRUNCATE", "ALTER", "QUERY"], "TRUNCATE"),
    ("operation", ["load", "update", "delete", "drop-table", "create-table"], "drop-table"), ("operationType", ["insert", "update", "delete", "drop", "invalidate"], "drop")])
def test_a_truncated_table_among_flattened_changes_is_doubted_and_no_row(path, words, gone, tmp_path):
    """Rows of begin, commit, messages and changed tables are none either."""
    records = rows(lambda i: {"customer_id": i % 7, "product_id": 40 + i % 9, "at": (S0 + i) * 1000, path: words[i % len(words)]})
    guessed = guess("t", records, NOW_US)
    assert guessed.source["deletes"]["where"] == {path: [words[2]]} and set(words[:2]) <= set(guessed.source["where"][path])
    assert f"{path} is {gone} for a {'dropped' if 'drop' in gone else 'truncated'} table, which names no rows: edges before it stay" in guessed.doubts
    (tmp_path / "guess.yaml").write_text(guessed.settings)
    verdict = judge(load_settings(tmp_path / "guess.yaml", {"data_dir": tmp_path}, {})[0], Sample("t", {0: records}), ManualClock(NOW_US))
    part = NUM_RECORDS // len(words)
    assert verdict.counts == {"edge": 2 * part, "delete": part} and verdict.num_skipped == NUM_RECORDS - 3 * part


def test_a_truncated_table_in_debeziums_envelope_is_doubted():
    changes = [{"op": "c", "before": None, "after": {"u": i % 7, "v": i % 9, "at": (S0 + i) * 1000}} for i in range(20)] + [{"op": "t", "source": {}}]
    doubts = guess("t", [Record(json.dumps(c).encode(), i) for i, c in enumerate(changes)], NOW_US).doubts
    assert "op is t for a truncated table, which names no rows: edges before it stay" in doubts


def test_a_value_that_was_not_sent_is_no_value_of_a_guess():
    guessed = guess("t", rows(lambda i: {"user": i % 7, "item": i % 9, "ts": (S0 + i) * 1000, "kind": ("a", "b", UNAVAILABLE, UNAVAILABLE)[i % 4]}), NOW_US)
    assert guessed.tree["graph"]["edge_sets"]["default"]["features"] == {"kind": {"categories": ["a", "b"], "missing": ""}}


def test_a_schema_id_in_a_header_is_named():
    records = [Record(b"\x10\x06b41", i, headers=(("__value_schema_id", bytes([1]) + bytes(16)),)) for i in range(3)]
    with pytest.raises(SettingsError, match="__value_schema_id has a schema's id; give the topic an entry in sources, with format: avro or protobuf"):
        guess("t", records, NOW_US)
    with pytest.raises(SettingsError, match="t has no records"):
        guess("t", [], NOW_US)


def test_a_topic_whose_source_has_a_format_is_guessed_by_that_format(tmp_path):
    registry = Registry()
    try:
        registry.add(7, CLICK)
        moments = [datetime.datetime.fromtimestamp(S0 + i, datetime.UTC) for i in range(40)]
        values = [avro(7, CLICK, {"user_id": i % 7, "item": {"id": f"b{i % 9}"}, "ts": moment, "kind": "view", "seconds": i / 2, "price": None, "tags": [], "more": {}})
                  for i, moment in enumerate(moments)]
        records = [Record(value, n, timestamp=NOW_US // 1000) for n, value in enumerate([*values, b"no Avro", None])]
        entry = {"topic": "t", "format": "avro", "time": "record", "fields": {"src": "x", "dst": "y"}}
        settings = load_settings(None, {"data_dir": tmp_path, "schema_registry.url": registry.url, "sources": [entry]}, {})[0]
        rows, form = as_json_rows(settings, Sample("t", {0: records}))
        guessed = guess("t", rows, NOW_US, form=form)
        (source,) = guessed.sources
        assert source["format"] == "avro" and source["fields"]["src"] == "user_id" and source["fields"]["dst"] == "item.id" and source["fields"]["time"] == "ts"
        assert "2 of 42 records" not in str(guessed.doubts) and sum("1 of 42 records" in doubt for doubt in guessed.doubts) == 2

        # The guess reads the records that it was made of; another topic's are left as they are.
        (tmp_path / "guess.yaml").write_text(guessed.settings)
        own = load_settings(tmp_path / "guess.yaml", {"data_dir": tmp_path, "schema_registry.url": registry.url}, {})[0]
        verdict = judge(own, Sample("t", {0: records[:40]}), ManualClock(NOW_US))
        assert verdict.counts == {"edge": 40}, (guessed.settings, verdict.judged[:2])
        assert as_json_rows(settings, Sample("other", {0: records})) == (records, "")
    finally:
        registry.stop()


ORACLE = {"object": lambda i: {"scale": 0, "value": ("Bw==", "CA==", "AQI=")[i % 3]}, "base64": lambda i: ("KQ==", "Kg==", "AQID")[i % 3]}


@pytest.mark.parametrize(("kind", "says"), [("object", "USER is a decimal as an object of scale and value"), ("base64", "USER looks like a decimal as base64, such as KQ==")])
def test_a_key_that_is_a_decimal_as_bytes_is_doubted(kind, says):
    guessed = guess("t", rows(lambda i: {"op": "c", "before": None, "after": {"USER": ORACLE[kind](i), "ITEM": i % 9, "AT": (S0 + i) * 1000}}), NOW_US)
    assert any(doubt.startswith(says) and "decimal.handling.mode to string" in doubt for doubt in guessed.doubts)


@pytest.mark.parametrize(("values", "is_doubted"), [("8,33 4,00 1.250,5", True), ("1'250,75 -3,1 7,0", True), ("8.33 4.00 1.5", False), ("a,1 2,5 3,5", False)])
def test_numbers_with_a_decimal_comma_are_doubted(values, is_doubted):
    values = values.split()
    guessed = guess("t", rows(lambda i: {"user": f"u{i % 5}", "item": f"i{i % 9}", "at": (S0 + i) * 1000, "price": values[i % 3]}), NOW_US)
    assert any(doubt.startswith("price looks like numbers with a decimal comma") for doubt in guessed.doubts) == is_doubted


@pytest.mark.parametrize("prefix", ["", "user:"])
def test_a_check_doubts_such_keys_too(prefix, tmp_path):
    (tmp_path / "t.yaml").write_text(f"sources: [{{topic: t, envelope: debezium, time: s, fields: {{src: {{path: U, prefix: '{prefix}'}}, dst: V, time: T}}}}]")
    settings = load_settings(tmp_path / "t.yaml", {"data_dir": tmp_path}, {})[0]
    for values, doubted in (("KQ== Kg== 41", True), ("ann bert claire= dora emil", False), ("7 8 9", False)):
        values = values.split()
        records = rows(lambda i, v=values: {"op": "c", "before": None, "after": {"U": v[i % len(v)], "V": i, "T": S0}})
        verdict = judge(settings, Sample("t", {0: records}), ManualClock(NOW_US))
        assert verdict.doubts == (["src looks like a decimal as base64, such as KQ==: set the connector's decimal.handling.mode to string"] if doubted else [])


def test_a_delete_by_its_time_leaves_those_rows_out_and_is_doubted():
    guessed = guess("t", rows(lambda i: {"user_id": i % 7, "item_id": i % 9, "at": (S0 + i) * 1000, "_sdc_deleted_at": "2026-11-22T10:00:00Z" if i % 6 == 5 else None}), NOW_US)
    assert guessed.source["where"] == {"_sdc_deleted_at": [None]} and "deletes" not in guessed.source
    assert any("_sdc_deleted_at marks deletes by a time" in doubt for doubt in guessed.doubts)


def test_the_field_that_a_third_of_three_records_has_is_named_too():
    events = [{"anonymousId": f"an-{i}", "userId": "u-9" if i == 1 else None, "timestamp": "2026-11-22T10:00:00Z", "properties": {"product_id": "p1"}} for i in range(3)]
    guessed = guess("t", [Record(json.dumps(e).encode(), i, timestamp=NOW_US // 1000) for i, e in enumerate(events)], NOW_US)
    assert guessed.source["fields"]["src"] == ["userId", "anonymousId"]
    assert "src is the first of userId, anonymousId that has a value: one person may be several nodes" in guessed.doubts


def test_what_a_key_cannot_be_is_doubted():
    says = {
        "b (dst) may be a count": {"a": "k{i7}", "b": 17},
        "is the same in all records": {"user": "me", "item": "i{i9}"},
        "nothing can be learned": {"user": "k{i7}", "item": "i{i}"},
        "are two nodes": {"user": "k{i7}", "item": "mixed"},
    }
    for words, shape in says.items():
        def value(i, shape=shape):
            row = {name: v.format(i=i, i7=i % 7, i9=i % 9) if isinstance(v, str) else v * 31 + i * i for name, v in shape.items()}
            return row | {"at": S0 + i} | ({"item": i % 9 if i % 2 else f"{i % 9}"} if shape.get("item") == "mixed" else {})
        doubts = guess("t", rows(value), NOW_US, chosen=Chosen(dst="b" if "b" in shape else "")).doubts
        assert any(words in doubt for doubt in doubts), (words, doubts)


def test_deletes_that_streamd_sent_to_the_topic_are_no_change_stream():
    sent = rows(lambda i: {"user": i % 7, "item": i % 9, "ts": (S0 + i) * 1000})
    delete = Record(json.dumps({"type": "delete", "node": "3"}).encode(), len(sent), headers=(("content-type", OWN_EVENT.encode()),))
    guessed = guess("t", [*sent, delete], NOW_US)
    assert "where" not in guessed.source and guessed.source["fields"]["dst"] == "item"
    assert f"1 of {len(sent) + 1} records: an event of streamd's own, which needs no source" in guessed.doubts


def test_fields_that_become_no_features_are_named_with_the_reason():
    surplus = {f"m{name}": 1 for name in "abcdefghij"}
    guessed = guess("t", rows(lambda i: {"user": i % 7, "item": i % 9, "ts": (S0 + i) * 1000, "note": f"n {i}", "shop": "x", "tags": [f"t{i % 2}"], "zip": i}
        | {name: value + i % 3 for name, value in surplus.items()} | ({"odd": i} if i % 3 == 0 else {})), NOW_US)
    assert list(guessed.source["fields"]["features"]) == list(surplus)[:8]
    (left,) = [doubt for doubt in guessed.doubts if doubt.startswith("left out of features: ")]
    assert left.removeprefix("left out of features: ").split("; ") == [
        "note (text that seldom repeats: declare text or hash)",
        "shop (the same value in all of these records)",
        "tags.0 (in a list of which only the first element is read)",
        "zip (an id or a code by its name)",
        "mi, mj (only the first 8 are guessed)",
        "odd (in fewer than half of the records)",
    ]


def test_features_of_edges_in_a_list_are_judged_by_all_of_its_elements():
    lines = [{"sku": "a", "qty": 1, "gift": False}, {"sku": "b", "qty": 2}, {"sku": "c", "qty": 3, "gift": True}]
    guessed = guess("t", rows(lambda i: {"user": i % 7, "ts": (S0 + i) * 1000, "lines": [line | {"sku": line["sku"] + str(i % 5)} for line in lines]}), NOW_US)
    assert guessed.source["fields"]["features"] == {"lines_qty": "lines.qty", "lines_gift": "lines.gift"}
    features = guessed.tree["graph"]["edge_sets"]["default"]["features"]
    assert features == {"lines_qty": {"type": "number"}, "lines_gift": {"type": "bool", "missing": False}}, "the second line has no gift"


@pytest.mark.parametrize("names", [("f1", "f2", "f3"), ("f0", "f1", "f2"), ("va", "vb", "vc")])
def test_numbered_columns_are_features_and_no_pair_of_endpoints(names):
    guessed = guess("t", rows(lambda i: {name: i % (3 + n) for n, name in enumerate(names)} | {"user": i % 7, "sku": f"s{i % 9}", "ts": (S0 + i) * 1000}), NOW_US)
    fields = guessed.source["fields"]
    assert (fields["src"], fields["dst"], list(fields["features"])) == ("user", "sku", list(names))


def test_decimals_with_a_comma_are_neither_keys_nor_features(tmp_path):
    """A spreadsheet in German: the price differs most, and repeats."""
    rows = [{"Kunde": f"K{n % 11}", "Artikel": f"A{n % 7}", "Zeitpunkt": 1_787_408_610 + 60 * n, "Preis": f"{n % 60},{n % 90:02}", "Rabatt": f"0,{n % 3}"} for n in range(100)]
    for names in (dict(zip(rows[0], rows[0], strict=True)), {"Kunde": "x", "Artikel": "y", "Zeitpunkt": "z", "Preis": "p", "Rabatt": "r"}):
        found = guess("t", [FileRow(offset=n, value=json.dumps({names[k]: v for k, v in row.items()}).encode()) for n, row in enumerate(rows)], NOW_US)
        fields = found.source["fields"]
        assert {fields["src"], fields["dst"]} == {names["Kunde"], names["Artikel"]} and fields["time"] == names["Zeitpunkt"]
        assert "features" not in fields and any("numbers with a decimal comma" in doubt and "left out" in doubt for doubt in found.doubts)
    assert fields["src"] != "x" or found.doubts[0].startswith("src is x only because")


def test_kinds_of_records_are_found_under_any_name():
    """Two kinds in one topic, of which one has no destination."""
    def row(i):
        own = {"artikel": {"id": f"a{i % 15}"}, "zeit": S0 + i} if i % 3 else {"alter": 20 + i % 50, "stand": S0 + i}
        return {"art": "kauf" if i % 3 else "profil", "kunde": {"id": f"k{i % 20}"}} | own

    found = guess("t", rows(row), NOW_US)
    assert found.source["where"] == {"art": ["kauf"]} and len(found.sources) == 1
    assert any("art profil: no two keys, so such records are skipped" in doubt for doubt in found.doubts)
    # A field that fits all records splits nothing.
    both = guess("t", rows(lambda i: row(i) | {"artikel": {"id": f"a{i % 15}"}, "zeit": S0 + i}), NOW_US)
    assert "where" not in both.source


@pytest.mark.parametrize(("changes", "others", "settings"), [
    ({}, [], "kafka: {topics: [t]} and stream: {time_unit: ms} are enough"),
    ({"features": [1.5, 2]}, [], "stream: {time_unit: ms, edge_feature_dim: 2} are enough"),
    ({"features": [1.5]}, [{"type": "node", "id": "a", "features": [1, 2, 3]}, {"type": "label", "node": "a", "time": 5, "target": [1]}], "{time_unit: ms, edge_feature_dim: 1, node_feature_dim: 3, label_dim: 1}"),
    ({"features": {"km": 2.5}, "edge_set": "views"}, [], "are enough, with declarations of graph.edge_sets and the features that they name, in graph")])
def test_events_of_streamds_own_form_need_no_source(changes, others, settings):
    rows = [{"src": f"u{i}", "dst": i % 7, "time": NOW_US // 1000 + i} | changes for i in range(20)]
    first = guess("t", [Record(json.dumps(row).encode(), i) for i, row in enumerate([*rows, *others])], NOW_US).doubts[0]
    assert first.startswith("these records are streamd's own events, which need no source: ") and settings in first


@pytest.mark.parametrize("change", [{"amount": 5}, {"time": "2026-11-22T10:00:00Z"}, {"time": 1.5}])
def test_events_of_a_like_form_need_a_source(change):
    rows = [{"src": f"u{i}", "dst": i % 7, "time": NOW_US // 1000 + i} | change for i in range(20)]
    assert not any("own events" in doubt for doubt in guess("t", [Record(json.dumps(row).encode(), i) for i, row in enumerate(rows)], NOW_US).doubts)
