"""Runs all benchmarks, or those named, and prints one table: `python -m tests.benchmarks [graph ingest ...]`."""

import os
import platform
import sys

from rich.console import Console
from rich.table import Table

from tests.benchmarks import (
    cache,
    checkpoints,
    explain,
    failover,
    files,
    gpu,
    graph,
    growth,
    inference,
    ingest,
    ingest_sets,
    labels,
    nightly,
    overload,
    ranks,
    ranks_model,
    recommend,
    replica,
    restart_sets,
    sampling,
    sampling_hub,
    sampling_sets,
    scores,
    server_memory,
    serving,
    store,
    tfgnn,
    tgb,
    traces,
    training,
)

ALL = {"files": files.run, "graph": graph.run, "ingest": ingest.run, "ingest-sets": ingest_sets.run, "training": training.run,
       "serving": serving.run, "explain": explain.run, "recommend": recommend.run, "traces": traces.run, "server-memory": server_memory.run, "inference": inference.run,
       "cache": cache.run, "growth": growth.run, "tgb": tgb.run, "labels": labels.run, "tfgnn": tfgnn.run,
       "sampling": sampling.run, "sampling-hub": sampling_hub.run, "sampling-sets": sampling_sets.run, "restart-sets": restart_sets.run, **ranks.PARTS,
       "replica": replica.run, "failover": failover.run, "checkpoints": checkpoints.run, "store": store.run, "scores": scores.run,
       "nightly": nightly.run, "overload": overload.run, **ranks_model.PARTS, **gpu.PARTS}


def named(words: list[str]) -> list[str]:
    """The benchmarks that words name, "gpu" all its parts; all where they name none."""
    return [name for name in ALL if {name, name.split("-")[0]} & set(words)] or list(ALL)

if __name__ == "__main__":
    console = Console(width=150)
    table = Table("what", "ours", "beside it", "ratio", "unit", title=f"{platform.processor() or platform.machine()}, "
                  f"{os.cpu_count()} cores, Python {platform.python_version()}")
    for name in named(sys.argv[1:]):
        console.print(f"{name} ...")
        rows = ALL[name]()
        if not rows:
            console.print(f"{name}: skipped, what it needs is not on this machine (KAFKA_HOME, a GPU, or the benchmark peers' folder)")
        for row in rows:
            peer = "" if row.peer is None else f"{row.peer:,.1f} ({row.peer_name})"
            ratio = "" if row.peer is None else f"{row.ours / row.peer:.2f}"
            table.add_row(row.what, f"{row.ours:,.1f}", peer, ratio, row.unit)
    console.print(table)
