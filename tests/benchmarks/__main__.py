"""Runs all benchmarks, or those named, and prints one table: `python -m tests.benchmarks [graph ingest ...]`.

`--smoke` makes every size small: it shows that a part still runs, and its figures say nothing. `--json FILE` also writes the rows.
"""

import argparse
import dataclasses
import json
import os
import platform
from pathlib import Path

from rich.console import Console
from rich.table import Table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--smoke", action="store_true", help="make every size small")
    parser.add_argument("--json", type=Path, help="a file for the rows")
    parser.add_argument("--exact", action="store_true", help="run the parts of exactly these names, not those that begin with them")
    asked = parser.parse_args()
    if asked.smoke:
        os.environ["BENCH_SMOKE"] = "1"

    # Imported here, since modules choose their sizes as they are imported.
    from tests.benchmarks.parts import ALL, named

    console, found = Console(width=150), []
    table = Table("what", "ours", "beside it", "ratio", "unit", title=f"{platform.processor() or platform.machine()}, "
                  f"{os.cpu_count()} cores, Python {platform.python_version()}")
    for name in asked.parts if asked.exact else named(asked.parts):
        console.print(f"{name} ...")
        rows = ALL[name]()
        if not rows:
            console.print(f"{name}: skipped, what it needs is not on this machine (KAFKA_HOME, a GPU, or the benchmark peers' folder)")
        for row in rows:
            peer = "" if row.peer is None else f"{row.peer:,.1f} ({row.peer_name})"
            ratio = "" if row.peer is None else f"{row.ours / row.peer:.2f}"
            table.add_row(row.what, f"{row.ours:,.1f}", peer, ratio, row.unit)
        found += rows
    console.print(table)
    if asked.json:
        asked.json.write_text(json.dumps([dataclasses.asdict(row) for row in found]))


if __name__ == "__main__":
    main()
