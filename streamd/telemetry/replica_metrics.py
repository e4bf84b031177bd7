"""The metrics of a replicated log: changelog, followers and the models topic."""

from prometheus_client import Counter

from streamd.telemetry.gauge import Gauge
from streamd.telemetry.registries import FOLLOW, INGEST, MEMBER, TRAIN

# Of every role that reads one of the topics.
stray_records = Counter(
    "streamd_stray_records",
    "Records in the log's own topics that streamd did not write; they are skipped",
    ["topic"],
)

# Of ingest and follow: the changelog, which replicates the log to other machines.
changelog_seq = Gauge(
    "streamd_changelog_seq", "Newest commit that the changelog acknowledged", registry=INGEST
)
changelog_waiting = Gauge(
    "streamd_changelog_waiting_commits",
    "Durable commits that the changelog has not acknowledged",
    registry=INGEST,
)
changelog_bytes = Counter("streamd_changelog_bytes", "Bytes sent to the changelog", registry=INGEST)
leader_term = Gauge(
    "streamd_leader_term", "Newest leader's term that this member has seen", registry=MEMBER
)
leads = Gauge(
    "streamd_leads",
    "1 while this member is the leader; 0 while it follows, or brokers acknowledge none of "
    "its heartbeats",
    registry=MEMBER,
)
FOLLOW_REASONS = ("broker", "leader", "manifest", "store", "disk", "lock")
"""Reasons for which a follower applies nothing: the metric's label, and the end of the heartbeat's
state."""
follow_seq = Gauge("streamd_follow_seq", "Newest commit that is visible here", registry=FOLLOW)
follow_lag_records = Gauge(
    "streamd_follow_lag_records", "Records of the changelog not applied yet", registry=FOLLOW
)
follow_caught_up = Gauge(
    "streamd_follow_caught_up_timestamp_seconds",
    "Wall time at which this machine last had all of the changelog",
    registry=FOLLOW,
)
follow_commits = Counter("streamd_follow_commits", "Commits applied", registry=FOLLOW)
follow_bytes = Counter("streamd_follow_bytes", "Bytes of records applied", registry=FOLLOW)
follow_bootstraps = Counter(
    "streamd_follow_bootstraps", "Starts from a manifest of the store", registry=FOLLOW
)
follow_waiting = Gauge(
    "streamd_follow_waiting",
    "1 while the follower cannot apply records, by reason",
    ["why"],
    registry=FOLLOW,
)
cannot_lead = Gauge(
    "streamd_cannot_lead",
    "1 while a standby cannot become the leader, by reason",
    ["why"],
    registry=FOLLOW,
)

# Of the models topic, for its writer and its readers.
models_waiting = Gauge(
    "streamd_models_waiting",
    "Versions, moves and window records that the models topic does not have yet",
    registry=TRAIN,
)
models_published = Gauge(
    "streamd_models_published_timestamp_seconds",
    "Wall time at which the models topic last had all records of the trainer",
    registry=TRAIN,
)
checkpoint_stored = Gauge(
    "streamd_checkpoint_stored_timestamp_seconds",
    "Wall time at which a checkpoint was last stored",
    registry=TRAIN,
)
checkpoint_bytes = Counter(
    "streamd_checkpoint_stored_bytes", "Bytes of checkpoints sent to the store", registry=TRAIN
)
models_followed = Gauge(
    "streamd_models_followed_timestamp_seconds",
    "Wall time at which this machine last had all of the models topic",
    registry=FOLLOW,
)
models_missing = Gauge(
    "streamd_models_missing",
    "Versions and moves of the models topic that this machine does not have yet",
    registry=FOLLOW,
)
