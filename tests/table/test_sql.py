"""SQL over a snapshot: every table is a view, filters and columns reach the log, and nothing else can be reached."""

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import streamd
from streamd.errors import LeaseError, QueryError
from streamd.eventlog.reader import LogReader
from streamd.table.sql import datasets
from streamd.table.sql.session import SqlSession
from tests.table.logs import HOUR_US, long_log, visible_ids


@pytest.fixture
def session(shop):
    with streamd.open_log(shop) as snapshot:
        yield SqlSession(snapshot, 1 << 28)


def rows(session, text):
    return [tuple(row.values()) for row in session.query(text).read_all().to_pylist()]


def test_every_table_is_a_view(session, shop):
    assert set(session.views) == {"events", "events_views", "events_buys", "nodes", "nodes_user", "nodes_item", "labels", "windows",
                                  "versions", "moves", "facts", "scores"}
    log = LogReader.open(shop)
    for name, number in (("events", None), ("events_views", 0), ("events_buys", 1)):
        found = session.query(f"select event, src_key from {name}").read_all()
        ids = visible_ids(log, number)
        np.testing.assert_array_equal(found["event"], ids)
        assert found["src_key"].to_pylist() == [f"u:{n}" for n in log.gather("src", ids)]
    assert rows(session, "select count(*), count(scores['live']['mrr']), max(end_event) from windows")[0] == (6, 6, 900)
    assert rows(session, "select count(*) from versions")[0][0] >= 1
    assert rows(session, "select action, champion = (select max_by(version, window_end) from versions) from moves")[-1] == ("promote", True)
    assert rows(session, "select key, target from labels") == [("u:3", [0, 1])]
    assert rows(session, "select key, age from nodes_user where age is not null") == [("u:3", 41)]
    assert rows(session, "select node, key, deleted_before_event from nodes where is_deleted") == [(5, None, 700)]
    assert rows(session, "select count(*), count(key_int) from nodes") == [(35, 15)]


@pytest.mark.parametrize("where", [
    "time >= '1970-01-01 02:00' and time < '1970-01-01 03:00'", "time > '1970-01-01 05:30'", "time < '1970-01-01 00:10'",
    "time between '1970-01-01 01:00' and '1970-01-01 01:30' and src = 3", "time = (select max(time) from events)",
    "time < '1970-01-01 00:30' or time > '1970-01-01 05:00'", "time > '1990-01-01'", "time < '1960-01-01'", "src_key = 'u:3' and app"])
def test_a_filter_that_reaches_the_log_selects_what_a_plain_filter_selects(session, where):
    """The plain filter is of a table in DuckDB's own memory."""
    name = "events_views" if "app" in where else "events"
    whole = session.query(f"select * from {name}").read_all()
    con = duckdb.connect()
    con.execute("set TimeZone = 'UTC'")
    con.register(name, whole)
    con.register("events", whole)
    want = con.execute(f"select event from {name} where {where} order by event").fetchall()
    assert rows(session, f"select event from {name} where {where} order by event") == want


def test_times_in_a_filter_bound_the_rows_that_are_read(shop, monkeypatch):
    read = []
    original = datasets.LogSnapshot.read

    def watched(self, table, name, columns, since, until):
        read.append((name, set(columns), since, until))
        return original(self, table, name, columns, since, until)

    with streamd.open_log(shop) as snapshot:
        session = SqlSession(snapshot, 1 << 28)
        monkeypatch.setattr(datasets.LogSnapshot, "read", watched)
        rows(session, "select sum(dst) from events_buys where time >= '1970-01-01 02:00' and time < '1970-01-01 03:00'")
    ((name, columns, since, until),) = read
    width = 6 * HOUR_US // datasets.ZONES + 1
    assert name == "events_buys" and columns == {"dst", "time"}
    assert 2 * HOUR_US - width <= since <= 2 * HOUR_US and 3 * HOUR_US <= until <= 3 * HOUR_US + 2 * width


