"""How many events a second the server takes in, and how long after their commit it shows them."""

from collections import deque

from streamd.telemetry import metrics

RATE_SECONDS = 10
"""Long enough that a rate of one event every few seconds is not always zero, short enough to follow
with the eye."""


class EventRate:
    """Edges a second over the last RATE_SECONDS, from samples a second apart. Owner: the engine,
    which takes them."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_SECONDS + 1)
        self.per_second = 0.0

    def note(self, now: float, edge: int) -> None:
        """Say how many edges there are; now: seconds of a clock that never goes back."""
        if self._samples and now - self._samples[-1][0] < 1.0:
            return
        self._samples.append((now, edge))
        then, before = self._samples[0]
        self.per_second = round((edge - before) / (now - then), 1) if now > then else 0.0


class Freshness:
    """Measures `streamd_event_to_answer_seconds`. Owner: the engine."""

    def __init__(self) -> None:
        self._noticed = 0
        self._hidden: deque[tuple[int, float]] = deque()
        """Ends of what was committed and is not shown, and the wall times of their commits."""

    def notice(self, num_edges: int, committed: float, ready: bool) -> None:
        """Say how many edges are committed, and when the newest commit was; what lay there before
        `ready` is no news."""
        if ready and num_edges > self._noticed:
            self._hidden.append((num_edges, committed))
        self._noticed = num_edges

    def show(self, edge: int, now: float) -> None:
        """Say that the graph has the edges below this id; now: wall time."""
        while self._hidden and self._hidden[0][0] <= edge:
            metrics.event_to_answer_seconds.observe(max(0.0, now - self._hidden.popleft()[1]))
