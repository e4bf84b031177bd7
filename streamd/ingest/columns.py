"""Merged events to the columns of one commit: keys become dense ids, late events get the watermark as their time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamd.events import EDGE, NODE, Event, EventBatch, Key, Schema


@dataclass(frozen=True)
class Refused:
    """An event that was valid alone but has no place in the log as it is now."""

    event: Event
    reason: str
    error: str


def build_batch(
    events: Sequence[Event], keys: dict[Key, int], schema: Schema, watermark: int, max_nodes: int, late_policy: str
) -> tuple[EventBatch, int, list[Refused]]:
    """Columns for `events`, which are in log order.

    Args: keys: the log's key table; new keys are added (a commit that fails ends the process, so none is orphaned);
        watermark: newest time in the log, microseconds.
    Returns: the batch, the watermark after it, and the events left out.
    """
    src: list[int] = []
    dst: list[int] = []
    time: list[int] = []
    msg: list[Sequence[float]] = []
    labels: list[tuple[int, int, Sequence[float]]] = []
    nodes: list[tuple[int, int, int, Sequence[float]]] = []
    late: list[tuple[int, int]] = []
    new_keys: list[Key] = []
    refused: list[Refused] = []

    def node_id(key: Key) -> int:
        known = keys.get(key)
        if known is None:
            known = keys[key] = len(keys)
            new_keys.append(key)
        return known

    for e in events:
        t = e.time
        if e.kind != NODE and t < watermark:
            if late_policy == "dead_letter":
                refused.append(Refused(e, "late", f"time {t} us is behind the watermark {watermark} us"))
                continue
            t = watermark
        missing = (e.a not in keys) + (e.kind == EDGE and e.b != e.a and e.b not in keys)
        if missing and len(keys) + missing > max_nodes:
            refused.append(Refused(e, "node_limit", f"the log holds ingest.max_nodes = {max_nodes} keys"))
            continue
        a = node_id(e.a)
        if e.kind == EDGE:
            if t != e.time:
                late.append((len(src), e.time))
            src.append(a)
            dst.append(node_id(e.b))
            time.append(t)
            msg.append(e.values)
            watermark = t
        elif e.kind == NODE:
            nodes.append((a, len(src) + len(labels) + len(nodes), len(src), e.values))
        else:
            labels.append((a, t, e.values))
            watermark = t
    batch = EventBatch(
        np.array(src, np.int64), np.array(dst, np.int64), np.array(time, np.int64),
        np.array(msg, np.float32).reshape(len(src), schema.edge_feature_dim),
        np.array([x[0] for x in labels], np.int64), np.array([x[1] for x in labels], np.int64),
        np.array([x[2] for x in labels], np.float32).reshape(len(labels), schema.label_dim),
        np.array([x[0] for x in nodes], np.int64), np.array([x[1] for x in nodes], np.int64),
        np.array([x[2] for x in nodes], np.int64),
        np.array([x[3] for x in nodes], np.float32).reshape(len(nodes), schema.node_feature_dim),
        tuple(new_keys), tuple(x[0] for x in late), tuple(x[1] for x in late))
    return batch, watermark, refused
