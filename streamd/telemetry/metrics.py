"""Every metric that streamd exports, in the registry of the role that measures it. Metrics of a
replicated log are in `replica_metrics.py`, those of the scoring role in `score_metrics.py`.

`docs/metrics.md` lists them by role; a test compares the two.
"""

import platform
from collections.abc import Iterable
from importlib.metadata import version

from prometheus_client import Counter, Histogram

import streamd.telemetry.replica_metrics  # noqa: F401 - every role exports those of its registry
from streamd import __version__
from streamd.telemetry.gauge import Gauge
from streamd.telemetry.registries import (
    ARCHIVE,
    INGEST,
    MODEL,
    SERVE,
    TRAIN,
)
from streamd.telemetry.registries import OWNED as OWNED
from streamd.telemetry.registries import exported_by as exported_by
from streamd.telemetry.score_metrics import FRESH

# Bounds of the histograms' buckets, in seconds.
FAST = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.125, 0.25, 0.5, 1, 2, 5)
"""For commits and requests, which take milliseconds; up to the default deadline of 5 s."""
SLOW = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
"""For windows and swaps, which take from milliseconds to minutes."""

# Of every role.
build_info = Gauge(
    "streamd_build_info",
    "1, with the versions of streamd, Python and torch as labels",
    ["version", "python", "torch"],
)

# Of ingest: events, rejected events, and commits.
events = Counter("streamd_events", "Events appended to the log", ["kind"], registry=INGEST)
ingest_bytes = Counter("streamd_ingest_bytes", "Bytes of Kafka values read", registry=INGEST)
dead_letters = Counter(
    "streamd_dead_letters", "Events that ingest rejected", ["reason"], registry=INGEST
)
skipped = Counter(
    "streamd_skipped_events",
    "Records of a mapped topic that match no rule of its source",
    ["topic"],
    registry=INGEST,
)
dropped = Counter(
    "streamd_dropped_events",
    "Events of a mapped topic that its source drops, by reason",
    ["topic", "reason"],
    registry=INGEST,
)
odd_events = Gauge(
    "streamd_odd_events",
    "1 if valid events were suspicious since the start; the role's log has the details",
    ["kind"],
    registry=INGEST,
)
odd_timestamps = Counter(
    "streamd_odd_timestamps",
    "Records whose Kafka timestamp cannot be milliseconds; it is ignored",
    registry=INGEST,
)
clamped = Counter(
    "streamd_clamped_events", "Late events that got the watermark as their time", registry=INGEST
)
idle_windows = Counter(
    "streamd_idle_windows_closed",
    "Windows closed after ingest.idle_timeout_seconds without events",
    registry=INGEST,
)
commit_seconds = Histogram(
    "streamd_commit_seconds", "Seconds of one commit to disk", buckets=FAST, registry=INGEST
)
last_commit = Gauge(
    "streamd_last_commit_timestamp_seconds", "Wall time of the newest commit", registry=INGEST
)
watermark = Gauge(
    "streamd_watermark_timestamp_seconds",
    "Event time up to which the log is complete",
    registry=INGEST,
)
# Of ingest: lag, and records that Kafka lost.
lag = Gauge(
    "streamd_lag_records",
    "Records between the log and the partition's end",
    ["topic", "partition"],
    registry=INGEST,
)
lag_seconds = Gauge(
    "streamd_lag_seconds",
    "Age of the newest record read of a partition with more to read",
    ["topic", "partition"],
    registry=INGEST,
)
silent_partitions = Counter(
    "streamd_silent_partitions",
    "Times that a partition with more records sent none for 5 s, after which the others "
    "continued without it",
    ["topic", "partition"],
    registry=INGEST,
)
topic_missing = Gauge(
    "streamd_topic_missing",
    "1 while Kafka does not have the topic, else 0",
    ["topic"],
    registry=INGEST,
)
clock_behind = Gauge(
    "streamd_clock_behind_log_seconds",
    "Lead of the log's newest event over the wall clock while ingest waits for the clock, else 0",
    registry=INGEST,
)
first_times_held = Gauge(
    "streamd_first_times_held",
    "1 while the first commit of a log is held, because all times look like another unit, else 0",
    registry=INGEST,
)
schema_registry_away = Gauge(
    "streamd_schema_registry_away", "1 while ingest waits for the registry, else 0", registry=INGEST
)
schema_requests = Counter(
    "streamd_schema_requests", "Requests for schemas to the registry", ["outcome"], registry=INGEST
)
gaps = Counter("streamd_data_gaps", "Gaps skipped by on_data_loss: continue", registry=INGEST)
lost_records = Counter(
    "streamd_lost_records", "Offsets in those gaps, if their number is known", registry=INGEST
)
# Of ingest: the log on disk, its retention and compaction.
log_edges = Gauge("streamd_log_edges", "Id of the next edge of the log", registry=INGEST)
log_first_edge = Gauge(
    "streamd_log_first_edge", "Id of the oldest edge in the log", registry=INGEST
)
log_bytes = Gauge("streamd_log_bytes", "Disk blocks of the log's segments", registry=INGEST)
log_file_bytes = Gauge(
    "streamd_log_file_bytes",
    "Bytes of a file of the log other than its segments, such as keys or node features",
    ["file"],
    registry=INGEST,
)
journal_files = Gauge(
    "streamd_journal_files", "Files of the journal; each segment begins a new one", registry=INGEST
)
retention_blocked = Gauge(
    "streamd_retention_blocked_bytes", "Bytes due that a role still needs", registry=INGEST
)
leases_run_out = Counter(
    "streamd_leases_run_out",
    "Leases that ended because their server had not run for holds.lease_seconds",
    registry=INGEST,
)
housekeeping_errors = Counter(
    "streamd_housekeeping_errors", "Failures of housekeeping", ["work"], registry=INGEST
)
housekeeping_failing = Gauge(
    "streamd_housekeeping_failing", "1 while it fails, else 0", ["work"], registry=INGEST
)
compacted_edges = Counter("streamd_compacted_edges", "Deleted edges overwritten", registry=INGEST)