REACHING = {
    "copy (select 1) to '/tmp/streamd-out.csv'": "COPY is not allowed", "copy events from '/etc/passwd'": "is not allowed|Cannot",
    "attach '/tmp/streamd-out.db'": "ATTACH is not allowed", "install httpfs": "LOAD is not allowed", "load httpfs": "LOAD is not allowed",
    "pragma database_list": "PRAGMA is not allowed", "set memory_limit = '1TB'": "SET is not allowed", "reset memory_limit": "is not allowed",
    "create table x as select 1": "CREATE is not allowed", "insert into events values (1)": "is not allowed|Cannot",
    "drop view events": "DROP is not allowed", "export database '/tmp/streamd-out'": "EXPORT is not allowed", "call pragma_version()": "CALL is not allowed",
    "explain analyze create table x as select 1": "EXPLAIN is not allowed", "prepare p as select 1": "PREPARE is not allowed",
    "select * from read_csv('/etc/passwd')": "file system operations are disabled", "select * from '/etc/passwd'": "does not exist",
    "from read_text('/etc/passwd')": "file system operations are disabled", "from read_parquet('/tmp/x.parquet')": "file system operations are disabled",
    "from 'https://example.org/x.csv'": "file system operations are disabled", "from glob('/etc/*')": "file system operations are disabled",
    "from sniff_csv('/etc/passwd')": "file system operations are disabled", "select getenv('HOME')": "does not exist",
    "from query('copy (select 1) to ''/tmp/streamd-out.csv''')": "single SELECT", "from hidden_variable": "does not exist",
    "select 1; select 2": "2 statements", "select 1; copy (select 1) to '/tmp/streamd-out.csv'": "2 statements", "": "0 statements", "-- nothing": "0 statements",
    "selct 1": "syntax error", "select nothing from events": "not found"}


@pytest.mark.parametrize("text", REACHING)
def test_sql_reads_the_log_and_reaches_nothing_else(session, text):
    hidden_variable = pa.table({"secret": [1]})
    with pytest.raises(QueryError, match=f"(?s){REACHING[text]}.*Operator action"):
        session.query(text).read_all()
    assert hidden_variable.num_rows == 1 and not Path("/tmp/streamd-out.csv").exists()
    assert rows(session, "select value from duckdb_settings() where name in ('enable_external_access', 'lock_configuration') order by name") == [
        ("false",), ("true",)]
    assert rows(session, "select count(*) from nodes") == [(35,)]


def test_a_query_of_too_much_memory_fails_and_writes_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    long_log(tmp_path / "log", 300_000, 1)
    with streamd.open_log(tmp_path / "log") as snapshot:
        session = SqlSession(snapshot, 16 << 20)
        with pytest.raises(QueryError, match="needs more memory than it may take.*sql.max_memory_bytes"):
            session.query("select * from events a, events b where a.src_key < b.dst_key order by a.features, b.event").read_all()
        assert rows(session, "select count(*), sum(src) > 0 from events") == [(300_000, True)]
    assert [p.name for p in tmp_path.iterdir()] == ["log"]


def test_a_lease_that_ends_while_a_result_is_read_is_named(tmp_path):
    long_log(tmp_path, 1_000_000, 1)
    with streamd.open_log(tmp_path) as snapshot:
        session = SqlSession(snapshot, 1 << 28)
        result = session.query("select src from events")
        result.read_next_batch()
        snapshot.close()
        with pytest.raises(LeaseError, match="closed"):
            list(result)
        with pytest.raises(LeaseError, match="closed"):
            session.query("select max(src) from events").read_all()


def test_a_result_that_is_dropped_halfway_leaves_room_for_the_next(session):
    result = session.query("select a.event from events a, events b")
    result.read_next_batch()
    del result
    assert rows(session, "select count(*) from nodes") == [(35,)]
