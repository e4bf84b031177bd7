"""A Prometheus gauge that is absent until it has a value."""

import math
from collections.abc import Iterable
from typing import Any

import prometheus_client
from prometheus_client import Metric


class Gauge(prometheus_client.Gauge):
    """A gauge that is absent until it is set, and while it is NaN."""

    def __init__(
        self, name: str, documentation: str, labelnames: Iterable[str] = (), **more: Any
    ) -> None:
        super().__init__(name, documentation, labelnames, **more)
        # A gauge with labels has no value itself, only its children have.
        if not labelnames or "_labelvalues" in more:
            self.set(math.nan)

    def collect(self) -> Iterable[Metric]:
        for metric in super().collect():
            metric.samples = [s for s in metric.samples if not math.isnan(s.value)]
            yield metric
