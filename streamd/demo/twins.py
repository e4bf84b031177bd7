"""The twins of the live model: what a user would have without live training.

They are scored on the same negatives while the demo plays. They read the log as it grows, each
window after it closed, in the demo's own process.
"""

import threading
from pathlib import Path

import torch

from streamd.evaluation.regimes import Regimes, RegimeWindow
from streamd.eventlog.reader import LogReader
from streamd.training.learning_settings import LearningSettings
from streamd.windows import next_window

FROZEN_AFTER = 0.3
"""Share of the events after which the frozen twin learns no more; totals begin there."""
COLD_EVENTS = 300
"""Events after which it learns no more in a cold demo."""
TWINS = ("nightly", "nightly_live", "frozen")


class Twins:
    """Scores the twins on a thread of its own, which owns them; `windows` holds the results."""

    def __init__(
        self, log_folder: Path, settings: LearningSettings, num_events: int, cold: bool = False
    ) -> None:
        """log_folder: of the event log, which need not exist yet. num_events: number of edges of
        the whole stream. cold: freeze after COLD_EVENTS."""
        self._log_folder = log_folder
        self._settings = settings
        self.cut = min(COLD_EVENTS, num_events) if cold else int(FROZEN_AFTER * num_events)
        """Event id of the first edge that the frozen twin does not learn, but for its window."""
        self._stop = threading.Event()
        self.windows: list[RegimeWindow] = []
        self.edge = 0
        """Event id at which the scored windows end."""
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="twins", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the window that is being scored."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._follow()
        except BaseException as error:  # noqa: BLE001 - passed to the main thread
            self.error = error

    def _follow(self) -> None:
        """Wait for the log, then score each window once it is closed."""
        # As the trainer's: more would wait for one another while the daemon has the cores.
        torch.set_num_threads(self._settings.training.threads)
        while (log := LogReader.open(self._log_folder)) is None or not log.num_edges:
            if self._stop.wait(0.05):
                return
        regimes = Regimes(self._settings, log, TWINS, self.cut)
        while not self._stop.is_set():
            log.refresh()
            # None means that no further window is closed yet.
            window = next_window(log, self.edge, self._settings.width_us)
            if window is None:
                self._stop.wait(0.05)
                continue
            scored = regimes.window(window)
            assert scored is not None
            self.edge = window.end_edge
            self.windows.append(scored)
