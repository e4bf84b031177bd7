"""The log as tables: a scan of time and src beside pyarrow, pandas and DuckDB over the same rows in Parquet, one of facts, and an export
beside pyarrow and pandas writing the same columns.

Peers read files that Parquet wrote with its defaults (snappy, dictionaries); all are in the page cache. Each side adds up both columns,
so that every value is read.
"""

import shutil
import tempfile
import time
from pathlib import Path

import duckdb
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import streamd
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.store.objects import Store
from streamd.table.export.exporter import Exporter
from streamd.table.export.parquet_tables import ParquetTables
from streamd.table.sql.session import SqlSession
from tests.benchmarks.measure import Row, best_seconds, pick_size
from tests.builders import batch

EVENTS, SEGMENT, COMMIT, NODES, FACT_EVENTS = pick_size(100_000_000, 200_000), pick_size(10_000_000, 60_000), 20_000, 100_000, pick_size(1_000_000, 20_000)
EXPORTED, FILE_EVENTS = pick_size(4_000_000, 60_000), pick_size(1_000_000, 20_000)
TOTAL = "select sum(epoch_us(time)) + sum(src) from {}"


def total(batches) -> int:
    """The sum of two columns of batches, read where they are."""
    return sum(pc.sum(b["time"].cast(pa.int64())).as_py() + pc.sum(b["src"]).as_py() for b in batches)


def write(path: Path, events: int = EVENTS) -> None:
    """A log of events without features, one a millisecond."""
    writer = LogWriter(path, Schema(), SEGMENT)
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, NODES, (2, COMMIT))
    for a in range(0, events, COMMIT):
        if writer.remaining_rows() < COMMIT:
            writer.seal()
        keys = [f"node:{i}" for i in range(NODES)] if a == 0 else ()
        writer.commit(batch(writer.schema, src, dst, np.arange(a, a + COMMIT) * 1000, keys), Progress(), (a + COMMIT) * 1000)
    writer.close()


def export_rows(folder: Path) -> list[Row]:
    """An export of EXPORTED events, and the files of the same size and columns as pyarrow and pandas write them from memory."""
    log = folder / "short"
    write(log, EXPORTED)

    def export() -> None:
        shutil.rmtree(folder / "out", ignore_errors=True)
        exporter = Exporter(log, ParquetTables(Store(str(folder / "out"))), FILE_EVENTS)
        while exporter.step(whole=False) is not None:
            pass
        exporter.close()

    ours = best_seconds(export)
    files = sorted((folder / "out").rglob("events/**/*.parquet"))
    tables = [pq.ParquetFile(file).read() for file in files]
    assert sum(table.num_rows for table in tables) == EXPORTED
    other = folder / "other.parquet"
    arrow = best_seconds(lambda: [pq.write_table(table, other, compression="zstd") for table in tables])
    frames = [table.to_pandas() for table in tables]
    as_frames = best_seconds(lambda: [frame.to_parquet(other, compression="zstd") for frame in frames])
    size = EXPORTED / 1e6
    return [Row(f"Export of {size:g} M events from the log, with keys", size / ours, "M events/s", size / arrow, "pyarrow.parquet.write_table from memory"),
            Row("The same", size / ours, "M events/s", size / as_frames, "pandas.to_parquet from memory")]


def run() -> list[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        log, parquet = Path(folder) / "log", Path(folder) / "events.parquet"
        write(log)
        with streamd.open_log(log) as snapshot:
            with pq.ParquetWriter(parquet, snapshot.events().schema) as writer:
                for one in snapshot.events():
                    writer.write_batch(one)
            columns = ["time", "src"]
            want = total(snapshot.events(columns=columns))
            assert want == total(ds.dataset(parquet).scanner(columns=columns).to_reader())
            size = EVENTS * 16 / 1e9
            ours = best_seconds(lambda: total(snapshot.events(columns=columns)))
            peer = best_seconds(lambda: total(ds.dataset(parquet).scanner(columns=columns).to_reader()))
            plain = best_seconds(lambda: [int(m.sum()) for m in (np.memmap(p, np.int64, "r") for p in sorted((log / "edges/default").glob("*.tguf")))])
            mapped = sum(p.stat().st_size for p in (log / "edges/default").glob("*.tguf")) / 1e9
            plain_ours = ours
            rows = [Row(f"Scan of time and src of {EVENTS / 1e6:,g} M events, log.events", size / ours, "GB/s", size / peer, "pyarrow over Parquet"),
                    Row("The same, and all columns by numpy.memmap", size / ours, "GB/s", mapped / plain, "numpy.memmap")]
            session, other = SqlSession(snapshot, 1 << 30), duckdb.connect()
            other.execute(f"create view events as from read_parquet('{parquet}')")
            assert session.query(TOTAL.format("events")).read_all()[0].to_pylist() == [want] == list(other.execute(TOTAL.format("events")).fetchone())
            ours = best_seconds(lambda: session.query(TOTAL.format("events")).read_all())
            peer = best_seconds(lambda: other.execute(TOTAL.format("events")).fetchall())
            rows.append(Row("The same by streamd sql", size / ours, "GB/s", size / peer, "DuckDB over Parquet"))
            list(snapshot.facts(until=1000 * 1000, columns=["met"]))  # compiles the kernels
            begun = time.perf_counter()
            count = sum(b.num_rows for b in snapshot.facts(until=FACT_EVENTS * 1000, columns=["event", "met"]))
            frame = best_seconds(lambda: int(pandas.read_parquet(parquet, columns=columns)["src"].sum()))
            rows.append(Row("Scan of time and src as above, log.events", size / plain_ours, "GB/s", size / frame, "pandas.read_parquet"))
            rows.append(Row("Facts of past events, log.facts", count / (time.perf_counter() - begun), "events/s"))
        return rows + export_rows(Path(folder))
