"""An export has each event once in files that others read, and each delete after it, however often it is killed."""

import dataclasses
import shutil

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import streamd
from streamd.cli import export_command
from streamd.cli.main import app
from streamd.errors import LockedError, StoreError, StreamdError
from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.snapshot_leases import read_leases
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema, SetKey, empty_batch
from streamd.settings.loading import schema_of
from streamd.storage import Disk
from streamd.store.objects import Store
from streamd.table.export import exporter as exporters
from streamd.table.export.exporter import Exporter
from streamd.table.export.parquet_tables import MANIFEST, ParquetTables
from streamd.table.export.registered import locked_export, read_registered, register
from tests.builders import HOUR, SECOND, batch, compact, settings, stream, write_log
from tests.faults import Crash
from tests.table.logs import SHOP, delete, shop_log, shop_schema, visible_ids

DAY = 24 * HOUR


def export_log(log, to, rows=1000, **options):
    """Export a log up to its end. Returns: the commits."""
    exporter = Exporter(log, ParquetTables(Store(str(to), timeout_seconds=0)), rows, **options)
    try:
        return list(iter(lambda: exporter.step(whole=False), None))
    finally:
        exporter.close()


def read_all(to):
    """The exported events and deletes by DuckDB, without a look at the manifest."""
    duck = duckdb.connect()
    events = duck.sql(f"from read_parquet('{to}/events/**/*.parquet', hive_partitioning=true, union_by_name=true) order by event").to_arrow_table()
    if not list((to / "deletes").glob("*.parquet")):
        return events, None
    return events, duck.sql(f"from '{to}/deletes/*.parquet' order by event, node").to_arrow_table()


