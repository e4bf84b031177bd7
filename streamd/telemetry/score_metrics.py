"""The metrics of the scoring role: scores and alarms in their topics, and skipped events."""

from prometheus_client import Counter, Histogram

from streamd.telemetry.gauge import Gauge
from streamd.telemetry.registries import SCORE

FRESH = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
"""Bounds of buckets in seconds, for the time until events are visible in answers or scored: finer
than those of requests around the target of one second."""

scores_written = Counter(
    "streamd_scores_written", "Scores that the score topic acknowledged", registry=SCORE
)
scores_skipped = Counter(
    "streamd_scores_skipped", "Events without a score, by reason", ["reason"], registry=SCORE
)
score_seconds = Histogram(
    "streamd_score_seconds",
    "Seconds from the commit that made an event visible until its score was acknowledged",
    buckets=FRESH,
    registry=SCORE,
)
score_behind = Gauge(
    "streamd_score_behind_events", "Visible events that are not scored yet", registry=SCORE
)
score_waiting = Gauge(
    "streamd_score_waiting_records", "Scores that the topic has not acknowledged", registry=SCORE
)
score_topic_away = Gauge(
    "streamd_score_topic_away", "1 while the score topic is unavailable, else 0", registry=SCORE
)
p_values = Histogram(
    "streamd_score_p_value",
    "P-values of scored events: the share below a bound equals the bound if they are calibrated",
    buckets=(1e-4, 1e-3, 0.01, 0.1, 0.5, 1),
    registry=SCORE,
)
alarms = Counter(
    "streamd_alarms",
    "Rare events: sent as an alarm, or repeated within the quiet time of their source",
    ["outcome"],
    registry=SCORE,
)

# Export each at 0: Prometheus does not count the first value of a series as an increase.
for _reason in (
    "no_version",
    "behind",
    "broker",
    "old",
    "deleted",
    "no_candidates",
    "not_finite",
):
    scores_skipped.labels(_reason)
for _outcome in ("sent", "repeated"):
    alarms.labels(_outcome)