# Of the trainer: the windows and their scores.
windows = Counter("streamd_windows", "Windows finished by the trainer", ["outcome"], registry=TRAIN)
window_seconds = Histogram(
    "streamd_window_seconds",
    "Seconds to score and train on one window",
    ["phase"],
    buckets=SLOW,
    registry=TRAIN,
)
window_mrr = Gauge(
    "streamd_window_mrr", "Prequential MRR of the newest window", ["model"], registry=TRAIN
)
mlflow_waiting = Gauge(
    "streamd_mlflow_waiting_windows", "Windows not sent to MLflow yet", registry=TRAIN
)
edge_set_mrr = Gauge(
    "streamd_edge_set_mrr",
    "Prequential MRR of an edge set's events in the newest window with any, with several edge sets",
    ["edge_set", "model"],
    registry=TRAIN,
)
edge_set_scored = Counter(
    "streamd_edge_set_scored_events_total",
    "Scored events of each edge set, with several edge sets",
    ["edge_set"],
    registry=TRAIN,
)
window_mrr_known = Gauge(
    "streamd_window_mrr_known",
    "Prequential MRR of the newest window, over events with a known destination",
    ["model"],
    registry=TRAIN,
)
recurrence = Gauge(
    "streamd_recurrence_ratio",
    "Share of the newest window's scored events with a pair that had an event before",
    registry=TRAIN,
)
edge_set_recurrence = Gauge(
    "streamd_edge_set_recurrence_ratio",
    "The same share for an edge set's events in the newest window with any, with several edge sets",
    ["edge_set"],
    registry=TRAIN,
)
window_ap = Gauge(
    "streamd_window_average_precision",
    "Prequential AP of the last window",
    ["model"],
    registry=TRAIN,
)
label_score = Gauge(
    "streamd_window_label_score",
    "Scores of the newest window's labels",
    ["model", "measure"],
    registry=TRAIN,
)
node_set_label_score = Gauge(
    "streamd_node_set_label_score",
    "Scores of a node set's labels in the newest window with any, with several node sets",
    ["node_set", "model", "measure"],
    registry=TRAIN,
)
window_loss = Gauge(
    "streamd_window_loss", "Mean loss of the newest window's last epoch", registry=TRAIN
)
window_surprise = Gauge(
    "streamd_window_surprise",
    "Standard deviations of the newest window's MRR below the mean of the 100 windows before",
    registry=TRAIN,
)
below_rule = Gauge(
    "streamd_below_rule",
    "1 if the newest 24 windows rank below the best rule by more than chance explains",
    registry=TRAIN,
)
trained_until = Gauge(
    "streamd_trained_until_timestamp_seconds",
    "Event time up to which the trainer has trained on windows",
    registry=TRAIN,
)
# Of the trainer: the gate, forgetting and replay, and versions.
nightly_difference = Gauge(
    "streamd_nightly_mrr_difference",
    "MRR of the served version minus that of the nightly baseline, over the same events of "
    "the newest window with a known destination",
    registry=TRAIN,
)
nightly_bytes = Gauge(
    "streamd_nightly_twin_bytes",
    "Bytes of the nightly baseline's facts: mapped from a file, and in memory",
    ["where"],
    registry=TRAIN,
)
gate_difference = Gauge(
    "streamd_gate_mrr_difference",
    "MRR of champions minus that of the last proven version, over events with a known "
    "destination so far",
    registry=TRAIN,
)
gate_events = Gauge(
    "streamd_gate_events", "Events so far compared with the last proven version", registry=TRAIN
)
gate_verdicts = Counter(
    "streamd_gate_verdicts",
    "Verdicts of comparisons with the last proven version",
    ["verdict"],
    registry=TRAIN,
)
past_mrr = Gauge(
    "streamd_past_mrr",
    "MRR among 11 of the present weights on a fixed sample of past events: a measure of forgetting",
    registry=TRAIN,
)
replay_events = Gauge("streamd_replay_events", "Events in the replay store", registry=TRAIN)
versions = Counter("streamd_versions", "Model versions written", ["promoted"], registry=TRAIN)