def days_log(path, num_events=600, days=3, segment_edges=250):
    """Events of some days in one edge set; returns the columns."""
    src, dst, _ = stream(num_events)
    time = np.arange(num_events) * (days * DAY // num_events)
    write_log(path, src, dst, time, Schema(2), segment_edges=segment_edges)
    return src, dst, time


def test_a_table_is_read_back_by_others_as_the_log_has_it(tmp_path, shop):
    to = tmp_path / "out"
    commits = export_log(shop, to, rows=400)
    assert [(c.first_event, c.end_event, c.day) for c in commits] == [(0, 400, "1970-01-01"), (400, 800, "1970-01-01"), (800, 900, "1970-01-01")]
    with streamd.open_log(shop) as snapshot:
        for name in ("views", "buys"):
            columns = [c for c in snapshot.event_table(name).schema.names if c not in ("edge_set", "features")]
            want = snapshot.events(name, columns=columns).read_all()
            folder = to / "events" / f"edge_set={name}"
            # pyarrow, with the columns that all files together have.
            schema = pq.read_schema(folder / "_common_metadata")
            found = pa.dataset.dataset(folder, schema=schema.append(pa.field("day", pa.string())), partitioning="hive").to_table(columns=columns)
            assert found.schema.equals(want.schema, check_metadata=False) and found.sort_by("event").equals(want)
            # DuckDB.
            duck = duckdb.connect()
            rows = duck.sql(f"select {','.join(columns)} from '{folder}/**/*.parquet' order by event").to_arrow_table()
            assert rows.drop_columns([c for c in columns if c == "text"]).to_pylist() == want.drop_columns(
                [c for c in columns if c == "text"]).to_pylist()
    events, deletes = read_all(to)
    assert set(events["edge_set"].to_pylist()) == {"views", "buys"} and str(events["day"][0]) == "1970-01-01"
    np.testing.assert_array_equal(events["event"], visible_ids(LogReader.open(shop)))
    assert deletes["node"].drop_null().to_pylist() == [5] and deletes["before_event"].drop_null().to_pylist() == [700]


def test_pandas_reads_the_table(tmp_path, shop):
    pandas = pytest.importorskip("pandas")
    export_log(shop, tmp_path / "out", rows=400)
    frame = pandas.read_parquet(tmp_path / "out" / "events" / "edge_set=buys")
    with streamd.open_log(shop) as snapshot:
        want = snapshot.events("buys", columns=["event", "price", "how"]).read_all().to_pylist()
    assert frame.sort_values("event")[["event", "price", "how"]].astype(object).where(frame.notna(), None).to_dict("records") == want


def columns_of(folder, *names):
    """The values that are not null of some columns of all Parquet files of a folder."""
    tables = [pq.ParquetFile(file).read(names) for file in sorted(folder.rglob("*.parquet"))]
    return {name: [v for table in tables for v in table[name].to_pylist() if v is not None] for name in names}


class DyingDisk(Disk):
    """Is killed before the given call of those that make a write durable."""

    def __init__(self, at):
        self.left = at

    def _step(self):
        self.left -= 1
        if self.left < 0:
            raise Crash

    def sync(self, fd):
        self._step()
        super().sync(fd)

    def replace(self, old, new):
        self._step()
        super().replace(old, new)

    def sync_folder(self, folder):
        self._step()
        super().sync_folder(folder)


def test_killed_at_any_durable_write_no_event_is_lost_or_twice(tmp_path, monkeypatch):
    src, dst, time = days_log(tmp_path / "log", 40, days=2, segment_edges=25)
    export_log(tmp_path / "log", tmp_path / "first", 20)
    writer = LogWriter(tmp_path / "log", Schema(2), 25)
    delete(writer, [4], [(int(src[30]), int(dst[30]), int(time[30]), 0)])
    writer.close()
    left = visible_ids(LogReader.open(tmp_path / "log"))
    # Killed from the first write on, and amid deletes of events that are exported.
    kills = 0
    for begun in (False, True):
        for at in range(1000):
            to = tmp_path / f"{begun}{at}"
            if begun:
                shutil.copytree(tmp_path / "first", to)
            with monkeypatch.context() as patch:
                patch.setattr("streamd.store.objects.DISK", DyingDisk(at))
                try:
                    export_log(tmp_path / "log", to, 20)
                except Crash:
                    kills += 1
                else:
                    break
            ids = columns_of(to / "events", "event")["event"]
            assert len(ids) == len(set(ids)), "not even for a reader that knows no manifest"
            export_log(tmp_path / "log", to, 7)
            events, deletes = (columns_of(to / part, *names) for part, names in (("events", ["event"]), ("deletes", ["event", "node"])))
            np.testing.assert_array_equal(sorted(events["event"]), np.arange(40) if begun else left)
            assert deletes["node"] == [4] and (not begun or deletes["event"] == [30])
            assert not list(to.rglob("*.tmp"))
    assert kills > 30


def test_follow_writes_whole_days_and_full_files_and_deletes_soon(tmp_path):
    src, dst, time = days_log(tmp_path / "log", 300, days=3)
    clock = [0.0]
    exporter = Exporter(tmp_path / "log", ParquetTables(Store(str(tmp_path / "out"))), 80, now=lambda: clock[0])

    def steps():
        exporter.refresh()
        return [(c.first_event, c.end_event, c.day, c.deletes.num_rows) for c in iter(lambda: exporter.step(whole=True), None)]

    days = ("1970-01-01", "1970-01-02", "1970-01-03")
    assert steps() == [(0, 80, days[0], 0), (80, 100, days[0], 0), (100, 180, days[1], 0), (180, 200, days[1], 0), (200, 280, days[2], 0)]
    assert exporter.num_left == 20 and steps() == []
    # The lease keeps the events that are not exported yet, and no others.
    (lease,) = read_leases(tmp_path / "log", 0)
    assert lease.first_event == 280
    writer = LogWriter(tmp_path / "log", Schema(2), 250)
    delete(writer, [], [(int(src[30]), int(dst[30]), int(time[30]), 0)])
    assert steps() == [(280, 280, "", 1)]
    delete(writer, [7])
    assert steps() == [], "more deletes wait, so that there are few files"
    clock[0] = 10.0
    assert steps() == [(280, 280, "", 1)]
    # The next day's first event ends the day.
    writer.commit(batch(writer.schema, src[:1], dst[:1], np.array([3 * DAY])), Progress(), 3 * DAY)
    writer.close()
    assert steps() == [(280, 300, days[2], 0)] and exporter.num_left == 1
    exporter.close()
    assert not read_leases(tmp_path / "log", 0)


def test_a_table_gets_the_columns_that_its_log_gets(tmp_path):
    log, to = tmp_path / "log", tmp_path / "out"
    old = schema_of(settings(log, **SHOP | {"graph__edge_sets": {"views": {"source": "user", "target": "item", "features": {"seconds": "number"}}}}))
    writer = LogWriter(log, old, 100)
    writer.commit(batch(old, np.array([0]), np.array([1]), np.array([5]), ["a", ("b")]), Progress(), 5)
    writer.close()
    exporter = Exporter(log, ParquetTables(Store(str(to))), 10)
    assert exporter.step(whole=False) is not None
    new = shop_schema(log)
    writer = LogWriter(log, new, 100)
    rows = np.concatenate([new.edge_rows(0, np.array([[3, 1, 4]], np.float32)), new.edge_rows(1, np.ones((1, 10), np.float32))])
    writer.commit(dataclasses.replace(empty_batch(new), src_E=np.array([0, 0]), dst_E=np.array([1, 1]), time_E=np.array([6, 7]), msg_ED=rows),
                  Progress(), 7)
    writer.close()
    exporter.refresh()
    assert exporter.step(whole=False).num_rows == 2
    exporter.close()
    views = to / "events/edge_set=views"
    assert pq.read_schema(views / "_common_metadata").names[-3:] == ["seconds", "app", "feature_time"]
    events, _ = read_all(to)
    assert events.select(["edge_set", "seconds", "app", "price"]).to_pylist() == [
        {"edge_set": "views", "seconds": 0, "app": None, "price": None}, {"edge_set": "views", "seconds": 3, "app": True, "price": None},
        {"edge_set": "buys", "seconds": None, "app": None, "price": 1}]


def test_a_delete_that_was_compacted_before_the_next_export_is_exported(tmp_path):
    src, dst, time = days_log(tmp_path / "log")
    export_log(tmp_path / "log", tmp_path / "out")
    writer = LogWriter(tmp_path / "log", Schema(2), 250)
    delete(writer, [], [(int(src[i]), int(dst[i]), int(time[i]), 0) for i in (10, 300)])
    assert compact(writer).edges == 2
    writer.close()
    (commit,) = export_log(tmp_path / "log", tmp_path / "out")
    assert commit.deletes["event"].to_pylist() == [10, 300]
    assert export_log(tmp_path / "log", tmp_path / "out") == []


def test_a_feature_called_day_and_a_log_without_features_have_columns(tmp_path):
    sets = {"graph__node_sets": {"user": {}, "item": {}}, "graph__edge_sets": {
        "views": {"source": "user", "target": "item", "features": {"Day": "number", "feature_day": "number"}}, "sees": {"source": "user", "target": "item"}}}
    schema = schema_of(settings(tmp_path / "log", **sets))
    writer = LogWriter(tmp_path / "log", schema, 100)
    writer.commit(batch(schema, np.array([0]), np.array([1]), np.array([5]), ["a", "b"]), Progress(), 5)
    writer.close()
    (commit,) = export_log(tmp_path / "log", tmp_path / "out")
    assert commit.schemas["views"].names[-2:] == ["feature_feature_Day", "feature_day"] and commit.schemas["sees"].names[-1] == "dst_key_int"


def test_what_does_not_continue_the_table_is_refused_by_name(tmp_path):
    log, to = tmp_path / "log", tmp_path / "out"
    days_log(log)
    days_log(tmp_path / "short", 300)
    days_log(tmp_path / "other", 700)
    export_log(log, to)
    with pytest.raises(StreamdError, match="only up to 300"):
        export_log(tmp_path / "short", to)
    with pytest.raises(StreamdError, match=r"another log.*\[584, 600\) differ"):
        export_log(tmp_path / "other", to)
    # Files of others.
    (to / "README").write_text("ours")
    assert export_log(log, to) == [], "a file that no reader of the table sees"
    foreign = to / "events" / "edge_set=default" / "day=1970-01-01" / "x.parquet"
    foreign.write_bytes(b"")
    with pytest.raises(StreamdError, match=r"not of this export, such as events/edge_set=default/day=1970-01-01/x.parquet"):
        export_log(log, to)
    foreign.unlink()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo.jpg").write_text("")
    with pytest.raises(StreamdError, match=r"such as photo.jpg"):
        export_log(log, tmp_path / "full")
    # The manifest.
    whole = (to / MANIFEST).read_text()
    for text, words in ((whole[:-9], "damaged"), ("[]", "damaged"), (whole.replace('"format":1', '"format":2'), "of format 2")):
        (to / MANIFEST).write_text(text)
        with pytest.raises(StreamdError, match=words):
            export_log(log, to)


def test_an_empty_log_exports_nothing_and_its_first_events_later(tmp_path):
    LogWriter(tmp_path / "log", Schema(2), 250).close()
    assert export_log(tmp_path / "log", tmp_path / "out") == []
    days_log(tmp_path / "log", 30, days=1)
    assert [c.num_rows for c in export_log(tmp_path / "log", tmp_path / "out")] == [30]


def test_events_that_retention_dropped_before_their_export_are_named(tmp_path):
    days_log(tmp_path / "log", 100)
    export_log(tmp_path / "log", tmp_path / "out")
    src, dst, _ = stream(100)
    writer = LogWriter(tmp_path / "log", Schema(2), 250)
    for at in (3 * DAY, 4 * DAY):
        writer.commit(batch(writer.schema, src, dst, at + np.arange(100)), Progress(), at + 100)
        writer.seal()
    writer.drop_before(200)
    writer.close()
    with pytest.raises(StreamdError, match=r"dropped the events \[100, 200\) before"):
        export_log(tmp_path / "log", tmp_path / "out")


def test_two_exports_to_one_table_do_not_mix(tmp_path):
    days_log(tmp_path / "log")
    with locked_export(tmp_path / "log", "/x"), pytest.raises(LockedError, match="to /x"), locked_export(tmp_path / "log", "/x"):
        pass
    register(tmp_path / "log", "/x", "parquet")
    assert [one.to for one in read_registered(tmp_path / "log")] == ["/x"]
    # On another machine there is no such lock.
    one, other = (Exporter(tmp_path / "log", ParquetTables(Store(str(tmp_path / "out"))), 100) for _ in range(2))
    assert one.step(whole=False) is not None
    with pytest.raises(StreamdError, match="Another process exports to"):
        other.step(whole=False)
    one.close(), other.close()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PermissionError(13, "Permission denied")])
