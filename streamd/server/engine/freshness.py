"""Freshness: events a second that the server takes in, and how long after commit it shows them."""

from collections import deque

from streamd.telemetry import metrics

RATE_SECONDS = 10
"""Span of the rate. Long enough that one event every few seconds does not show as 0, short enough
to follow with the eye."""


class EventRate:
    """Events a second over RATE_SECONDS, from samples a second apart. Owner: the engine."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_SECONDS + 1)
        self.per_second = 0.0

    def note(self, now: float, edge: int) -> None:
        """Take a sample. now: seconds of a monotonic clock. edge: number of events taken in."""
        if self._samples and now - self._samples[-1][0] < 1.0:
            return
        self._samples.append((now, edge))

        # Against the oldest sample, which the deque drops after RATE_SECONDS.
        then, before = self._samples[0]
        self.per_second = round((edge - before) / (now - then), 1) if now > then else 0.0


class Freshness:
    """Measures the metric `streamd_event_to_answer_seconds`. Owner: the engine."""

    def __init__(self) -> None:
        self._noticed = 0
        self._hidden: deque[tuple[int, float]] = deque()
        """Commits that answers do not have yet: event id at their end, wall time of the commit."""

    def notice(self, num_edges: int, committed: float, ready: bool) -> None:
        """Note how many events are committed. Those committed before `ready` are not measured.

        committed: wall time of the newest commit, seconds.
        """
        if ready and num_edges > self._noticed:
            self._hidden.append((num_edges, committed))
        self._noticed = num_edges

    def measure(self, edge: int, now: float) -> None:
        """Measure the commits whose events the graph has by now: those below an id. now: wall time,
        seconds."""
        while self._hidden and self._hidden[0][0] <= edge:
            metrics.event_to_answer_seconds.observe(max(0.0, now - self._hidden.popleft()[1]))
