"""Runs all benchmarks, or those named, and prints one table: `python -m tests.benchmarks [graph ingest ...]`."""

import os
import platform
import sys

from rich.console import Console
from rich.table import Table

from tests.benchmarks import (
    cache,
    files,
    gpu,
    graph,
    growth,
    ingest,
    labels,
    sampling,
    serving,
    tfgnn,
    tgb,
    training,
)

ALL = {"files": files, "graph": graph, "ingest": ingest, "training": training, "serving": serving, "cache": cache,
       "growth": growth, "tgb": tgb, "labels": labels, "tfgnn": tfgnn, "sampling": sampling, "gpu": gpu}

if __name__ == "__main__":
    console = Console(width=150)
    table = Table("what", "ours", "beside it", "ratio", "unit", title=f"{platform.processor() or platform.machine()}, "
                  f"{os.cpu_count()} cores, Python {platform.python_version()}")
    for name in [a for a in sys.argv[1:] if a in ALL] or ALL:
        console.print(f"{name} ...")
        rows = ALL[name].run()
        if not rows:
            console.print(f"{name}: skipped, what it needs is not on this machine (KAFKA_HOME, a GPU, or the benchmark peers' folder)")
        for row in rows:
            peer = "" if row.peer is None else f"{row.peer:,.1f} ({row.peer_name})"
            ratio = "" if row.peer is None else f"{row.ours / row.peer:.2f}"
            table.add_row(row.what, f"{row.ours:,.1f}", peer, ratio, row.unit)
    console.print(table)
