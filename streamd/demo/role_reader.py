"""Reads the state of the demo's daemon, and displays it while the stream plays."""

import contextlib
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streamd.demo.player import Player
from streamd.telemetry.heartbeat import Beat, read_beat
from streamd.telemetry.progress import LINE_SECONDS, Meter
from streamd.windows.history import HistoryReader


class RoleReader:
    """Reads the state of the roles from the data directory and the server."""

    def __init__(self, data_dir: Path, port: int) -> None:
        """port: of the server."""
        self._data_dir = data_dir
        self.history = HistoryReader(data_dir)
        self.address = f"http://127.0.0.1:{port}"

    def num_windows(self) -> int:
        """Number of windows that are learned."""
        return len(self.history.refresh())

    def beat(self, role: str) -> Beat | None:
        """A role's last heartbeat, None before the first."""
        return read_beat(self._data_dir, role)

    def detail(self, role: str) -> dict[str, Any]:
        """The fields of a role's last heartbeat, empty before the first."""
        beat = self.beat(role)
        return beat.detail if beat else {}

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request to the server: GET, or POST if there is a body. Returns: the parsed JSON
        response."""
        # A request without data is a GET.
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.address + path, data, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)


@contextlib.contextmanager
def display(console: Console) -> Iterator[Any]:
    """Show progress: on a terminal as a live table, elsewhere as a line every LINE_SECONDS. Yields:
    the function that updates it."""
    meter = Meter()
    if console.is_terminal:
        with Live(console=console, refresh_per_second=5) as live:
            yield lambda watch, player, begun: live.update(
                _table(_facts(watch, player, begun, meter))
            )
        return
    last = [0.0]

    def line(watch: RoleReader, player: Player, begun: float) -> None:
        if time.monotonic() - last[0] >= LINE_SECONDS:
            last[0] = time.monotonic()
            facts = _facts(watch, player, begun, meter)
            console.print("  ".join(f"{k} {v}" for k, v in facts.items()), highlight=False)

    yield line


def _facts(watch: RoleReader, player: Player, begun: float, meter: Meter) -> dict[str, str]:
    """The progress by label."""
    ingest = watch.detail("ingest")
    records = watch.history.refresh()

    # The mean over windows, weighted by their scored events.
    scored = [r for r in records[-24:] if r.num_scored]
    weight = sum(r.num_scored for r in scored)
    score = (
        f"{sum(r.scores['live']['mrr'] * r.num_scored for r in scored) / weight:.3f}"
        if weight
        else "-"
    )

    # The meter computes the rate of training over the last seconds.
    elapsed = time.monotonic() - begun
    # Before the first learned window, no event is learned.
    end_edge = records[-1].end_edge if records else 0
    num_events = ingest.get("edges", 0)
    wait = reason_to_wait(watch, len(records))
    if not player.status.total:
        return {"waits for": wait or "the file to be read", "seconds": f"{elapsed:.0f}"}
    learned = meter.at(end_edge, player.status.total)
    return ({"waits for": wait} if wait else {}) | {
        "events": f"{num_events:,} of {player.status.total:,}",
        "lag": f"{ingest.get('lag', 0):,}",
        "not yet learned": f"{max(0, num_events - end_edge):,}",
        "windows": f"{len(records):,}",
        "learned": learned.text("events"),
        "MRR of the last 24": score,
        "version": records[-1].version if records else "-",
        "seconds": f"{elapsed:.0f}",
    }


def reason_to_wait(watch: RoleReader, num_windows: int) -> str:
    """The role or the window for which the demo waits; "" once a window is learned."""
    if num_windows:
        return ""
    ingest, train = watch.beat("ingest"), watch.beat("train")
    if ingest is None or ingest.state in ("starting", "connecting"):
        return "ingest, which connects to the broker"
    if train is None:
        return "the trainer, which starts"
    if train.state == "preparing":
        return "the trainer, which loads or compiles kernels"
    if train.state in ("scoring", "learning"):
        return "the first window, which is being learned"
    return "the first window to end"


def _table(facts: dict[str, str]) -> Group:
    """The progress as a table for a terminal."""
    table = Table(box=None, show_header=False)
    for name, value in facts.items():
        table.add_row(name, Text(value, style="bold"))
    return Group(table)
