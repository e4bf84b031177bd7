"""Writes docs/figures.md: `python -m tests.benchmarks.page [graph ingest ...]`, all parts but those of a GPU if none is named.

Each part runs in a process of its own, one after the other. Its section has the rows as they were measured, the date, the commit, the load of
the machine before and after, and the seconds that it took. Sections of parts that are not named stay as they are. A part that fails keeps
its old section, and the command ends with an error.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.parts import ALL, named

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "figures.md"
HEAD = """# Figures

Every figure of the benchmarks as it was measured: `python -m tests.benchmarks.page` writes this page; do not edit it. Each section is
one run of one part; `python -m tests.benchmarks {example}` repeats it. The [benchmarks](benchmarks.md) explain the figures.

A ratio is ours over the compared figure, which is of the same run, except for goals, promises, figures of papers and TGL's sampler: these
are constants. Rates are better if they are higher; times and bytes if they are lower. The load is the mean number of running processes in
the minute before and after the part; one or two of those after it are its own. At a load above 1 before a part, only ratios mean something.
"""
SECTION = re.compile(r"^## (?P<name>\S+)\n\n(?P<body>.*?)(?=^## |\Z)", re.M | re.S)
LONGEST_SECONDS = 3600


@dataclass(frozen=True)
class Run:
    """One run of a part. load: of the machine, before and after. seconds: wall time."""

    rows: Sequence[dict[str, Any]]
    load: tuple[float, float]
    seconds: float
    date: str
    commit: str


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.page")
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--smoke", action="store_true", help="make every size small, and write to standard output")
    asked = parser.parse_args()
    # A name of one part names that part only, else all that begin with it.
    chosen = {one for word in asked.parts for one in ([word] if word in ALL else named([word]))}
    names = [name for name in ALL if (name in chosen if chosen else not name.startswith("gpu"))]
    sections = {} if asked.smoke else sections_of(PAGE.read_text() if PAGE.exists() else "")
    failed = []
    for name in names:
        print(f"{name}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        run = run_part(name, asked.smoke)
        if run is None:
            failed.append(name)
            continue
        sections[name] = section_of(run)
        # Written after each part, so that a stop keeps the parts before it.
        if not asked.smoke:
            PAGE.write_text(page_of(sections))
    if asked.smoke:
        print(page_of(sections))
    if failed:
        sys.exit(f"no figures of {', '.join(failed)}")


def run_part(name: str, smoke: bool) -> Run | None:
    """Run a part in a new process. Returns: None if it failed, whose own words are above."""
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="figures-") as folder:
        out = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "tests.benchmarks", "--exact", "--json", str(out), *(["--smoke"] if smoke else []), name]
        before, begun = os.getloadavg()[0], time.monotonic()
        try:
            subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr, timeout=LONGEST_SECONDS, env=os.environ | {"TMPDIR": folder})
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return None
        seconds = time.monotonic() - begun
        rows = json.loads(out.read_text())
    return Run(rows, (before, os.getloadavg()[0]), seconds, time.strftime("%Y-%m-%d"), commit)


def sections_of(page: str) -> dict[str, str]:
    """Name of a part -> the text of its section."""
    return {found["name"]: found["body"].strip() for found in SECTION.finditer(page)}


def page_of(sections: dict[str, str]) -> str:
    """The page, in the order of the parts; sections of parts that no longer exist are left out."""
    kept = [f"## {name}\n\n{sections[name]}\n" for name in ALL if name in sections]
    return "\n".join([HEAD.format(example=next((name for name in ALL if name in sections), "graph")), *kept])


def section_of(run: Run) -> str:
    """The text of a section."""
    machine = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}"
    first = f"{run.date}, commit {run.commit}, {machine}, load {run.load[0]:.1f} before and {run.load[1]:.1f} after, {run.seconds:,.0f} s."
    if not run.rows:
        return f"{first} Skipped: the machine lacks what the part needs (KAFKA_HOME, a GPU or the folder of peers)."
    lines = [first, "", "| measure | ours | unit | compared with | ratio |", "| --- | --- | --- | --- | --- |"]
    for row in run.rows:
        peer, ratio = "", ""
        if row["peer"] is not None:
            peer = f"{number(row['peer'])}, {row['peer_name']}"
            ratio = number(row["ours"] / row["peer"]) if row["peer"] else ""
        cells = [row["what"], number(row["ours"]), row["unit"], peer, ratio]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def number(value: float) -> str:
    """A figure with three significant digits, in full above that."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:.3g}" if abs(value) >= 0.001 or not value else f"{value:.2e}"
    return text.removesuffix(".0")


if __name__ == "__main__":
    main()