def test_a_disk_that_is_full_or_closed_ends_the_export_and_it_continues_later(tmp_path, monkeypatch, error):
    days_log(tmp_path / "log")
    to = tmp_path / "out"
    with monkeypatch.context() as patch:
        def refuse(*_):
            raise error
        patch.setattr("streamd.store.objects.DISK.sync", refuse)
        with pytest.raises(StoreError, match=f"cannot be written to {to}: .*{error.strerror}"):
            export_log(tmp_path / "log", to)
    export_log(tmp_path / "log", to)
    assert read_all(to)[0].num_rows == 600


def test_the_command_exports_once_and_follows(tmp_path, monkeypatch):
    log, to = tmp_path / "log", tmp_path / "out"
    shop_log(log)

    def run(*args):
        return CliRunner().invoke(app, ["export", "--to", str(to), "--data-dir", str(log), *args], catch_exceptions=False)

    polls = iter(range(3))

    def sleep(_):
        # A new day begins at the first poll; the third is interrupted.
        if next(polls, None) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(export_command, "sleep", sleep)
    assert run("--follow", "--rows", "400").exit_code == 0
    assert not read_leases(log, 0) and read_all(to)[0]["event"][-1].as_py() == 899
    done = run()
    assert done.exit_code == 0 and "exported in 0 commits, to event 900 as of commit" in done.stdout
    for args, words in ((["--to", str(log / "out")], "a folder in the data_dir"), (["--to", str(log / "published")], "which is a file")):
        with pytest.raises(StreamdError, match=words):
            run(*args)


