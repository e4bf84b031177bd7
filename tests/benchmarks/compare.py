"""Two commits in turn on this machine: `python -m tests.benchmarks.compare BASE [graph serving ...] [--rounds 5]`.

Each commit runs its own benchmarks, from a work tree of its own, in the environment that is installed here. Rows are paired by their
name, peers by their row, since a peer's figure tells how much the machine itself changed. A ratio is this commit's median over the
base's; the spread is how far the rounds of one commit lie apart, as a share of their median. A ratio inside the spread says nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
RUN = """
import dataclasses, json, sys
try:
    from tests.benchmarks.parts import ALL, named
except ImportError:
    from tests.benchmarks.__main__ import ALL, named
if __name__ == "__main__":
    rows = [row for name in named(sys.argv[2:]) for row in ALL[name]()]
    open(sys.argv[1], "w").write(json.dumps([dataclasses.asdict(row) for row in rows]))
"""
"""The rows of a commit, of releases too whose benchmarks write no file by themselves."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.compare")
    parser.add_argument("base")
    parser.add_argument("parts", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        trees = {"base": Path(folder) / "base", "this": ROOT}
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", trees["base"], asked.base], check=True)
        try:
            found = {name: defaultdict(list) for name in trees}
            for number in range(asked.rounds):
                # The other one begins each time, so that a machine that slows down harms both.
                for name in sorted(trees, reverse=number % 2 == 1):
                    for row in rows_of(trees[name], Path(folder), asked.parts):
                        found[name][row["what"], row["unit"]].append(row)
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", trees["base"]], check=True)
    Console(width=170).print(table_of(found["base"], found["this"], f"this commit beside {asked.base}, {asked.rounds} rounds in turn"))


def rows_of(tree: Path, folder: Path, parts: list[str]) -> list[dict]:
    out, script = folder / "rows.json", folder / "run.py"
    script.write_text(RUN)
    print(f"{tree.name}, load {os.getloadavg()[0]:.1f}", flush=True)
    subprocess.run([sys.executable, script, out, *parts], check=True, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)})
    return json.loads(out.read_text())


def table_of(base: dict, this: dict, title: str) -> Table:
    """base, this: the rows of all rounds by name and unit; what only one commit has stands without a ratio."""
    table = Table("what", "base", "this", "ratio", "spread, base / this", "peer's ratio", "unit", title=title)
    for key in dict.fromkeys([*this, *base]):
        old, new = ([row["ours"] for row in side.get(key, ())] for side in (base, this))
        peers = [[row["peer"] for row in side.get(key, ()) if row["peer"] is not None] for side in (base, this)]
        table.add_row(key[0], middle(old), middle(new), ratio(old, new), f"{spread(old)} / {spread(new)}", ratio(*peers), key[1])
    return table


def middle(values: list[float]) -> str:
    return f"{statistics.median(values):,.4g}" if values else ""


def ratio(old: list[float], new: list[float]) -> str:
    return f"{statistics.median(new) / statistics.median(old):.2f}" if old and new and statistics.median(old) else ""


def spread(values: list[float]) -> str:
    """Greatest less least over the median."""
    return f"{(max(values) - min(values)) / abs(statistics.median(values)):.0%}" if len(values) > 1 and statistics.median(values) else "-"


if __name__ == "__main__":
    main()
