import dataclasses

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from streamd.eventlog.reader import LogReader
from streamd.events import NodeDeletes, Schema
from streamd.models import EdgeRows, Memory, build_model
from streamd.models.inference.torch_model import TorchModel
from streamd.registry.manifest import Manifest
from streamd.serving.loaded_version import LoadedVersion
from tests.builders import HOUR, settings, stream

SCHEMA = Schema(2, 0, 0)


def manifest(s, edge=0, memory_us=0):
    return Manifest(
        name="v", window_start_us=0, window_end_us=0, first_edge=0, edge=edge, seq=1, memory_us=memory_us, parent="",
        model=s.model.model_dump(mode="json"), schema={"edge_feature_dim": 2, "node_feature_dim": 0, "label_dim": 0},
        window_seconds=3600, training={}, scores={}, tail={}, loss=0.0, code="", created=0.0)


def fed_in_tails(path, tails, s, model, arrays, restart=False):
    """Memory after a log that grows by the given tails, followed after each commit as the server does."""
    import dataclasses

    from streamd.eventlog.writer import LogWriter
    from streamd.events import Progress
    from tests.builders import batch

    src, dst, time = arrays
    writer = LogWriter(path, SCHEMA, 250)
    reader = LogReader.open(path)
    served = LoadedVersion(manifest(s), TorchModel(model), model.new_memory())
    at = turn = 0
    while at < len(src):
        end = min(at + min(tails[turn % len(tails)], writer.remaining_rows()), len(src))
        mark = int(time[end - 1]) if end < len(src) else 10 * HOUR
        rows = batch(SCHEMA, src[at:end], dst[at:end], time[at:end])
        rows = dataclasses.replace(rows, msg_ED=np.stack([src[at:end] / 7, dst[at:end] / 5], 1).astype(np.float32))
        writer.commit(rows, Progress(), mark)
        at, turn = end, turn + 1
        reader.refresh()
        while served.follow(reader, reader.num_edges, reader.watermark, 3):
            pass
        if restart and turn % 5 == 0:
            kept = {k: v.clone() for k, v in served.memory.tensors().items()}
            memory = Memory.restored(kept, served.memory.edge, served.memory.now_us)
            reader = LogReader.open(path)
            served = LoadedVersion(manifest(s), TorchModel(model), memory)
    writer.close()
    return served.memory


@pytest.fixture
def model(tmp_path):
    s = settings(tmp_path)
    model = build_model(s.model, SCHEMA, 3)
    model.gap_us.fill_(7e6)
    model.edge_stats.update(torch.randn(50, 2))
    model.eval()
    return s, model


def test_memory_is_a_function_of_the_log_however_it_arrives(tmp_path, model):
    s, net = model
    arrays = stream(700)
    want = fed_in_tails(tmp_path / "600", (600,), s, net, arrays)
    assert want.edge == 700 and want.tensors()["state"].abs().max() > 0.01
    for tails in ((1,), (7,), (200,), (1, 7, 200, 600)):
        got = fed_in_tails(tmp_path / str(tails), tails, s, net, arrays)
        assert got.edge == want.edge and got.now_us == want.now_us
        for name, tensor in want.tensors().items():
            torch.testing.assert_close(got.tensors()[name][: len(tensor)], tensor[: len(got.tensors()[name])], atol=1e-5, rtol=0)


def test_memory_survives_restarts_and_swaps(tmp_path, model):
    s, net = model
    arrays = stream(700)
    want = fed_in_tails(tmp_path / "a", (37,), s, net, arrays)
    got = fed_in_tails(tmp_path / "b", (37,), s, net, arrays, restart=True)
    for name, tensor in want.tensors().items():
        torch.testing.assert_close(got.tensors()[name], tensor, atol=1e-5, rtol=0)


