"""Iceberg tables have each event of a log once, by snapshots with the log's commit in their summary."""

import os

import numpy as np
import pytest
from typer.testing import CliRunner

import streamd
from streamd.cli.main import app
from streamd.cli.proof import prove_erasure
from streamd.errors import StreamdError
from streamd.eventlog.reader import LogReader
from streamd.events import SetKey
from streamd.table.export.exporter import Exporter
from streamd.table.export.iceberg_tables import COMMIT, IcebergTables
from streamd.table.export.registered import locked_export, register
from streamd.telemetry.progress import ProgressLine
from tests.builders import settings
from tests.faults import Crash
from tests.table.logs import SHOP, shop_log, visible_ids

pytest.importorskip("pyiceberg")


def export_log(log, to, rows=400):
    exporter = Exporter(log, IcebergTables(to), rows)
    try:
        return list(iter(lambda: exporter.step(whole=False), None))
    finally:
        exporter.close()


def tables_in(to):
    from pyiceberg.catalog.sql import SqlCatalog
    catalog = SqlCatalog("streamd", uri=f"sqlite:///{to}/catalog.db", warehouse=to.as_uri())
    return {name: catalog.load_table(("streamd", name)) for _, name in catalog.list_tables("streamd")}


def event_ids(to):
    return sorted(i for name, table in tables_in(to).items() if name != "deletes"
                  for i in table.scan(selected_fields=("event",)).to_arrow()["event"].to_pylist())


def test_tables_are_read_back_with_a_commit_in_each_snapshot(tmp_path, shop):
    to = tmp_path / "lake"
    assert len(export_log(shop, to)) == 3 and export_log(shop, to) == []
    tables = tables_in(to)
    assert set(tables) == {"events_views", "events_buys", "deletes"}
    with streamd.open_log(shop) as snapshot:
        commit = str(snapshot.commit)
        want = snapshot.events("buys", columns=["event", "src_key", "price", "how"]).read_all().to_pylist()
    found = tables["events_buys"].scan(selected_fields=("event", "src_key", "price", "how"), row_filter="day = '1970-01-01'").to_arrow()
    assert sorted(found.to_pylist(), key=lambda row: row["event"]) == want
    assert [s.summary.additional_properties[COMMIT] for s in tables["events_buys"].snapshots()] == [commit] * 3
    assert tables["deletes"].scan().to_arrow()["node"].drop_null().to_pylist() == [5]


def test_killed_between_any_two_tables_no_event_is_lost_or_twice(tmp_path, shop, monkeypatch):
    want = visible_ids(LogReader.open(shop))
    real = IcebergTables._append
    for at in range(1, 6):
        left = [at]

        def append(self, *args, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise Crash
            real(self, *args)

        to = tmp_path / str(at)
        with monkeypatch.context() as patch:
            patch.setattr(IcebergTables, "_append", append)
            with pytest.raises(Crash):
                export_log(shop, to)
        export_log(shop, to, 250 + at)
        np.testing.assert_array_equal(event_ids(to), want)


def files_in(to):
    return {file for file in (to / "streamd").rglob("*") if file.is_file()}


def test_files_of_a_killed_append_are_swept_a_day_later_and_those_of_snapshots_stay(tmp_path, shop, monkeypatch):
    from pyiceberg.catalog.sql import SqlCatalog

    to = tmp_path / "lake"
    export_log(shop, to, 250)
    whole = files_in(to)
    want = event_ids(to)

    real = SqlCatalog._write_metadata

    def killed(**args):
        real(**args)
        raise Crash

    # Data files, manifests and metadata are written, but the catalog does not have them.
    table = IcebergTables(to)._load("events_views")
    rows = table.scan().to_arrow()
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(SqlCatalog, "_write_metadata", staticmethod(killed))
        table.append(rows)
    orphans = files_in(to) - whole
    assert len(orphans) >= 3
    assert IcebergTables(to).sweep() == 0, "another writer may be at work"
    for file in files_in(to):
        os.utime(file, (1, 1))
    assert IcebergTables(to).sweep() == len(orphans) and files_in(to) == whole
    assert event_ids(to) == want and IcebergTables(to).sweep() == 0
    # The command sweeps before it exports.
    (to / "streamd" / "events_views" / "data" / "left.parquet").write_bytes(b"x")
    os.utime(to / "streamd" / "events_views" / "data" / "left.parquet", (1, 1))
    done = CliRunner().invoke(app, ["export", "--to", str(to), "--format", "iceberg", "--data-dir", str(shop)])
    assert done.exit_code == 0 and files_in(to) == whole and event_ids(to) == want


def test_a_folder_with_other_files_is_refused_and_keys_are_found(tmp_path):
    shop = tmp_path / "log"
    shop_log(shop)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with pytest.raises(StreamdError, match="not of this export, such as x"):
        IcebergTables(tmp_path / "full")
    to = tmp_path / "lake"
    with locked_export(shop, str(to)):
        register(shop, str(to), "iceberg")
        export_log(shop, to)
    found = []
    prove_erasure(settings(shop, **SHOP), ["u:1", "3"], [["u:1"], [SetKey(1, 3)]], _line(), found.append)
    assert {(one.key, one.where.partition(" in the table ")[2]) for one in found if one.at < 0} == {
        (key, f"exported to {to}") for key in (0, 1)}


def _line():
    from rich.console import Console
    return ProgressLine(Console(quiet=True), "x")
