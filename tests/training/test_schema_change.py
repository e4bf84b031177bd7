"""Learning goes on where a log gets further sets and features."""

import dataclasses
import threading

import numpy as np
import pytest
import torch

from streamd.clock import SystemClock
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema, SetKey, empty_batch
from streamd.gpu.device import make_torch_deterministic
from streamd.registry import Registry
from streamd.schema import EdgeSet, Feature, NodeSet
from streamd.settings.loading import with_schema
from streamd.settings.paths import Paths
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.trainer import Trainer
from tests.builders import HOUR, settings, stream, write_log

X, Y = Feature("x", 1, '{"type":"number"}'), Feature("y", 1, '{"type":"number"}')
PLAIN = Schema(2, 0, 0)
EXTENDED = Schema.declared([NodeSet("default"), NodeSet("shop", 1, (X,))], [
    EdgeSet("default", feature_dim=2, features=(X, Y)), EdgeSet("buys", "default", "shop", 1, (X,))])
SRC, DST, TIME = stream(900, hours=9)
HALF = 450


def log_of(path):
    """The first half of the stream, in a log without declared sets."""
    write_log(path, SRC[:HALF], DST[:HALF], TIME[:HALF], PLAIN, segment_edges=200)
    return path


def go_on(path, schema, sets=None):
    """The second half, as events of the first set, or of the numbers given; the edges of set 1 lead to new nodes."""
    log = LogWriter(path, schema, 200)
    shops = () if sets is None else tuple(SetKey(1, n) for n in range(5))
    sets = np.zeros(len(SRC) - HALF, np.int64) if sets is None else sets
    dst = DST.copy()
    dst[HALF:][sets == 1] = log.num_nodes + DST[HALF:][sets == 1] % 5
    rng = np.random.default_rng(3)
    while (at := log.num_edges) < len(SRC):
        end = min(at + min(90, log.remaining_rows()), len(SRC))
        own = sets[at - HALF: end - HALF]
        msg = [schema.edge_rows(n, rng.normal(size=(1, c.stop - c.start)).astype(np.float32))
               for n in own.tolist() for c in [schema.all_edge_columns[n]]]
        watermark = 100 * HOUR if end == len(SRC) else int(TIME[end - 1])
        log.commit(dataclasses.replace(
            empty_batch(schema), src_E=SRC[at:end], dst_E=dst[at:end], time_E=TIME[at:end], msg_ED=np.concatenate(msg),
            new_keys=shops if at == HALF else ()), Progress(), watermark)
    log.close()


def trainer_of(path, name):
    log = LogReader.open(path)
    s = with_schema(settings(path, model__name=name, stream__edge_feature_dim=2, registry__gate_events=50), log.state.schema)
    return Trainer(s, Paths.of(s, "train"), "cpu", log, Registry.of(s), SystemClock(), Heartbeat(path, "train"))


def learn(trainer, limit=99):
    records = []
    while len(records) < limit and (due := trainer.due()):
        records.append(trainer.process(due[0]))
    return records


@pytest.mark.parametrize("name", ["tgn", "sage", "pair"])
def test_what_is_learned_after_a_schema_change_goes_on_from_what_was_learned_before(tmp_path, name):
    make_torch_deterministic(1)
    left, right = log_of(tmp_path / "left"), log_of(tmp_path / "right")
    before = [learn(trainer_of(path, name)) for path in (left, right)]
    assert len(before[0]) == len(before[1]) > 2
    go_on(left, PLAIN)
    go_on(right, EXTENDED)
    one, other = trainer_of(left, name), trainer_of(right, name)
    assert other.learner.num_learned == one.learner.num_learned == len(before[0])
    assert other.edge == one.edge and other.learner.replay.num_events == one.learner.replay.num_events > 0
    assert len(other.learner.tail) == len(one.learner.tail)

    # Events of the old set are scored as if nothing had changed, but for the next window's new weights.
    (plain,), (wide,) = learn(one, 1), learn(other, 1)
    for key in ("mrr", "ap"):
        assert abs(plain.scores["live"][key] - wide.scores["live"][key]) < 2e-3
    assert plain.scores["edgebank"] == wide.scores["edgebank"]
    assert other._versions.manifest(other.contest.version).log_schema() == EXTENDED
    assert learn(other), "windows go on, each from the checkpoint of the one before"


@pytest.mark.parametrize("name", ["tgn", "pair"])
def test_the_new_set_is_learned_and_a_restart_goes_on_with_it(tmp_path, name):
    path = log_of(tmp_path / "log")
    learn(trainer_of(path, name))
    sets = (np.arange(len(SRC) - HALF) % 3 == 0).astype(np.int64)
    go_on(path, EXTENDED, sets)
    first = trainer_of(path, name)
    learn(first, 2)
    again = trainer_of(path, name)
    assert again.learner.num_learned == first.learner.num_learned and again.learner.replay.num_events == first.learner.replay.num_events
    for n, p in again.learner.model.state_dict().items():
        torch.testing.assert_close(p, first.learner.model.state_dict()[n], msg=n)
    records = learn(again)
    assert records and again.learner.model.is_finite and records[-1].scores["live"]["mrr"] > 0.05


def test_a_trainer_stops_where_the_log_gets_another_schema(tmp_path):
    path = log_of(tmp_path / "log")
    trainer = trainer_of(path, "pair")
    LogWriter(path, EXTENDED, 200).close()
    stop = threading.Event()
    trainer.run(stop)
    assert not stop.is_set() and trainer.log.superseded and trainer.log.state.schema == PLAIN
