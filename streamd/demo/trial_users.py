"""Simulated users of the demo's trial: they ask for recommendations, and then act as in the
recording."""

import json
import time
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from streamd.demo.role_reader import RoleReader
from streamd.demo.streams import DAY, HOUR, DemoStream
from streamd.exchange.produce import Outgoing
from streamd.settings.trials import CHAMPION, LAST_MIDNIGHT
from streamd.trials.report import COLUMNS, notes, read_figures, rows

TRIAL = "demo"
ARMS = {CHAMPION: 0.5, LAST_MIDNIGHT: 0.25, "rule": 0.25}
MAX_ASKED = 16
"""Maximum requests before a window: few, since the stream waits for the answers."""
FILE_WIDTH = 200
"""Columns of the table of figures in a file or a pipe."""
JOIN_SECONDS = 120.0
"""Longest wait for the last outcomes: the role joins an event a minute after it is visible."""
SHOWN = 10
"""Destinations in an answer."""
REMARK = "In a trial simulated users ask for recommendations, and then act as in the recording."
EXPLANATION = (
    "Trial: before each window some of its users ask for 10 recommendations, and then act as in "
    "the recording, whatever they were shown. So an arm's outcomes are its hits; how people would "
    "have acted on its answers is unknown. A unit is a user on one day."
)


def trial_settings(stream: DemoStream, topic: str) -> dict[str, Any]:
    """The settings of the trial, by dotted key. topic: of impressions."""
    return {
        "trials.name": TRIAL,
        "trials.arms": ARMS,
        "trials.topic": topic,
        "trials.edge_set": stream.edge_sets[0] if stream.edge_sets else "default",
        "trials.horizon_seconds": HOUR,
        "telemetry.trial_port": 0,
    }


class SimulatedUsers:
    """Asks for recommendations for some events before they are sent. Owner: the player's thread.

    asked, failed: numbers of requests.
    """

    def __init__(self, stream: DemoStream, reader: RoleReader) -> None:
        self._edge_set = stream.edge_sets[0] if stream.edge_sets else None
        self._reader = reader
        self.asked = 0
        self.failed = 0

    def ask(self, window: Sequence[Outgoing]) -> None:
        """Ask for some sources of a window, as just before their first event in it; a server that
        does not answer is only counted."""
        requests = self._requests(window)
        if not requests:
            return
        self.asked += len(requests)
        try:
            self._reader.ask("/v1/recommend/batch", {"requests": requests})
        except (OSError, HTTPException):
            # The server starts while the first windows are sent.
            self.failed += len(requests)

    def _requests(self, window: Sequence[Outgoing]) -> list[dict[str, Any]]:
        first: dict[str, int] = {}
        for event in window:
            edge = json.loads(event.value)
            if edge.get("edge_set", self._edge_set) == self._edge_set:
                first.setdefault(edge["src"], edge["time"])
        # Spread them over the window.
        sources = list(first.items())[:: max(1, len(first) // MAX_ASKED)][:MAX_ASKED]
        of_set = {} if self._edge_set is None else {"edge_set": self._edge_set}
        # An outcome is later than its answer.
        return [
            {
                "src": src,
                "k": SHOWN,
                "time": at - 1,
                "trial": {"unit": f"{src} on day {at // DAY}"},
                **of_set,
            }
            for src, at in sources
        ]


def print_trial(
    users: SimulatedUsers, data_dir: Path, reader: RoleReader, num_edges: int, console: Console
) -> None:
    """Wait until the trial role has joined the last event, for JOIN_SECONDS at most, and print the
    figures. num_edges: of the log."""
    console.print("Waiting until the last outcomes are joined, which takes a minute.")
    deadline = time.monotonic() + JOIN_SECONDS
    while time.monotonic() < deadline and reader.detail("trial").get("edge", 0) < num_edges:
        time.sleep(1.0)
    table = Table(*COLUMNS, title=f"{users.asked - users.failed:,} answers", box=None)
    figures = read_figures(data_dir, TRIAL)
    for row in rows(figures) if figures else ():
        table.add_row(*row)
    table.columns[0].no_wrap = True
    # A file or a pipe has no width: each arm is one line there.
    wide = console if console.is_terminal else Console(file=console.file, width=FILE_WIDTH)
    wide.print(table)
    if users.failed:
        console.print(
            f"{users.failed:,} requests had no answer, for example before the server was ready."
        )
    for note in (*(notes(figures) if figures else ()), EXPLANATION):
        console.print(note, highlight=False)
