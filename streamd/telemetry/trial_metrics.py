"""The metrics of trials."""

from prometheus_client import Counter

from streamd.telemetry.registries import SERVE

# Of a server in a trial.
impressions_written = Counter(
    "streamd_impressions_written",
    "Impressions of the trial that its topic acknowledged, by arm",
    ["arm"],
    registry=SERVE,
)
impressions_lost = Counter(
    "streamd_impressions_lost",
    "Impressions of the trial that its topic did not get, by reason",
    ["reason"],
    registry=SERVE,
)
