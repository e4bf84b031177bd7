"""Tables of a log, and a log of tables."""

import json
import re

import numpy as np
import pytest
import structlog
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.clock import SystemClock
from streamd.errors import SettingsError, StreamdError, TFGNNError
from streamd.eventlog.reader import LogReader
from streamd.events import split_key
from streamd.exchange import produce
from streamd.exchange.load import open_loader
from streamd.exchange.produce import Outgoing
from streamd.settings.loading import load_settings
from streamd.tfgnn.logs.declared import as_numbers, declared_sets
from streamd.tfgnn.logs.log_rows import LogCut, LogRows
from streamd.tfgnn.logs.table_events import TableEvents, TimeOptions
from streamd.tfgnn.logs.table_export import TableOptions, export_tables
from streamd.tfgnn.logs.table_import import append_tables, checked_events
from streamd.tfgnn.schema.schema import read_schema
from streamd.tfgnn.tables.reading import read_table, table_path
from tests.builders import SECOND, settings

#   user --views--> item,  user --buys--> item
SHOP = """
graph:
  node_sets:
    user: {features: {age: number, country: {categories: [de, fr, us], missing: de}, active: bool}}
    item: {}
  edge_sets:
    views: {source: user, target: item, features: {seconds: number, agent: {hash: 8}, query: {text: 4, missing: none}}}
    buys: {source: user, target: item, features: {price: number, how: {categories: [card, 1, true]}, taste: {vector: 3}}}
"""


