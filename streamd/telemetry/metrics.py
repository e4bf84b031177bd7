"""Every metric streamd exports, in one file; `docs/metrics.md` lists them and a test holds the two together."""

from prometheus_client import Counter, Gauge, Histogram

FAST = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.125, 0.25, 0.5, 1, 2, 5)
SLOW = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)

events = Counter("streamd_events", "Events appended to the log", ["kind"])
ingest_bytes = Counter("streamd_ingest_bytes", "Bytes of Kafka values read")
dead_letters = Counter("streamd_dead_letters", "Events that did not fit", ["reason"])
clamped = Counter("streamd_clamped_events", "Late events that got the watermark as their time")
idle_windows = Counter("streamd_idle_windows_closed", "Windows closed because nothing came for ingest.idle_timeout_seconds")
commit_seconds = Histogram("streamd_commit_seconds", "Seconds one commit took, to disk", buckets=FAST)
last_commit = Gauge("streamd_last_commit_timestamp_seconds", "Wall time of the newest commit")
watermark = Gauge("streamd_watermark_timestamp_seconds", "Event time up to which the log is complete")
lag = Gauge("streamd_lag_records", "Records between the log and the partition's end", ["topic", "partition"])
lag_seconds = Gauge("streamd_lag_seconds", "Age of the newest record read of a partition with more to read",
                    ["topic", "partition"])
silent_partitions = Counter(
    "streamd_silent_partitions",
    "Times a partition with more to read sent nothing for 5 s, so that others went on without it",
    ["topic", "partition"])
clock_behind = Gauge(
    "streamd_clock_behind_log_seconds",
    "How far the log's newest event lies ahead of the wall clock where ingest waits for that, else 0")
gaps = Counter("streamd_data_gaps", "Gaps in a partition's offsets passed over by on_data_loss: continue")
lost_records = Counter("streamd_lost_records", "Offsets in those gaps, where their number is known")
log_edges = Gauge("streamd_log_edges", "Id of the next edge of the log")
log_first_edge = Gauge("streamd_log_first_edge", "Id of the oldest edge in the log")
log_bytes = Gauge("streamd_log_bytes", "Disk blocks of the log's segments")
retention_blocked = Gauge("streamd_retention_blocked_bytes", "Bytes that retention would drop, but a role still needs")
compacted_edges = Counter("streamd_compacted_edges", "Deleted edges overwritten")
rebuild_ratio = Gauge(
    "streamd_rebuild_ratio",
    "Share of the log that graph and facts hold while a role makes them, as at start; 1 when done",
    ["role"])

windows = Counter("streamd_windows", "Windows finished by the trainer", ["outcome"])
window_seconds = Histogram("streamd_window_seconds", "Seconds to score and learn one window", ["phase"], buckets=SLOW)
window_mrr = Gauge("streamd_window_mrr", "Prequential MRR of the newest window", ["model"])
window_mrr_known = Gauge(
    "streamd_window_mrr_known", "The same over events whose destination was known before", ["model"])
window_ap = Gauge("streamd_window_average_precision", "Prequential AP of the newest window", ["model"])
label_score = Gauge("streamd_window_label_score", "Scores of the newest window's labels", ["model", "measure"])
window_loss = Gauge("streamd_window_loss", "Mean loss of the newest window's last epoch")
trained_until = Gauge("streamd_trained_until_timestamp_seconds", "Event time up to which windows are learned")
gate_difference = Gauge("streamd_gate_mrr_difference", "MRR of champions less the last proven version's, so far")
gate_events = Gauge("streamd_gate_events", "Events so far compared with the last proven version")
gate_verdicts = Counter("streamd_gate_verdicts", "What comparing with the last proven version came to", ["verdict"])
past_mrr = Gauge("streamd_past_mrr", "MRR among 11 of the present weights on a fixed part of the past: forgetting")
replay_events = Gauge("streamd_replay_events", "Events in the replay store")
versions = Counter("streamd_versions", "Model versions written", ["promoted"])

requests = Counter("streamd_requests", "HTTP requests answered", ["route", "status"])
request_seconds = Histogram("streamd_request_seconds", "Seconds from request to answer", ["route"], buckets=FAST)
recommend_recall = Histogram("streamd_recommend_recall", "Share of the best k of all nodes that a recommendation found",
                             buckets=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1))
engine_seconds = Histogram("streamd_engine_seconds", "Seconds a request waited for the engine, and its answer took",
                           ["phase"], buckets=FAST)
queue_requests = Gauge("streamd_queue_requests", "Requests waiting for the engine")
seen_edges = Gauge("streamd_served_edges", "Edges the server has taken in")
memory_lag = Gauge("streamd_memory_lag_edges", "Edges taken in that memory has not advanced over")
role_refused = Gauge(
    "streamd_role_refused", "1 where another role refused its data and is not started again; `/readyz` says why", ["role"])
champion_not_served = Gauge(
    "streamd_champion_not_served", "1 where the champion cannot be served, and the last proven version or the rule answers")
swaps = Counter("streamd_swaps", "Model versions swapped in")
swap_seconds = Histogram("streamd_swap_seconds", "Seconds from noticing a version to serving it", buckets=SLOW)
gpu_in_use = Gauge("streamd_device_cuda", "1 where the model runs on CUDA, 0 on CPU")
gpu_placement = Gauge("streamd_gpu_placement", "1 for where the graph's entries are: resident on the GPU, or hybrid",
                      ["placement"])
gpu_graph_bytes = Gauge("streamd_gpu_graph_bytes", "GPU memory that the graph takes")
gpu_memory = Gauge("streamd_gpu_memory_bytes", "GPU memory that the role's tensors take")
gpu_transfer_bytes = Counter("streamd_gpu_transfer_bytes", "Bytes sent to the GPU and back", ["direction"])
gpu_kernel_seconds = Counter("streamd_gpu_kernel_seconds", "Seconds of the GPU in sampling kernels", ["kernel"])
gpu_cache_rows = Counter("streamd_gpu_cache_rows", "Feature rows asked of the cache on the GPU", ["result"])


def clamped_total() -> float:
    """Value of the clamped counter in this process."""
    return float(clamped._value.get())
