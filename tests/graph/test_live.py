"""The live graph of a role: what is offloaded, and directions, with deletes."""

import dataclasses

import numpy as np
import pytest

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.graph import BlockGraph, Draw, live
from streamd.graph.live import LiveGraph, read_back
from streamd.telemetry import metrics
from tests.builders import HOUR, batch, settings, stream
from tests.graph.drawing import rows, wanted
from tests.readings import reading

GONE_NODE, GONE_EVENTS = 3, (40, 900, 1500)


@pytest.fixture
def log(tmp_path):
    """2,000 events over six hours in segments of 512; then a node and three events are deleted."""
    src, dst, time = stream(2_000)
    writer = LogWriter(tmp_path, Schema(), 512)
    at = 0
    while at < 2_000:
        end = min(at + min(300, writer.remaining_rows()), 2_000)
        keys = [f"n:{i}" for i in range(35)] if at == 0 else ()
        writer.commit(batch(Schema(), src[at:end], dst[at:end], time[at:end], keys), Progress(), int(time[end - 1]))
        at = end
    deletes = np.zeros(1 + len(GONE_EVENTS), DELETION)
    deletes["src"] = [GONE_NODE, *src[list(GONE_EVENTS)]]
    deletes["dst"] = [-1, *dst[list(GONE_EVENTS)]]
    deletes["time"] = [-1, *time[list(GONE_EVENTS)]]
    yield tmp_path, writer, deletes, (src, dst, time)
    writer.close()


def filled(path, direction, keep_us=0):
    reader = LogReader.open(path)
    graph = BlockGraph(0, 8, (direction,), read_back(reader))
    view = LiveGraph(reader, graph, settings(path).model, keep_us)
    for end in range(100, 2_001, 100):
        view.insert(end)
    return view


@pytest.mark.parametrize("direction", ["both", "out", "in"])
def test_a_graph_that_offloads_answers_as_one_that_keeps_everything(log, direction, monkeypatch):
    monkeypatch.setattr(live, "OFFLOAD_EVENTS", 100)
    path, writer, deletes, (src, dst, time) = log
    plain, small = filled(path, direction), filled(path, direction, HOUR)
    assert small.graph.num_bytes < plain.graph.num_bytes
    read_before = reading(metrics.graph_events_read_back)

    def compare(hidden):
        roots = np.arange(-1, 36)
        for draw in (Draw(fanout=6, direction=direction), Draw(fanout=4, direction=direction, strategy="uniform", seed=1)):
            for before in (2_000, 1_000, 37):
                want = wanted(src, dst, roots, 0, before, draw, hidden)
                assert rows(plain.graph.sample(roots, 0, before, draw)) == want
                assert rows(small.graph.sample(roots, 0, before, draw)) == want

    compare(())
    assert reading(metrics.graph_events_read_back) > read_before
    small.graph.offload(1_800)
    writer.commit(dataclasses.replace(empty_batch(Schema()), deletions_X=deletes), Progress(), writer.watermark)
    for view in (plain, small):
        assert view.log.refresh().has_deletes and not view.log.refresh()
    twins = [e for d in GONE_EVENTS for e in range(2_000) if (src[e], dst[e], time[e]) == (src[d], dst[d], time[d])]
    hidden = set(twins) | set(np.flatnonzero((src == GONE_NODE) | (dst == GONE_NODE)).tolist())
    compare(hidden)
