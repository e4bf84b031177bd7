"""The status page after a day and after a year of hourly windows."""

import tempfile
from pathlib import Path

from streamd.registry import Registry
from streamd.registry.journal import ModelJournal
from streamd.server.state import ServerState
from streamd.telemetry.heartbeat import Heartbeat
from streamd.windows.history import WindowRecord, append_record
from tests.benchmarks.measure import Row, best_seconds, pick_size
from tests.builders import HOUR, settings

SIZES = pick_size((24, 8_760), (24, 100))


def run() -> list[Row]:
    """Time of one answer, the page asked for before."""
    seconds = {}
    for windows in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            journal = ModelJournal(path / "models")
            for window in range(windows):
                journal.move("promote", f"{window}-{window}", "trainer", "as good", shadow=f"{window // 2}-1")
                scores = {"live": {"mrr": 0.5, "mrr_known": 0.5, "ap": 0.5}}
                append_record(path, WindowRecord(
                    start_us=window * HOUR, end_us=(window + 1) * HOUR, first_edge=window, end_edge=window + 1, num_scored=1,
                    version=f"{window}-1", scored_by="", promoted=True, reason="", scores=scores, loss=0.1,
                    seconds={"score": 1.0}, finished_at=0.0))
            chosen = settings(path)
            page = ServerState(chosen, Registry.of(chosen), Heartbeat(path, "serve")).page
            page.content()
            seconds[windows] = best_seconds(page.content, 20)
    return [Row(f"/status.json after {windows:,} windows (it shows at most 1,000)", 1e3 * seconds[windows], "ms",
                1e3 * seconds[SIZES[0]], f"{SIZES[0]} windows") for windows in SIZES]
