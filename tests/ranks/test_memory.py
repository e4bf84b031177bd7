"""Memory divided among ranks moves as one memory does, gives its rows to any rank, and is stored for any number of
ranks."""

import numpy as np
import pytest
import torch

from streamd.events import NO_DELETES, NodeDeletes, Schema
from streamd.models import Memory, build_model
from streamd.models.memory.edge_rows import EdgeRows
from streamd.models.memory.files import MemoryFiles, read_memory
from tests.builders import settings
from tests.ranks.threads import run

NODES, CHUNK, WIDTH = 70, 50, 2
SCHEMA = Schema(WIDTH, 0, 0)
DELETES = NodeDeletes(np.array([3, 40]), np.array([2 * CHUNK, 4 * CHUNK]))


def chunks(count, deletes=NO_DELETES):
    rng = np.random.default_rng(0)
    for i in range(count):
        src, dst = rng.integers(0, NODES, (2, CHUNK))
        dst[::9] = src[::9]
        time = np.sort(rng.integers(0, 1000, CHUNK)) + 1000 * i
        yield EdgeRows(i * CHUNK, src, dst, time, rng.normal(size=(CHUNK, WIDTH)).astype(np.float32), deletes)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = build_model(settings(tmp_path_factory.mktemp("model")).model, SCHEMA, 3)
    model.gap_us.fill_(100)
    return model


def walked(model, ranks, count=6, deletes=NO_DELETES, memory=None):
    memory = model.new_memory(ranks=ranks) if memory is None else memory
    for chunk in chunks(count, deletes):
        if chunk.first_edge >= memory.edge:
            model.advance(memory, chunk)
    return memory


def whole(memory):
    """State and time of every node, and the messages, from all ranks."""
    nodes = np.arange(NODES) if memory.ranks.owned is None else np.flatnonzero(memory.ranks.owned.is_own(np.arange(NODES)))
    return nodes, memory.rows.state(nodes), memory.rows.last_us(nodes), memory.pending()


def check_equal(parts, expected, exact=False):
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5, "atol": 1e-6}
    _, state, last_us, pending = whole(expected)
    for nodes, own_state, own_us, own_pending in parts:
        np.testing.assert_allclose(own_state, state[nodes], **tolerance)
        assert (own_us == last_us[nodes]).all()
        for name, array in own_pending.items():
            np.testing.assert_allclose(array, pending[name], **tolerance)
    assert sum(len(nodes) for nodes, *_ in parts) == NODES


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("deletes", [NO_DELETES, DELETES], ids=["all nodes", "deleted nodes"])
def test_every_rank_holds_its_part_of_one_memory(model, size, deletes):
    parts = run(size, lambda ranks: whole(walked(model, ranks, deletes=deletes)))
    check_equal(parts, walked(model, run(1, lambda ranks: ranks)[0], deletes=deletes))


@pytest.mark.parametrize("size", [2, 3])
def test_any_rank_gets_the_rows_of_any_node_and_gradients_reach_the_weights_of_the_memory(model, size):
    rng = np.random.default_rng(1)
    asked = [rng.integers(-1, NODES + 5, 20 * (rank != 1)) for rank in range(size)]
    weight = [torch.from_numpy(rng.normal(size=(len(a), model.settings.dim)).astype(np.float32)) for a in asked]
    chunk = list(chunks(7))[6]

    def work(ranks):
        import copy

        own = copy.deepcopy(model)
        memory = walked(own, ranks)
        with own.over(memory, chunk) as updated_PD:
            mine = range(size) if ranks.size == 1 else [ranks.rank]
            rows = [memory.gather(torch.from_numpy(asked[i]), updated_PD) for i in mine]
            sum((r * weight[i]).sum() for r, i in zip(rows, mine, strict=True)).backward()
            ranks.add_gradients(list(own.updater.parameters()))
        return [r.detach() for r in rows], {n: p.grad for n, p in own.updater.named_parameters()}

    rows, gradients = run(1, work)[0]
    for rank, (own_rows, own_gradients) in enumerate(run(size, work)):
        torch.testing.assert_close(own_rows[0], rows[rank], rtol=1e-5, atol=1e-6)
        for name, gradient in gradients.items():
            assert gradient.abs().sum() > 0, name
            torch.testing.assert_close(own_gradients[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


def read(files, memory, ranks):
    widths = memory.dim, WIDTH
    return read_memory(files, memory.edge, memory.now_us, widths, "cpu", ranks)


def test_what_some_ranks_stored_is_read_by_any_number_of_them(model, tmp_path):
    """Three ranks store, then go on and store again; two, one and three read."""
    def store(ranks):
        files = MemoryFiles(tmp_path, ranks=ranks)
        memory = walked(model, ranks, 3)
        files.store(memory)
        memory = walked(model, ranks, 6, memory=memory)
        stored = files.store(memory)
        again = files.store(memory)
        files.sweep()
        return stored, again, whole(memory), memory.edge, memory.now_us

    got = run(3, store)
    stored, again, *_, edge, now_us = got[0]
    assert stored == again, "nothing new is not written"
    like = Memory(model.settings.dim, WIDTH, edge)
    like.now_us = now_us
    alone = read(stored, like, run(1, lambda ranks: ranks)[0])
    check_equal([part for _, _, part, *_ in got], alone, exact=True)
    for size in (2, 3):
        check_equal(run(size, lambda ranks: whole(read(stored, like, ranks))), alone, exact=True)
    check_equal([whole(alone)], walked(model, run(1, lambda ranks: ranks)[0]))


def test_a_reader_goes_on_from_the_files_it_has(model, tmp_path):
    """New files of any rank come behind those that were there, so a server need not read them again."""
    def store(ranks):
        files = MemoryFiles(tmp_path, ranks=ranks)
        memory = walked(model, ranks, 5)
        first = files.store(memory)
        small = list(chunks(6))[5].cut(0, 4)
        model.advance(memory, small)
        model.advance(memory, list(chunks(6))[5].cut(4, 6))
        return first, files.store(memory)

    first, second = run(2, store)[0]
    assert second[1 : len(first)] == first[1:]
    assert len(second) > len(first)


def test_a_ranks_rows_take_its_share_of_memory():
    def pages(ranks):
        memory = Memory(16, 0, ranks=ranks)
        nodes = np.arange(20_000)
        own = nodes if ranks.owned is None else nodes[ranks.owned.is_own(nodes)]
        memory.rows.write(own, np.ones((len(own), 16), np.float32), np.ones(len(own), np.int64))
        return memory.rows.pool.num_bytes

    alone = run(1, pages)[0]
    assert all(0.2 * alone < size < 0.3 * alone for size in run(4, pages))
