"""The baselines of the live model: the models that a user would have without live training.

While the demo plays, they are scored on the same negatives in the demo's own process, on each
window of the log once it is closed.
"""

import threading
from pathlib import Path

import torch

from streamd.evaluation.regimes import Regimes, RegimeWindow
from streamd.eventlog.reader import LogReader
from streamd.training.learning_settings import LearningSettings
from streamd.windows import next_window

FROZEN_AFTER = 0.3
"""Share of the events after which the frozen baseline is no longer trained; the totals of the table
start there."""
COLD_EVENTS = 300
"""Number of events after which it is no longer trained in a cold demo."""
BASELINES = ("nightly", "nightly_live", "frozen")


class Baselines:
    """Scores the baselines on its own thread, which owns them; `windows` has the results. Owner:
    the demo."""

    def __init__(
        self, log_folder: Path, settings: LearningSettings, num_events: int, cold: bool = False
    ) -> None:
        """log_folder: of the event log, which may not exist yet. num_events: number of events of
        the whole stream. cold: freeze after COLD_EVENTS."""
        self._log_folder = log_folder
        self._settings = settings
        self.cut = min(COLD_EVENTS, num_events) if cold else int(FROZEN_AFTER * num_events)
        """Id of the event from which on the frozen baseline is not trained, except for the rest of
        its window."""
        self._stop = threading.Event()
        self.windows: list[RegimeWindow] = []
        self.edge = 0
        """End of the scored windows: id of the first event after them."""
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="baselines", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the current window."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._follow()
        except BaseException as error:  # noqa: BLE001 - passed to the main thread
            self.error = error

    def _follow(self) -> None:
        """Wait for the log, then score each window when it is closed."""
        # As many threads as the trainer's: more would slow one another while the daemon uses the
        # cores.
        torch.set_num_threads(self._settings.training.threads)
        while (log := LogReader.open(self._log_folder)) is None or not log.num_edges:
            if self._stop.wait(0.05):
                return
        regimes = Regimes(self._settings, log, BASELINES, self.cut)
        while not self._stop.is_set():
            log.refresh()
            # None: no further window is closed yet.
            window = next_window(log, self.edge, self._settings.width_us)
            if window is None:
                self._stop.wait(0.05)
                continue
            scored = regimes.window(window)
            assert scored is not None
            self.edge = window.end_edge
            self.windows.append(scored)
