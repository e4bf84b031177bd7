"""TGUF files against the disk and the memory map under them: sequential write beside dd, scan beside numpy.memmap."""

import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from streamd.eventlog.tguf.format import TGUFSchema
from streamd.eventlog.tguf.reader import open_tguf
from streamd.eventlog.tguf.writer import TGUFWriter
from tests.benchmarks.measure import Row, best_seconds, pick_size

EDGES, DIM, CHUNK, ROUNDS = pick_size(4_000_000, 100_000), 16, pick_size(100_000, 10_000), 3


def run() -> list[Row]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        path = Path(folder) / "x.tguf"
        rng = np.random.default_rng(0)
        src, dst = rng.integers(0, 10**6, (2, CHUNK))
        msg = rng.normal(size=(CHUNK, DIM)).astype(np.float32)
        ours, disk = [], []
        for _ in range(ROUNDS):
            path.unlink(missing_ok=True)
            begun = time.perf_counter()
            with TGUFWriter.create(path, TGUFSchema(EDGES, DIM)) as writer:
                for i in range(0, EDGES, CHUNK):
                    writer.append_edges(src, dst, np.arange(i, i + CHUNK), msg)
                writer.commit()
            ours.append(time.perf_counter() - begun)
            size = path.stat().st_size
            begun = time.perf_counter()
            subprocess.run(["dd", "if=/dev/zero", f"of={folder}/raw", "bs=4M", f"count={size // 2**22}", "conv=fdatasync"],
                           check=True, capture_output=True)
            disk.append(time.perf_counter() - begun)
        file = open_tguf(path)
        plain = np.memmap(path, np.float32, "r", file.header.msg_offset, (EDGES, DIM))
        scan = best_seconds(lambda: file.msg.sum(dtype=np.float64))
        mapped = best_seconds(lambda: plain.sum(dtype=np.float64))
        gigabytes = EDGES * DIM * 4 / 1e9
        return [Row(f"TGUF sequential write, {size / 1e6:,.0f} MB, synced", size / 1e6 / min(ours), "MB/s",
                    size / 1e6 / min(disk), "dd bs=4M conv=fdatasync"),
                Row("TGUF scan of the features, mapped", gigabytes / scan, "GB/s", gigabytes / mapped, "numpy.memmap")]