def test_days_of_a_followed_log_wait_for_its_watermark(tmp_path):
    days_log(tmp_path / "log", 30, days=1)
    log = LogReader.open(tmp_path / "log")
    assert exporters.next_range(log, 0, 100) == exporters.EventRange(0, 30, 0, False)
    assert exporters.next_range(log, 0, 30).is_whole and exporters.next_range(log, 30, 100) is None
    writer = LogWriter(tmp_path / "log", Schema(2), 250)
    writer.commit(empty_batch(writer.schema), Progress(), DAY + SECOND)
    writer.close()
    log.refresh()
    assert exporters.next_range(log, 0, 100).is_whole


def test_a_proof_of_erasure_names_the_tables_that_hold_a_key(tmp_path):
    shop_log(tmp_path / "log")
    to = tmp_path / "out"

    def run(*args):
        return CliRunner().invoke(app, [*args, "--data-dir", str(tmp_path / "log")], catch_exceptions=False)

    assert run("export", "--to", str(to)).exit_code == 0
    # Exports that are refused change no note, and leave none.
    for refused in (["--to", str(to), "--format", "iceberg"], ["--to", "nowhere://typo/b"]):
        with pytest.raises(StreamdError):
            run("export", *refused)
    assert [(one.to, one.format) for one in read_registered(tmp_path / "log")] == [(str(to), "parquet")]
    log = LogReader.open(tmp_path / "log")
    src, dst, _ = log.edges(0, 900)
    ids = visible_ids(log)
    for key, node, column in (("u:8", log.ids["u:8"], src), ("3", log.ids[SetKey(1, 3)], dst)):
        done = run("verify", "--deleted", key)
        count = {name: int((column[ids[log.edge_sets_of(ids) == number]] == node).sum()) for number, name in enumerate(("views", "buys"))}
        lines = [line for line in done.stderr.splitlines() if "exported" in line]
        assert sorted(lines) == sorted(f"found: key 1 in {count[name]} cells of edge set {name} in the table exported to {to}" for name in count)
        assert "and in 1 exported table" in done.stdout and done.exit_code == 1
    # A node that the log no longer knows, and that was never exported.
    assert "exported to" not in run("verify", "--deleted", "u:5").stderr
    # Removed files no longer hold a key.
    (views,) = to.glob("events/edge_set=views/*/*.parquet")
    views.unlink()
    assert run("verify", "--deleted", "u:8").stderr.count("exported to") == 1
    shutil.rmtree(to)
    assert "exported to" not in run("verify", "--deleted", "u:8").stderr
