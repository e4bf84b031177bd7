"""What a user would have otherwise: twins of the live model, scored on the same negatives while the
demo plays.

They read the log as it grows, each window after it closed, in the demo's own process.
"""

import threading

from streamd.evaluation.regimes import Regimes, RegimeWindow
from streamd.segments.reader import LogReader
from streamd.settings import Settings
from streamd.windows import next_window

FROZEN_AFTER = 0.3
TWINS = ("nightly", "nightly_live", "frozen")


class Twins:
    """Owner of the regimes beside the live one, on its one thread; results appear in `windows`."""

    def __init__(self, settings: Settings, num_events: int) -> None:
        """num_events: how many edges the stream will have in all."""
        self._settings = settings
        self.cut = int(FROZEN_AFTER * num_events)
        """First edge after the first 30% of events."""
        self._stop = threading.Event()
        self.windows: list[RegimeWindow] = []
        self.edge = 0
        """End of the windows that are scored."""
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="twins", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._follow()
        except BaseException as error:  # noqa: BLE001 - told to the main thread, which ends the demo
            self.error = error

    def _follow(self) -> None:
        while (log := LogReader.open(self._settings.data_dir)) is None or not log.num_edges:
            if self._stop.wait(0.05):
                return
        regimes = Regimes(self._settings, log, TWINS, self.cut)
        while not self._stop.is_set():
            log.refresh()
            window = next_window(log, self.edge, self._settings.windows.width_seconds * 1_000_000)
            if window is None:
                self._stop.wait(0.05)
                continue
            scored = regimes.window(window)
            assert scored is not None
            self.edge = window.end_edge
            self.windows.append(scored)
