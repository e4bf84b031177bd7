"""The metrics of trials."""

from prometheus_client import Counter, Gauge

from streamd.telemetry.registries import SERVE, TRIAL

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
fallbacks = Counter(
    "streamd_trial_fallbacks",
    "Answers of the champion in an arm without its version",
    ["arm"],
    registry=SERVE,
)
# Of the trial role: the figures of its report.
units = Gauge(
    "streamd_trial_units",
    "Units of the trial with an impression that counts",
    ["arm"],
    registry=TRIAL,
)
outcomes = Gauge("streamd_trial_outcomes", "Outcomes of these units", ["arm"], registry=TRIAL)
value = Gauge("streamd_trial_value", "Sum of the values of these outcomes", ["arm"], registry=TRIAL)
difference = Gauge(
    "streamd_trial_difference",
    "Value a unit minus that of the champion; absent while it is too early",
    ["arm"],
    registry=TRIAL,
)
radius = Gauge(
    "streamd_trial_difference_radius",
    "Half the width of the interval of the difference",
    ["arm"],
    registry=TRIAL,
)
mismatch = Gauge(
    "streamd_trial_ratio_mismatch",
    "1 if the arms' numbers of units contradict their shares, else 0",
    registry=TRIAL,
)
uncounted = Gauge(
    "streamd_trial_uncounted", "Records and events that do not count", ["reason"], registry=TRIAL
)
behind = Gauge(
    "streamd_trial_behind_events", "Events of the log that are not joined yet", registry=TRIAL
)
