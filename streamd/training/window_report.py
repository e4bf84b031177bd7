"""The record, the metrics and the log line of each finished window."""

import math
import threading
import time
from collections.abc import Callable

import numpy as np
import structlog

from streamd.clock import Clock
from streamd.eventlog.reader import LogReader
from streamd.models.rule import NAME as RULE
from streamd.registry.candidate import PublishResult, TrainResult
from streamd.schema import Schema
from streamd.telemetry import metrics, spans
from streamd.telemetry.heartbeat import Heartbeat
from streamd.telemetry.progress import RoleProgress
from streamd.training.learner import Learner
from streamd.training.ledger import Step
from streamd.training.tally import ScoredWindow
from streamd.training.versions.shadow import Comparison
from streamd.training.window_attempts import Stopped
from streamd.windows.history import WindowRecord
from streamd.windows.novelty import recurrence

logger = structlog.get_logger()
LOGGED = {
    "learned": "window_learned",
    "unscored": "window_passed",
    "left_out": "window_left_out",
}
"""Outcome of a window -> name of its log event."""
FORGETTING_SECONDS = 10.0
"""Minimum interval of two measurements of forgetting: one takes a tenth of a small window's time,
and a replayed history closes windows faster than metrics are scraped."""


def records_of(
    step: Step,
    scored: list[ScoredWindow],
    outcome: PublishResult,
    learned: TrainResult | None,
    times: tuple[float, float, float],
    nightly_seconds: float,
    clock: Clock,
) -> list[WindowRecord]:
    """Make the record of each window of a step, and the step's spans.

    Windows that were merged with later ones name the version that scored them.

    scored: an entry for each window. outcome, learned: of the step.
    times: start of scoring, start of training, and end of both, seconds of the monotonic clock.
    nightly_seconds: the share of the nightly baseline in the time of scoring.
    clock: gives each record's time of completion.
    """
    begun_at, scored_at, done_at = times
    seconds = {
        "score": (scored_at - begun_at - nightly_seconds) / len(scored),
        "nightly": nightly_seconds / len(scored),
        "learn": (done_at - scored_at) / len(scored),
    }
    _trace(step, outcome, times)
    scored_by = step.version or RULE
    merged = PublishResult(scored_by, False, "merged with the later windows of its step")
    records = []
    for window, part in zip(step.windows, scored, strict=True):
        # The training and the publication belong to the last window.
        is_last = window is step.windows[-1]
        own = outcome if is_last else merged
        records.append(
            WindowRecord(
                start_us=window.start_us,
                end_us=window.end_us,
                first_edge=window.first_edge,
                end_edge=window.end_edge,
                num_scored=part.num_scored,
                version=own.version,
                scored_by=scored_by,
                promoted=own.promoted,
                reason=own.reason,
                scores=part.table,
                loss=learned.loss if is_last and learned and learned.finite else None,
                seconds=seconds,
                finished_at=clock.now_us() / 1e6,
                num_known=int(part.novelty.known_E.sum()),
                novelty=part.novelty.counts,
                num_late=part.num_late,
                edge_sets=part.edge_sets,
                node_sets=part.node_sets,
                mean_negatives=part.mean_negatives,
            )
        )
    return records