# Of the server: requests and their answers.
requests = Counter(
    "streamd_requests", "HTTP requests answered", ["route", "status"], registry=SERVE
)
request_seconds = Histogram(
    "streamd_request_seconds", "Seconds to an answer", ["route"], buckets=FAST, registry=SERVE
)
score_slo = Gauge(
    "streamd_score_slo_seconds",
    "Target for the p99 of /v1/score: telemetry.score_slo_seconds",
    registry=SERVE,
)
recommend_recall = Histogram(
    "streamd_recommend_recall",
    "Share of the exact best k nodes that a recommendation contains",
    buckets=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1),
    registry=SERVE,
)
engine_seconds = Histogram(
    "streamd_engine_seconds",
    "Seconds of a request waiting for the engine, and computing",
    ["phase"],
    buckets=FAST,
    registry=SERVE,
)
queue_requests = Gauge("streamd_queue_requests", "Requests waiting for the engine", registry=SERVE)
waiting_requests = Gauge(
    "streamd_waiting_requests",
    "Requests waiting until the server has the position in their streamd-after",
    registry=SERVE,
)
complete_until = Gauge(
    "streamd_complete_until_timestamp_seconds",
    "Wall time up to which answers include all events of Kafka",
    registry=SERVE,
)
ready = Gauge("streamd_ready", "1 if the server is ready, as in `/readyz`, else 0", registry=SERVE)
event_to_answer_seconds = Histogram(
    "streamd_event_to_answer_seconds",
    "Seconds from a commit of events to disk until the server's graph has them",
    buckets=FRESH,
    registry=SERVE,
)
# Of the server: its connections.
connections = Gauge("streamd_connections", "Open connections of the server", registry=SERVE)
connections_refused = Counter(
    "streamd_connections_refused",
    "Connections answered 503 because there were too many",
    ["reason"],
    registry=SERVE,
)
# Of the server: the served version, and swaps of versions.
seen_edges = Gauge(
    "streamd_served_edges", "Edges of the log that the server has applied", registry=SERVE
)
memory_lag = Gauge(
    "streamd_memory_lag_edges", "Applied edges that memory has not advanced over", registry=SERVE
)
caught_up_at = Gauge(
    "streamd_caught_up_timestamp_seconds",
    "Wall time at which the server's graph and memory last had all of the log",
    registry=SERVE,
)
role_refused = Gauge(
    "streamd_role_refused",
    "1 if another role stopped because of invalid data and is not restarted; `/readyz` has "
    "the reason",
    ["refused"],
    registry=SERVE,
)
champion_not_served = Gauge(
    "streamd_champion_not_served",
    "1 if the champion cannot be served, and the last proven version or the rule answers",
    registry=SERVE,
)
swaps = Counter("streamd_swaps", "Model versions swapped in", registry=SERVE)
swap_seconds = Histogram(
    "streamd_swap_seconds",
    "Seconds from finding a version to serving it",
    buckets=SLOW,
    registry=SERVE,
)
# Of the archive: the store, and how much of the changelog it truncates.
manifest_at = Gauge(
    "streamd_manifest_timestamp_seconds",
    "Wall time of the newest manifest that this process wrote to the store",
    registry=ARCHIVE,
)
manifest_seq = Gauge(
    "streamd_manifest_seq", "Commit of the newest manifest in the store", registry=ARCHIVE
)
archive_rounds = Counter(
    "streamd_archive_rounds",
    "Rounds of the archive: stored a manifest, or failed",
    ["outcome"],
    registry=ARCHIVE,
)
archive_bytes = Counter("streamd_archive_bytes", "Bytes sent to the store", registry=ARCHIVE)
archive_held = Gauge(
    "streamd_archive_held_bytes",
    "Disk space of dropped or replaced files that an upload in progress still reads",
    registry=ARCHIVE,
)
changelog_records = Gauge(
    "streamd_changelog_records",
    "Offsets of the changelog; they grow while the store is unreachable",
    registry=ARCHIVE,
)
compaction_waits_since = Gauge(
    "streamd_compaction_waits_since_timestamp_seconds",
    "Wall time of the newest compaction while store or changelog may still have removed "
    "data, else 0",
    registry=ARCHIVE,
)
# Of trainer and server: graph and device.
rebuild_ratio = Gauge(
    "streamd_rebuild_ratio",
    "Share of the log that graph and facts have while a role builds them, as at start; 1 when done",
    registry=MODEL,
)
graph_bytes = Gauge(
    "streamd_graph_bytes", "Memory of the graph, without offloaded events", registry=MODEL
)
nodes = Gauge("streamd_nodes", "Nodes in the log, deleted ones included", registry=MODEL)
pairs = Gauge("streamd_pairs", "Pairs of nodes with stored facts", registry=MODEL)
memory_bytes = Gauge(
    "streamd_memory_bytes",
    "Memory of the nodes' states, for all versions that the role has loaded",
    registry=MODEL,
)
graph_events_read_back = Counter(
    "streamd_graph_events_read_back",
    "Events read back from the log for queries that needed offloaded ones",
    registry=MODEL,
)
gpu_in_use = Gauge("streamd_device_cuda", "1 if the model runs on CUDA, 0 on a CPU", registry=MODEL)
gpu_placement = Gauge(
    "streamd_gpu_placement",
    "1 for the placement of the graph's entries: resident on the GPU, or hybrid",
    ["placement"],
    registry=MODEL,
)
gpu_graph_bytes = Gauge("streamd_gpu_graph_bytes", "GPU memory of the graph", registry=MODEL)
gpu_memory = Gauge("streamd_gpu_memory_bytes", "GPU memory of the role's tensors", registry=TRAIN)
gpu_transfer_bytes = Counter(
    "streamd_gpu_transfer_bytes", "Bytes sent to the GPU and back", ["direction"], registry=MODEL
)
gpu_kernel_seconds = Counter(
    "streamd_gpu_kernel_seconds",
    "GPU seconds in streamd's kernels: sampling, and writes of rows into the graph",
    ["kernel"],
    registry=MODEL,
)
gpu_steps = Counter(
    "streamd_gpu_steps",
    "Training steps on the GPU: replayed as one CUDA graph, or launched kernel by kernel",
    ["how"],
    registry=TRAIN,
)
gpu_cache_rows = Counter(
    "streamd_gpu_cache_rows",
    "Feature rows requested from the GPU's cache",
    ["result"],
    registry=TRAIN,
)


def begin_at_zero(counter: Counter, values: Iterable[str]) -> None:
    """Export a counter at 0 for each known value of its label.

    Prometheus does not count the first value of a series as an increase, so the first event would
    be missed.
    """
    for value in values:
        counter.labels(value)


begin_at_zero(events, ("edge", "label", "node", "delete"))
begin_at_zero(schema_requests, ("found", "unknown", "refused", "failed"))
begin_at_zero(windows, ("learned", "unscored", "left_out"))
begin_at_zero(gate_verdicts, ("proven", "worse"))
begin_at_zero(versions, ("true", "false"))
begin_at_zero(archive_rounds, ("stored", "failed"))


def export_build_info() -> None:
    """Export the versions of the running software; torch's is read without importing it."""
    build_info.labels(__version__, platform.python_version(), version("torch")).set(1)


def clamped_total() -> float:
    """The number of late events that this process clamped."""
    return float(clamped._value.get())
