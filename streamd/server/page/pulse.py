"""The recent history of the server's metrics, sampled every few seconds for the page's
sparklines."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping

from prometheus_client import Histogram

from streamd.telemetry import metrics

SAMPLE_SECONDS = 5.0
"""Interval of the samples."""
NUM_SAMPLES = 120
"""Number of samples in memory: ten minutes."""
ANSWERS = ("/v1/score", "/v1/recommend", "/v1/explain", "/v1/embeddings", "/v1/labels", "/v2/")
"""Prefixes of the routes with sampled durations."""
Buckets = dict[float, float]
"""Upper bound of a histogram's bucket -> number of observations at or below it."""


class Pulse:
    """Samples of the server's metrics in the last ten minutes. Owner: the event loop's thread."""

    def __init__(self, rate: Callable[[], float], lag: Callable[[], float | None]) -> None:
        """rate: returns the events that the server reads per second. lag: returns the lag of
        answers in seconds, None if unknown."""
        self._rate = rate
        self._lag = lag
        self._samples: deque[dict[str, float | None]] = deque(maxlen=NUM_SAMPLES)
        self._requests = buckets_of(metrics.request_seconds, ANSWERS)
        self._fresh = buckets_of(metrics.event_to_answer_seconds)

    def content(self) -> dict[str, list[float | None]]:
        """Name of a series -> one value for each sample, oldest first, None if nothing was
        measured. Times are in milliseconds, except `time` (seconds since 1970) and
        `lag_seconds`."""
        names = self._samples[0] if self._samples else {}
        return {name: [sample[name] for sample in self._samples] for name in names}

    def sample(self) -> None:
        """Append a sample: of histograms, the observations since the last sample."""
        requests = buckets_of(metrics.request_seconds, ANSWERS)
        fresh = buckets_of(metrics.event_to_answer_seconds)
        # A histogram counts since the start, so take the difference of two readings.
        answers = less(requests, self._requests)
        shown = less(fresh, self._fresh)
        self._requests, self._fresh = requests, fresh
        self._samples.append(
            {
                "time": round(time.time(), 1),
                "events_per_second": self._rate(),
                "lag_seconds": self._lag(),
                "answers_per_second": max(answers.values(), default=0.0) / SAMPLE_SECONDS,
                "p50_ms": _ms(quantile(answers, 0.5)),
                "p99_ms": _ms(quantile(answers, 0.99)),
                "event_to_answer_ms": _ms(quantile(shown, 0.5)),
            }
        )


def buckets_of(histogram: Histogram, routes: tuple[str, ...] = ("",)) -> Buckets:
    """Observations of a histogram by upper bound, summed over its labels. routes: prefixes of the
    label `route`; series of other routes are left out."""
    out: Buckets = {}
    for family in histogram.collect():
        for sample in family.samples:
            counts = sample.labels.get("route", "").startswith(routes)
            if counts and sample.name.endswith("_bucket"):
                bound = float(sample.labels["le"])
                out[bound] = out.get(bound, 0.0) + sample.value
    return out


def less(now: Mapping[float, float], before: Mapping[float, float]) -> Buckets:
    """The observations between two readings of a histogram."""
    return {bound: count - before.get(bound, 0.0) for bound, count in now.items()}


def quantile(buckets: Buckets, share: float) -> float | None:
    """Estimate a quantile by linear interpolation within a bucket, as Prometheus'
    histogram_quantile. share: 0.5 for the median. Returns: None without observations; the largest
    finite bound if the quantile is above it."""
    total = max(buckets.values(), default=0.0)
    if total <= 0:
        return None
    wanted = share * total
    below, before = 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= wanted:
            if math.isinf(bound):
                # The last bucket has no finite upper bound.
                return below
            return below + (bound - below) * (wanted - before) / max(count - before, 1e-9)
        below, before = bound, count
    return below


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 2)