def report_trained_until(log: LogReader, edge: int, width_us: int) -> None:
    """Set the metric to the start of the window that holds event `edge`: all windows before it are
    finished. If the log has no such event yet, use the watermark's window instead."""
    if log.num_edges:
        next_us = log.watermark
        if edge < log.num_edges:
            next_us = int(log.time_of(np.array([edge]))[0])
        metrics.trained_until.set(next_us // width_us * width_us / 1e6)


def rebuilding(
    log: LogReader, beat: Heartbeat, stop: threading.Event | None, until_event: int
) -> Callable[[int], None]:
    """Make the progress callback of a rebuild up to `until_event`.

    It takes the event id reached so far, and raises Stopped if `stop` is set.
    """
    first = log.first_edge
    work = RoleProgress("rebuilding", metrics.rebuild_ratio)
    work.at(0, until_event - first)

    def on_slice(edge: int) -> None:
        reading = work.at(edge - first, until_event - first)
        beat.touch("rebuilding", edge=edge, **reading.fields())
        if stop is not None and stop.is_set():
            raise Stopped

    return on_slice


def _trace(step: Step, outcome: PublishResult, times: tuple[float, float, float]) -> None:
    """Add the span of a step's windows, with child spans for scoring and training."""
    made = spans.active()
    if made is None:
        return
    begun_at, scored_at, done_at = times
    first, last = step.windows[0], step.windows[-1]
    window = made.add(
        "window",
        begun_at,
        done_at,
        attributes={
            "streamd.windows": len(step.windows),
            "streamd.window.start_us": first.start_us,
            "streamd.window.end_us": last.end_us,
            "streamd.events": last.end_edge - first.first_edge,
            "streamd.version": outcome.version,
            "streamd.promoted": outcome.promoted,
        },
    )
    window.child("score", begun_at, scored_at)
    window.child("learn", scored_at, done_at)


def outcome_of(record: WindowRecord) -> str:
    """The outcome of a window, as its metric's label."""
    if record.num_scored:
        return "learned"
    return "left_out" if record.is_mostly_late else "unscored"


def report(record: WindowRecord, learner: Learner, compared: Comparison) -> None:
    """Set the metrics of a finished window and log it.

    compared: the contest's comparison after the window.
    """
    _report_scores(record, learner.model.schema)

    # State after the window.
    metrics.trained_until.set(record.end_us / 1e6)
    metrics.gate_events.set(compared.num_events)
    metrics.gate_difference.set(compared.mean if compared.num_events else math.nan)
    metrics.replay_events.set(learner.replay.num_events)
    metrics.memory_bytes.set(learner.memory.rows.pool.num_bytes)
    if not learner.ranks.is_first:
        return
    outcome = outcome_of(record)
    log = logger.warning if outcome == "left_out" else logger.info
    log(
        LOGGED[outcome],
        start=record.start_us,
        events=record.end_edge - record.first_edge,
        version=record.version,
        promoted=record.promoted,
        late=record.num_late,
        why=record.reason,
        mrr={k: round(v["mrr"], 4) for k, v in record.scores.items() if "mrr" in v},
        **_of_sets(record),
        negatives=record.mean_negatives and round(record.mean_negatives, 1),
        loss=record.loss and round(record.loss, 4),
        seconds={k: round(v, 3) for k, v in record.seconds.items()},
    )


class Forgetting:
    """Measures forgetting after a step, at most once in FORGETTING_SECONDS. Owner: the trainer."""

    def __init__(self, learner: Learner, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._learner = learner
        self._monotonic = monotonic
        self._measured_at = -math.inf

    def measure(self) -> None:
        """Set the metric if it is due. All ranks call this after the same step."""
        learner = self._learner
        now = self._monotonic()
        # Clocks of ranks differ, but all have to take part: the first rank decides.
        is_due = now - self._measured_at >= FORGETTING_SECONDS
        if not learner.num_learned or not learner.ranks.broadcast(is_due):
            return
        self._measured_at = now
        if (recall := learner.recall()) is not None:
            metrics.past_mrr.set(recall["mrr"])


def _report_scores(record: WindowRecord, schema: Schema) -> None:
    """Set the metrics of a window's own scores, overall and by set. schema: of the log."""
    metrics.windows.labels(outcome_of(record)).inc()
    for phase, seconds in record.seconds.items():
        metrics.window_seconds.labels(phase).observe(seconds)
    for name, values in record.scores.items():
        if name.startswith("labels"):
            for measure, value in values.items():
                metrics.label_score.labels(name, measure).set(value)
            continue
        metrics.window_mrr.labels(name).set(values["mrr"])
        if "mrr_known" in values:
            metrics.window_mrr_known.labels(name).set(values["mrr_known"])
        metrics.window_ap.labels(name).set(values["ap"])
    # Recurrence shows which part of the scores matters for this stream.
    if (share := recurrence([record.novelty])) is not None:
        metrics.recurrence.set(share)
    night = record.scores.get("nightly")
    if night is not None:
        live, nightly = (
            (night["mrr_live_known"], night["mrr_known"])
            if "mrr_live_known" in night
            else (night["mrr_live"], night["mrr"])
        )
        metrics.nightly_difference.set(live - nightly)

    # Metrics by edge set and by node set.
    if schema.num_edge_sets > 1:
        metrics.begin_at_zero(metrics.edge_set_scored, schema.edge_set_names)
    for edge_set, own in record.edge_sets.items():
        metrics.edge_set_scored.labels(edge_set).inc(own.num_scored)
        if (share := recurrence([own.novelty])) is not None:
            metrics.edge_set_recurrence.labels(edge_set).set(share)
        for name, values in own.scores.items():
            metrics.edge_set_mrr.labels(edge_set, name).set(values["mrr"])
    for node_set, own in record.node_sets.items():
        for name, values in own.scores.items():
            for measure, value in values.items():
                metrics.node_set_label_score.labels(node_set, name, measure).set(value)
    if record.surprise is not None:
        metrics.window_surprise.set(record.surprise)
    if record.loss is not None:
        metrics.window_loss.set(record.loss)


def _of_sets(record: WindowRecord) -> dict[str, dict[str, float]]:
    """Fields of the log line for edge sets; empty for a log with one edge set."""
    mrr = {name: round(own.scores["live"]["mrr"], 4) for name, own in record.edge_sets.items()}
    return {"mrr_of_edge_sets": mrr} if mrr else {}