def test_a_restored_memory_answers_with_the_messages_that_wait(model):
    """
        4 ---1 us---> 1 -o 3 us, a self loop
        |
        +----2 us---> 2                 9, which has no event
    """
    _, net = model
    memory, nodes = net.new_memory(), torch.tensor([4, 2, 9])
    rows = EdgeRows(0, np.array([4, 4, 1]), np.array([1, 2, 1]), np.array([1, 2, 3]), np.ones((3, 2), np.float32))
    net.advance(memory, rows)
    kept = {name: tensor.clone() for name, tensor in memory.tensors().items()}
    again = Memory.restored(kept, memory.edge, memory.now_us)
    rows = again.gather(nodes, net.updated(again))
    assert torch.equal(rows, memory.gather(nodes, net.updated(memory))) and rows[:2].any(1).all()


def test_embeddings_of_a_chunk_know_the_chunk_before_but_not_their_own(model):
    """
        0 ---5 us---> 1 ---6 us---> 2        node 3 has no event
    """
    _, net = model
    rows = EdgeRows(0, np.array([0, 1]), np.array([1, 2]), np.array([5, 6]), np.ones((2, 2), np.float32))
    memory = net.new_memory()
    assert not memory.gather(torch.tensor([0, 1, 2]), net.updated(memory)).any()
    net.advance(memory, rows)
    assert not memory.tensors()["state"].any(), "messages of a chunk are applied when the next one begins"
    now = memory.gather(torch.tensor([0, 1, 2, 3, -1]), net.updated(memory))
    assert now[:3].any(1).all() and not now[3:].any()


def test_each_nodes_last_event_of_a_chunk_is_its_message(model):
    """
        4 ---1 us---> 1 -o 3 us, a self loop      features, in order of time: [0, 1], [2, 3], [4, 5]
        |
        +----2 us---> 2
    """
    _, net = model
    features = np.arange(6, dtype=np.float32).reshape(3, 2)
    memory = net.new_memory()
    net.advance(memory, EdgeRows(0, np.array([4, 4, 1]), np.array([1, 2, 1]), np.array([1, 2, 3]), features))
    assert memory.pending_node.tolist() == [1, 2, 4]
    assert memory.pending_us.tolist() == [3, 2, 2]
    assert memory.pending_features.tolist() == [[4, 5], [2, 3], [2, 3]]


def test_the_memory_update_equals_a_float64_reference(model):
    _, net = model
    memory = net.new_memory()
    rng = np.random.default_rng(0)
    for i in range(3):
        rows = EdgeRows(10 * i, rng.integers(0, 6, 10), rng.integers(0, 6, 10), np.sort(rng.integers(1, 9, 10)) * 10**6 + i * 10**7,
                        rng.normal(size=(10, 2)).astype(np.float32))
        net.advance(memory, rows)
    fast = net.updated(memory)
    import copy
    slow_net, slow = copy.deepcopy(net).double(), memory.copy()
    gru = slow_net.updater.gru
    for p, node in enumerate(slow.pending_node.tolist()):
        h = slow.tensors()["state"][node].double()
        last = int(slow.tensors()["last_us"][node])
        gaps = (int(slow.pending_us[p]) - last) / 7e6 if last > 0 else 0.0
        encoding = torch.cos(gaps * slow_net.updater.time.weight + slow_net.updater.time.bias)
        stats = net.edge_stats
        features = ((torch.from_numpy(slow.pending_features[p]).double() - stats.mean) / stats.var.sqrt()).clamp(-5, 5)
        x = torch.cat([h, torch.from_numpy(slow.pending_other[p]).double(), features, encoding])
        gi, gh = gru.weight_ih @ x + gru.bias_ih, gru.weight_hh @ h + gru.bias_hh
        (ir, iz, inn), (hr, hz, hn) = gi.chunk(3), gh.chunk(3)
        r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
        want = (1 - z) * torch.tanh(inn + r * hn) + z * h
        torch.testing.assert_close(fast[p].double(), want, atol=1e-5, rtol=1e-4)


