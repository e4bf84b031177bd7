"""Measures the rate of events that the server reads, and the time from an event's commit to its use
in answers."""

from collections import deque

from streamd.telemetry import metrics

RATE_SECONDS = 10
"""Period of the rate: with a shorter one, a stream of one event every few seconds would often show
a rate of 0; with a longer one, the figure on the page would lag."""


class EventRate:
    """Events per second over RATE_SECONDS, from samples a second apart. Owner: the engine."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_SECONDS + 1)
        self.per_second = 0.0

    def note(self, now: float, edge: int) -> None:
        """Add a sample. now: seconds of a monotonic clock. edge: number of events in the graph."""
        if self._samples and now - self._samples[-1][0] < 1.0:
            return
        self._samples.append((now, edge))

        # Compare with the oldest sample, which the deque drops after RATE_SECONDS.
        then, before = self._samples[0]
        self.per_second = round((edge - before) / (now - then), 1) if now > then else 0.0


class Freshness:
    """Measures the metric `streamd_event_to_answer_seconds`. Owner: the engine."""

    def __init__(self) -> None:
        self._noticed = 0
        self._awaited: deque[tuple[int, float]] = deque()
        """Commits that answers do not include yet: event id at their end, wall time of the
        commit."""

    def notice(self, num_edges: int, committed: float, ready: bool) -> None:
        """Record how many events are committed. Commits while the server is not `ready` are not
        measured.

        num_edges: event id at the end of the log. committed: wall time of the newest commit in
        seconds.
        """
        if ready and num_edges > self._noticed:
            self._awaited.append((num_edges, committed))
        self._noticed = num_edges

    def measure(self, edge: int, now: float) -> None:
        """Measure the commits that the graph has completely. edge: event id up to which the graph
        has events. now: wall time in seconds."""
        while self._awaited and self._awaited[0][0] <= edge:
            metrics.event_to_answer_seconds.observe(max(0.0, now - self._awaited.popleft()[1]))