def streamd(*words):
    done = CliRunner().invoke(app, [str(w) for w in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def shop_events(seed, num=400):
    """Users who view and buy items, and change; many events of one time; deletes of edges and, in the end, of nodes."""
    rng = np.random.default_rng(seed)
    keys = [1, 2, 3, "3", "007", "ann", "bob", "çid", 'd,e"e']
    time, edges, seen = 1_600_000_000_000_000, [], set()
    for i in range(num):
        time += int(rng.choice([0, 0, 1, 5 * SECOND]))
        user, item = keys[rng.integers(len(keys))], f"i{rng.integers(9)}"
        kind = rng.random()
        if kind < 0.1:
            yield {"type": "node", "node_set": "user", "id": user, "features": {
                "age": float(rng.normal()), "country": str(rng.choice(["de", "fr", "zz"])), "active": bool(rng.random() < 0.5)}}
        elif kind < 0.13 and edges:
            yield {"type": "delete", **edges[rng.integers(len(edges))]}
        elif kind < 0.15:
            yield {"type": "node", "node_set": "item", "id": f"lone{i}"}
        elif kind < 0.6:
            edges.append({"edge_set": "views", "src": user, "dst": item, "time": time})
            yield {**edges[-1], "features": {"seconds": float(rng.normal()), "agent": str(rng.integers(50)), **({"query": f"red shoes {i}"} if i % 3 else {})}}
        else:
            edges.append({"edge_set": "buys", "src": user, "dst": item, "time": time})
            how = ["card", 1, "cash", True][rng.integers(4)]
            yield {**edges[-1], "features": {"price": i / 7, "how": how, "taste": rng.normal(size=3).tolist()}}
        seen |= {user, item} if kind >= 0.15 else {user} if kind < 0.1 else set()
    # A key that comes back after its delete, and features as numbers, of which none is a category.
    if {"bob", "i3"} <= seen:
        yield {"type": "delete", "node_set": "user", "node": "bob"}
        yield {"type": "delete", "node_set": "item", "node": "i3"}
    yield {"edge_set": "buys", "src": 1, "dst": "i3", "time": time, "features": [1, 0, 0, 0, 0, 1, 2, 3]}


def shop(path, text=SHOP, **values):
    (path / "shop.yaml").write_text(text)
    return load_settings(path / "shop.yaml", {"data_dir": path / "log", "ingest.segment_edges": 90, "stream.time_unit": "us", **values}, environ={})[0]


def elsewhere(made, path):
    return made.model_copy(update={"data_dir": path})


def write(made, events):
    """A log of our own events, in order."""
    rows = (Outgoing(b"", json.dumps(e).encode(), e.get("time"), n) for n, e in enumerate(events, 1))
    with open_loader(made, SystemClock(), "events") as loader:
        loader.rows(rows)
    return LogReader.open(made.data_dir)


def edges_of(log):
    """Each set's edges that are not deleted, in order: source, target, time, features."""
    schema, found = log.state.schema, {}
    ids = np.flatnonzero(~log.hidden(log.first_edge, log.num_edges)) + log.first_edge
    src, dst, time = (log.gather(name, ids) for name in ("src", "dst", "time"))
    for e, s, d, t, number in zip(ids.tolist(), src.tolist(), dst.tolist(), time.tolist(), log.edge_sets_of(ids).tolist(), strict=True):
        values = log.features_of(np.array([e]))[0, schema.edge_columns(number)].tolist()
        found.setdefault(schema.edge_set_names[number], []).append((split_key(log.keys[s])[1], split_key(log.keys[d])[1], t, values))
    return found


def nodes_of(log):
    """The features in force of each node that is not deleted."""
    schema = log.state.schema
    values = np.zeros((log.num_nodes, schema.node_feature_dim), np.float32)
    for nodes, rows, _ in log.feature_updates().until(log.num_edges):
        values[nodes] = rows
    sets = log.node_sets_of(np.arange(log.num_nodes))
    return {key: values[n, schema.node_columns(int(sets[n]))].tolist() for n, key in enumerate(log.keys) if key is not None}


def exported(made, log, folder, cut=None, numbers=False, **options):
    declared = declared_sets(made, log.state.schema)
    rows = LogRows(log, as_numbers(declared) if numbers else declared, LogCut.of(log, log.num_edges if cut is None else cut))
    return export_tables(rows, folder, TableOptions(**options))


def events_of(made, path, **options):
    times = TimeOptions(stream_unit=made.stream.time_unit, max_ahead_seconds=made.ingest.max_ahead_seconds, **options)
    return TableEvents(declared_sets(made), read_schema(path), path, times, SystemClock())


def imported(made, path, **options):
    append_tables(made, events_of(made, path, **options), SystemClock())
    return LogReader.open(made.data_dir)


@pytest.mark.parametrize(("options", "seed"), [({}, 0), ({"shards": 3}, 1), ({"with_reverse": True}, 2), ({"numbers": True}, 3)])
def test_a_log_comes_back_from_its_tables(tmp_path, options, seed):
    made = shop(tmp_path)
    log = write(made, shop_events(seed))
    done = exported(made, log, tmp_path / "out", **options)
    # Times are of the unit that the schema says, whatever that of the stream is.
    again = elsewhere(made, tmp_path / "again")
    again = again.model_copy(update={"stream": again.stream.model_copy(update={"time_unit": "ms"})})
    if options.get("numbers"):
        again = shop(tmp_path, streamd("config", "--from-schema", tmp_path / "out"), data_dir=tmp_path / "again")
    log_2 = imported(again, tmp_path / "out")
    assert done.num_edges == log_2.num_edges == (~log.hidden(0, log.num_edges)).sum() < log.num_edges
    first, second = edges_of(log), edges_of(log_2)
    assert first.keys() == second.keys() == {"views", "buys"}
    for name, edges in first.items():
        # Each shard has every third row, so rows of one time may change places.
        same = (lambda rows: sorted(rows, key=str)) if "shards" in options else list
        assert same(edges) == same(second[name])
    assert nodes_of(log) == nodes_of(log_2) and (log_2.state.schema == log.state.schema) != bool(options.get("numbers"))
    # And once more: nothing is lost on the way.
    assert exported(again, log_2, tmp_path / "out 2", **options) == done
    assert (tmp_path / "out" / "graph.pbtxt").read_text() == (tmp_path / "out 2" / "graph.pbtxt").read_text()


def test_an_export_is_of_a_range_and_as_of_a_time(tmp_path):
    made = shop(tmp_path)
    log = write(made, shop_events(3))
    middle, late = (int(log.time_of(np.array([at]))[0]) for at in (100, 200))
    iso = [str(np.datetime64(t, "us")) for t in (middle, late)]
    text = streamd("tfgnn", "export", tmp_path / "out", "--start", iso[0], "--end", iso[1], "--data-dir", made.data_dir)
    assert re.search(r"[\d,]+ nodes, [\d,]+ edges in", text)
    schema = read_schema(tmp_path / "out")
    for name, one in schema.edge_sets.items():
        times = [t for rows in read_table(one, table_path(one, tmp_path / "out")) for t in rows.features["#time"].tolist()]
        assert times == [e[2] for e in edges_of(log)[name] if middle <= e[2] < late] and times
        assert one.metadata.cardinality == len(times)
    # Nodes first seen later are not there, and features are those in force then.
    cut = log.lower_bound(late)
    values = {}
    for nodes, rows, _ in log.feature_updates().until(cut):
        values |= dict(zip(nodes.tolist(), rows[:, 2].tolist(), strict=True))
    src, dst, _ = log.edges(0, cut)
    known = max(src.max(), dst.max(), *values)
    found = {}
    for rows in read_table(schema.node_sets["user"], table_path(schema.node_sets["user"], tmp_path / "out")):
        found |= dict(zip(rows.ids.tolist(), rows.features["age"].tolist(), strict=True))
    want = {json.dumps(key, ensure_ascii=False).encode(): values.get(n, 0.0) for n, key in enumerate(log.keys)
            if key is not None and n <= known and not isinstance(key, tuple)}
    assert found == want


def test_keys_that_look_like_integers_stay_what_they_are(tmp_path):
    for name, keys, form in (("a", ["8", "x"], "8"), ("b", [8, "x"], "8"), ("c", [8, "8", "x"], '"8"')):
        made = settings(tmp_path / name)
        log = write(made, [{"src": k, "dst": "x", "time": i} for i, k in enumerate(keys)])
        exported(made, log, tmp_path / f"{name}-out", format="csv")
        assert form in (tmp_path / f"{name}-out" / "nodes" / "default.csv").read_text().replace('"""', '"').splitlines()
        again = imported(settings(tmp_path / f"{name}-again"), tmp_path / f"{name}-out")
        assert edges_of(again) == edges_of(log) and again.keys == log.keys


def test_vectors_need_tfrecord_and_a_folder_that_is_there_is_left_alone(tmp_path):
    made = shop(tmp_path)
    log = write(made, shop_events(4, 50))
    with pytest.raises(TFGNNError, match=r"'query' has dims.*write the table as \.tfrecord"):
        exported(made, log, tmp_path / "out", format="csv")
    assert not [p for p in (tmp_path / "out").rglob("*") if p.is_file()]
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(TFGNNError, match="already exists"):
        exported(made, log, tmp_path / "out")


def test_numbers_that_are_no_value_of_a_feature_are_named(tmp_path):
    made = shop(tmp_path)
    log = write(made, [{"edge_set": "buys", "src": 1, "dst": 2, "time": 5, "features": [1, 0.5, 0.5, 0, 0, 1, 2, 3]}])
    with pytest.raises(TFGNNError, match=r"edge set buys, event 0: feature 'how' is \[0.5, 0.5, 0, 0\], which is no value of categories.*--numbers"):
        exported(made, log, tmp_path / "out")
    streamd("tfgnn", "export", tmp_path / "plain", "--numbers", "--data-dir", made.data_dir)
    one = read_schema(tmp_path / "plain").edge_sets["buys"]
    (rows,) = read_table(one, table_path(one, tmp_path / "plain"))
    assert rows.features["features"].tolist() == [[1, 0.5, 0.5, 0, 0, 1, 2, 3]]


SCHEMA = """
node_sets { key: "paper" value { features { key: "year" value { dtype: DT_INT64 } } features { key: "title" value { dtype: DT_STRING } }
  metadata { filename: "paper.csv" } } }
node_sets { key: "author" value {} }
edge_sets { key: "cites" value { source: "paper" target: "paper" metadata { filename: "cites-?.csv" } } }
edge_sets { key: "writes" value { source: "author" target: "paper" features { key: "position" value { dtype: DT_INT32 } } metadata { filename: "writes.csv" } } }
edge_sets { key: "written" value { source: "paper" target: "author" features { key: "position" value { dtype: DT_INT32 } }
  metadata { filename: "writes.csv" extra { key: "edge_type" value: "reversed" } } } }
"""


@pytest.fixture
def papers(tmp_path):
    """Tables as others write them: times in one of two, a reversed set, nodes that no edge names."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "graph.pbtxt").write_text(SCHEMA)
    (folder / "paper.csv").write_text("id,year,title\np0,2001,a\np1,1999,b\nalone,1990,c\np2,0,d\n")
    (folder / "cites-0.csv").write_text("source,target,time,#weight\np1,p0,30,0.5\np2,p0,10,1.5\n")
    (folder / "cites-1.csv").write_text("source,target,time,#weight\np2,p1,10,2.5\n")
    (folder / "writes.csv").write_text("source,target,position,when\n7,p0,1,2001-02-03\nbea,p0,2,1970-01-01T00:00:00.02\n")
    return folder


UNWEIGHTED = ("      features:\n        weight: number\n", "")


def settings_for(folder, tmp_path, change=None):
    """The settings that `config --from-schema` prints."""
    text = streamd("config", "--from-schema", folder)
    (tmp_path / "papers.yaml").write_text(text.replace(*change, 1) if change else text)
    return load_settings(tmp_path / "papers.yaml", {"data_dir": tmp_path / "log"}, environ={})[0]


def test_tables_of_others_become_a_log(papers, tmp_path):
    made = settings_for(papers, tmp_path)
    with pytest.raises(TFGNNError, match="Edge set 'writes' has no times; there are position, when.*--time-column.*--first-time"):
        imported(made, papers)
    tables = events_of(made, papers, first_us=20, step_us=10)
    assert tables.left_out == ["node set paper, title"]
    append_tables(made, tables, SystemClock())
    log = LogReader.open(made.data_dir)
    assert edges_of(log) == {
        "cites": [("p2", "p0", 10, [1.5]), ("p2", "p1", 10, [2.5]), ("p1", "p0", 30, [0.5])],
        "writes": [(7, "p0", 20, [1]), ("bea", "p0", 30, [2])]}
    assert {(split_key(k)[1], *v) for k, v in nodes_of(log).items()} == {
        ("p0", 2001), ("p1", 1999), ("alone", 1990), ("p2", 0), (7,), ("bea",)}
    # p2 has a year of 0, as a node without features has, and an edge names it.
    assert sum(len(nodes) for nodes, _, _ in log.feature_updates().until(9)) == 3


def test_nodes_that_edges_name_and_their_table_lacks_are_counted(papers, tmp_path):
    made = settings_for(papers, tmp_path)
    (papers / "writes.csv").write_text((papers / "writes.csv").read_text().replace("bea,p0", "bea,p9"))
    with structlog.testing.capture_logs() as logs:
        events_of(made, papers, first_us=0)
    # Authors have the ids 7 and bea.
    mixed, log = logs
    assert (mixed["event"], mixed["node_set"]) == ("tfgnn_ids_ambiguous", "author") and "has the integer 7 and the text 'bea'" in mixed["meaning"]
    assert (log["event"], log["node_set"], log["nodes"], log["example"]) == ("tfgnn_nodes_without_row", "paper", 1, "'p9'")


def test_columns_that_no_feature_takes_are_told(papers, tmp_path):
    settings_for(papers, tmp_path, UNWEIGHTED)
    text = streamd("tfgnn", "import", papers, "--first-time", "1970-01-01", "--config", tmp_path / "papers.yaml", "--data-dir", tmp_path / "log")
    assert "left out: edge set cites, #weight" in text and "left out: node set paper, title" in text
    # p2, 7 and bea have no event of their own.
    assert "6 nodes and 5 edges appended" in text and LogReader.open(tmp_path / "log").num_nodes == 6


def test_a_column_of_times_may_be_named_and_hold_iso_8601(papers, tmp_path):
    (papers / "cites-0.csv").write_text("source,target,when\np1,p0,5990\n")
    (papers / "cites-1.csv").write_text("source,target,when\np2,p1,6000\n")
    (papers / "graph.pbtxt").write_text(SCHEMA.replace('key: "cites" value {', 'key: "cites" value { features { key: "when" value { dtype: DT_INT32 } }'))
    made = settings_for(papers, tmp_path)
    text = streamd("tfgnn", "import", papers, "--time-column", "when", "--time-unit", "s", "--config", tmp_path / "papers.yaml", "--data-dir", made.data_dir)
    assert "cites: times 1970-01-01T01:39:50Z to 1970-01-01T01:40:00Z, read as seconds" in text
    assert "writes: times 1970-01-01T00:00:00.02Z to 2001-02-03T00:00:00Z, read as ISO 8601" in text
    found = edges_of(LogReader.open(made.data_dir))
    assert [e[2] for e in found["writes"]] == [20_000, 981_158_400_000_000]
    assert [e[2:] for e in found["cites"]] == [(5_990_000_000, [5990]), (6_000_000_000, [6000])]
    (papers / "writes.csv").write_text("source,target,position,when\n7,p0,1,soon\n")
    with pytest.raises(SettingsError, match="writes.csv row 1, column 'when': 'soon' is neither"):
        events_of(made, papers, column="when")


@pytest.mark.parametrize(("unit", "cells", "kind", "expected"), [
    ("days", ("18518", "18519"), "", (1_599_955_200_000_000, 1_600_041_600_000_000)), ("days", ("18518", "18519.5"), "DT_FLOAT", (1_599_955_200_000_000, 1_600_084_800_000_000)),
    ("ns", ("1600000000000001999", "1600000001000000000"), "", (1_600_000_000_000_001, 1_600_000_001_000_000)), ("iso8601", ("20200913", "20200914"), "", (1_599_955_200_000_000, 1_600_041_600_000_000)),
    ("s", ("1600000000.5", "1600000001"), "DT_STRING", (1_600_000_000_500_000, 1_600_000_001_000_000))])
def test_times_of_tables_have_the_units_of_sources(papers, tmp_path, unit, cells, kind, expected):
    column = "when" if kind else "time"
    (papers / "cites-0.csv").write_text(f"source,target,{column},#weight\np1,p0,{cells[0]},1\n")
    (papers / "cites-1.csv").write_text(f"source,target,{column},#weight\np2,p1,{cells[1]},1\n")
    if kind:
        (papers / "graph.pbtxt").write_text(SCHEMA.replace('key: "cites" value {', f'key: "cites" value {{ features {{ key: "when" value {{ dtype: {kind} }} }}'))
    else:
        (papers / "writes.csv").write_text("source,target,position,time\n7,p0,1,\n".replace("1,", f"1,{cells[0]}"))
    made = settings_for(papers, tmp_path)
    tables = events_of(made, papers, column=column if kind else None, unit=unit)
    assert tables.find_other_unit() is None
    append_tables(made, tables, SystemClock())
    assert [e[2] for e in edges_of(LogReader.open(made.data_dir))["cites"]] == list(expected)


def test_tables_whose_times_look_like_another_unit_are_refused(papers, tmp_path):
    for name, head, row in (("cites-0", "#weight", "p1,p0,1,"), ("cites-1", "#weight", "p2,p1,1,"), ("writes", "position", "7,p0,1,")):
        (papers / f"{name}.csv").write_text(f"source,target,{head},time\n{row}1600000000\n")
    made = settings_for(papers, tmp_path)
    with pytest.raises(StreamdError, match=r"\.csv row 1: all times look like seconds, not milliseconds.*set --time-unit to s, or set ingest.accept_first_times: true"):
        append_tables(made, events_of(made, papers, unit="ms"), SystemClock())
    with pytest.raises(SettingsError, match=r"\.csv row 1: all times look like seconds, not milliseconds: 1600000000 was.*set --time-unit to s, or set"):
        next(checked_events(made, events_of(made, papers, unit="ms"), SystemClock()))
    append_tables(made, events_of(made, papers, unit="s"), SystemClock())
    assert LogReader.open(made.data_dir).num_edges == 3


def test_tables_without_times_are_played_in_their_order(papers, tmp_path):
    for name in ("cites-0.csv", "cites-1.csv"):
        lines = (papers / name).read_text().splitlines()
        (papers / name).write_text("\n".join(",".join(line.split(",")[:2]) for line in lines) + "\n")
    made = settings_for(papers, tmp_path)
    text = streamd("tfgnn", "import", papers, "--first-time", "2020-01-01", "--step-seconds", "60", "--config", tmp_path / "papers.yaml", "--data-dir", made.data_dir)
    log = LogReader.open(made.data_dir)
    src, _, time = log.edges(0, 5)
    assert [split_key(log.keys[n])[1] for n in src] == ["p1", "p2", "p2", 7, "bea"] and np.diff(time).tolist() == [60 * SECOND] * 4
    assert "cites: times 2020-01-01T00:00:00Z to 2020-01-01T00:02:00Z, read as the order of the rows" in text
    with pytest.raises(StreamdError, match="The tables begin at 1970-01-01T00:00:00Z, before the log's time of 2020-01-01T00:04:00Z.*new data_dir"):
        imported(made, papers, first_us=0)
    with pytest.raises(TFGNNError, match="3 rows without times, the last of which would be ahead of the clock"):
        imported(made, papers, first_us=0, step_us=10**15)


def test_times_are_made_up_only_where_an_option_says_so(papers, tmp_path):
    made = settings_for(papers, tmp_path, UNWEIGHTED)
    with pytest.raises(TFGNNError, match="Edge set 'cites' has no column 'tiem' of times; there are #time; did you mean '#time'"):
        imported(made, papers, column="tiem")
    # A column that one set has and another lacks.
    with pytest.raises(TFGNNError, match="Edge set 'cites' has no column 'when' of times; there are #time[.]"):
        imported(made, papers, column="when")
    # An option that makes times up for tables without them does not excuse a name that none has.
    with pytest.raises(TFGNNError, match="Edge set 'cites' has no column 'tiem' of times.*did you mean '#time'"):
        imported(made, papers, column="tiem", first_us=0)
    for name in ("cites-0.csv", "cites-1.csv", "writes.csv"):
        lines = (papers / name).read_text().splitlines()
        (papers / name).write_text("\n".join(",".join(line.split(",")[:3 if name == "writes.csv" else 2]) for line in lines) + "\n")
    with pytest.raises(TFGNNError, match="Edge set 'cites' has no times; there are none"):
        imported(made, papers)
    assert not made.data_dir.exists(), "what was refused left a log"


@pytest.mark.parametrize(("file", "old", "new", "says"), [
    ("paper.csv", "1999", "9223372036854775807", r"paper.csv row 2: .*beyond ingest.max_feature.*Events appended before: 0"),
    ("paper.csv", "alone", "p0", "row 3: the id 'p0' occurs twice"),
    ("paper.csv", "alone", "", "row 3: .*bad_key"),
    ("cites-1.csv", "2.5", "nan", r"cites-1.csv row 1: feature 'weight' is \[nan\], not a number"),
    ("paper.csv", "1999", "9223372036854775808", "paper.csv row 2, column 'year': 9223372036854775808 is not from"),
    ("writes.csv", ",2,", ",18446744073709551615,", "writes.csv row 2, column 'position': 18446744073709551615 is not from"),
    ("cites-1.csv", ",10,", ",18446744073709551615,", "cites-1.csv row 1, column 'time': 18446744073709551615 is not from"),
    ("cites-1.csv", ",10,", ",-10,", "cites-1.csv row 1: the time -10 is 1969-12-31T23:59:"),
    ("cites-1.csv", ",10,", ",9999999999999999,", "cites-1.csv row 1: the time 9999999999999999 is .*ahead of the clock"),
    ("cites-1.csv", "p2,p1", "p\x072,p1", "cites-1.csv row 1: .*control character"),
    ("graph.pbtxt", 'key: "year"', 'key: "anno"', "the schema has no feature 'year', and no `missing`"),
    ("graph.pbtxt", "DT_INT64", "DT_BOOL", "feature 'year' is DT_BOOL in the schema, the settings declare number"),
    ("graph.pbtxt", 'source: "author" target: "paper"', 'source: "author" target: "author"', "goes from author to author, the settings declare author to paper"),
    ("graph.pbtxt", '"cites"', '"quotes"', "The settings declare no edge set 'quotes'"),
    ("graph.pbtxt", '"author"', '"writer"', "The settings declare no node set 'writer'"),
    ("graph.pbtxt", 'filename: "paper.csv"', 'filename: "paper.csv" extra { key: "streamd.keys" value: "odd" }', "Node set 'paper' has ids of the form 'odd'"),
    ("graph.pbtxt", 'filename: "paper.csv"', 'filename: "paper.csv" extra { key: "streamd.keys" value: "json" }', "cites-.*row 1: #source is no key"),
])
def test_what_does_not_fit_is_named_with_its_row(papers, tmp_path, file, old, new, says):
    made = settings_for(papers, tmp_path)
    text = (papers / file).read_text()
    assert old in text
    (papers / file).write_text(text.replace(old, new))
    with pytest.raises(StreamdError, match=says):
        imported(made, papers, first_us=0)


def test_text_of_numbers_is_read_and_other_text_is_named_with_its_row(papers, tmp_path):
    made = settings_for(papers, tmp_path)
    (papers / "graph.pbtxt").write_text(SCHEMA.replace("DT_INT64", "DT_STRING"))
    assert {v[0] for v in nodes_of(imported(made, papers, first_us=0)).values() if v} == {2001, 1999, 1990, 0}
    (papers / "paper.csv").write_text((papers / "paper.csv").read_text().replace("1999", "MCM"))
    with pytest.raises(TFGNNError, match="paper.csv row 2: feature year is text, not number"):
        events_of(made, papers, first_us=0)


def test_values_are_placed_as_events_place_them(tmp_path):
    (tmp_path / "graph.pbtxt").write_text("""node_sets { key: "n" value { } } edge_sets { key: "e" value { source: "n" target: "n" metadata { filename: "e.csv" }
      features { key: "how" value { dtype: DT_STRING } } features { key: "agent" value { dtype: DT_STRING } } features { key: "title" value { dtype: DT_STRING } } features { key: "digit" value { dtype: DT_INT64 } } } }""")
    (tmp_path / "e.csv").write_text("source,target,time,how,agent,title,digit\na,b,1,card,x,Red hat,1\na,b,2,,y,7,2\na,b,3,else,,?,3\n")
    text = "graph: {node_sets: {n: {}}, edge_sets: {e: {source: n, target: n, features: {how: {categories: [card, cash], missing: cash}," \
           " agent: {hash: 5}, title: {text: 4}, digit: {categories: [2, 3]}, more: {type: number, missing: 9}}}}}"
    made = shop(tmp_path, text)
    with pytest.raises(TFGNNError, match="row 3: feature agent is missing"):
        imported(made, tmp_path)
    (tmp_path / "e.csv").write_text((tmp_path / "e.csv").read_text().replace("else,,?", "else,z,?"))
    log = imported(made, tmp_path)
    names = ("how", "agent", "title", "digit")
    plain = write(elsewhere(made, tmp_path / "events"), [
        {"src": "a", "dst": "b", "time": i, "features": {k: v for k, v in zip(names, f, strict=True) if v is not None}}
        for i, f in ((1, ("card", "x", "Red hat", 1)), (2, (None, "y", "7", 2)), (3, ("else", "z", "?", 3)))])
    assert edges_of(log) == edges_of(plain)


@pytest.mark.parametrize(("declared", "another", "error"), [
    ("hash: 8", "hash: 9", "feature 'agent' is DT_INT64 in the schema, the settings declare hash: 9"),
    ("text: 4", "text: 5", r"feature 'query' is DT_FLOAT\[4\] in the schema, the settings declare text: 5")])
def test_places_of_a_hash_and_numbers_of_a_text_are_not_read_as_those_of_another(tmp_path, declared, another, error):
    made = shop(tmp_path)
    exported(made, write(made, shop_events(5, 60)), tmp_path / "out")
    other = shop(tmp_path, SHOP.replace(declared, another), data_dir=tmp_path / "other")
    with pytest.raises(TFGNNError, match=error):
        imported(other, tmp_path / "out")


def test_events_for_a_topic_are_those_for_a_log_in_the_streams_unit(tmp_path):
    made = shop(tmp_path)
    exported(made, write(made, shop_events(6, 60)), tmp_path / "out")
    tables = events_of(made, tmp_path / "out")
    sent = list(checked_events(made, tables, SystemClock()))
    assert [e.row for e in sent] == list(range(1, tables.num_events + 1))
    again = write(elsewhere(made, tmp_path / "sent"), [json.loads(e.value) for e in sent])
    assert edges_of(again) == edges_of(imported(elsewhere(made, tmp_path / "log 2"), tmp_path / "out"))
    coarse = made.model_copy(update={"stream": made.stream.model_copy(update={"time_unit": "s"})})
    with pytest.raises(TFGNNError, match="tfrecord record .* microseconds is finer than s"):
        next(checked_events(coarse, tables, SystemClock()))


def test_tables_are_sent_to_a_topic_of_our_own_events(papers, tmp_path, monkeypatch):
    sent = []

    class Producer:
        def send(self, topic, key, value):
            sent.append((topic, key, json.loads(value)))
            return self

        def flush(self): ...

        def get(self, timeout): ...

        def close(self): ...

    monkeypatch.setattr(produce, "make_producer", lambda kafka, **how: Producer())
    settings_for(papers, tmp_path)
    text = streamd("tfgnn", "import", papers, "--first-time", "1970-01-01", "--topic", "papers", "--config", tmp_path / "papers.yaml")
    assert "6 nodes and 5 edges sent to papers" in text and {(topic, e.get("type")) for topic, _, e in sent} == {("papers", "node"), ("papers", None)}
    assert sent[0] == ("papers", b"p0", {"type": "node", "id": "p0", "node_set": "paper", "features": [2001]})
    assert sent[3] == ("papers", b"7", {"src": 7, "dst": "p0", "time": 0, "edge_set": "writes", "features": [1]})
    (tmp_path / "papers.yaml").write_text((tmp_path / "papers.yaml").read_text() + """sources:
  - {topic: papers, time: us, edge_set: cites, fields: {src: a, dst: b, time: c, features: {weight: w}}}
""")
    with pytest.raises(SettingsError, match="Topic papers has a source"):
        streamd("tfgnn", "import", papers, "--first-time", "1970-01-01", "--topic", "papers", "--config", tmp_path / "papers.yaml")


def test_options_that_mean_nothing_are_refused(papers, tmp_path):
    settings_for(papers, tmp_path)
    for words, says in ((("--speed", "2"), "--speed needs a topic"), (("--time-unit", "h"), "--time-unit is 'h'"),
                        (("--step-seconds", "60"), "--step-seconds needs --first-time")):
        with pytest.raises(SettingsError, match=says):
            streamd("tfgnn", "import", papers, *words, "--config", tmp_path / "papers.yaml", "--data-dir", tmp_path / "none")
    with pytest.raises(SettingsError, match="--format is 'xml'"):
        streamd("tfgnn", "export", tmp_path / "out", "--format", "xml", "--data-dir", tmp_path / "none")