def test_a_deleted_node_loses_its_state_at_the_next_cut_and_taking_the_delete_in_again_changes_nothing(model):
    _, net = model
    rng = np.random.default_rng(1)

    deletes = NodeDeletes(np.array([0, 1, 5]), np.array([13, 20, 999]))

    def rows(i):
        return EdgeRows(10 * i, rng.integers(2 * (i > 1), 6, 10), rng.integers(2 * (i > 1), 6, 10),
                        np.full(10, (i + 1) * 10**7), np.ones((10, 2), np.float32), deletes)

    memory = net.new_memory()
    for i in range(2):
        net.advance(memory, rows(i))
    assert memory.tensors()["state"][:6].any(1).all() and {0, 1} <= set(memory.pending_node.tolist())
    early = memory.copy()
    early.forget(deletes)
    assert not early.tensors()["state"][:2].any() and early.tensors()["state"][2:6].any(1).all() and not {0, 1} & set(early.pending_node.tolist())
    restored = Memory.restored(early.copy().tensors(), early.edge, early.now_us)
    last = rows(2)
    for m in (memory, early, restored):
        net.advance(m, last)
    for name, tensor in memory.tensors().items():
        assert torch.equal(tensor, early.tensors()[name]) and torch.equal(tensor, restored.tensors()[name]), name


def test_memory_stands_where_it_was_when_the_work_over_a_chunk_fails(model):
    """
        4 ---1 us---> 1 ---2 us---> 2
    """
    _, net = model
    memory = net.new_memory()
    rows = EdgeRows(0, np.array([4, 1]), np.array([1, 2]), np.array([1, 2]), np.ones((2, 2), np.float32))
    with pytest.raises(RuntimeError, match="no memory left"), net.over(memory, rows):
        raise RuntimeError("no memory left")
    assert memory.edge == 0 and not len(memory.pending_node)
    with torch.no_grad(), net.over(memory, rows) as updated_PD:
        assert memory.edge == 0 and not memory.gather(torch.tensor([4, 1]), updated_PD).any()
    assert memory.edge == 2 and memory.pending_node.tolist() == [1, 2, 4]


@pytest.mark.parametrize("place", [20, 25, 30])
def test_a_memory_stored_before_a_delete_takes_it_in_when_it_goes_on(model, place):
    """Node 0 is last seen before edge 20 and deleted at `place`. What was stored at edge 30 has not
    heard of it; gone on with, it is as if it always had."""
    _, net = model
    rng = np.random.default_rng(2)
    chunks = []
    for i in range(4):
        src, dst = rng.integers(i > 1, 6, (2, 10))
        chunks.append(EdgeRows(10 * i, src, dst, np.full(10, (i + 1) * 10**7), np.ones((10, 2), np.float32)))
    deletes = NodeDeletes(np.array([0]), np.array([place]))
    always, later = net.new_memory(), net.new_memory()
    for chunk in chunks[:3]:
        net.advance(always, dataclasses.replace(chunk, deletes=deletes))
        net.advance(later, chunk)
    later = Memory.restored(later.copy().tensors(), later.edge, later.now_us)
    assert later.tensors()["state"][0].any()
    for memory in (always, later):
        net.advance(memory, dataclasses.replace(chunks[3], deletes=deletes))
        assert not memory.tensors()["state"][0].any()
    for name, tensor in always.tensors().items():
        torch.testing.assert_close(later.tensors()[name], tensor, atol=1e-6, rtol=0)


def test_states_without_a_message_take_no_gradient_and_do_not_pile_up_on_one_row(model):
    _, net = model
    memory = net.new_memory()
    rows = EdgeRows(0, np.array([4, 9, 1]), np.array([1, 2, 1]), np.array([1, 2, 3]), np.ones((3, 2), np.float32))
    net.advance(memory, rows)
    updated = net.updated(memory).detach().requires_grad_()
    nodes = torch.tensor([-1, 0, 1, 2, 3, 4, 5, 9, *range(100, 200)])

    class Gathers(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            if op is torch.ops.aten.embedding.default:
                most.append(int(args[1].bincount().max()))
            return op(*args, **(kwargs or {}))

    most = []
    with Gathers():
        memory.gather(nodes, updated).sum().backward()
    assert updated.grad.tolist() == torch.ones_like(updated).tolist()
    assert most == [28], "108 nodes, 104 of them without a message, on 4 rows"
