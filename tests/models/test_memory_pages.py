"""Memory in shared pages against the plain reference: a dense array for each memory."""

import threading

import numpy as np
import pytest

from streamd.models.memory.pages import PAGE, NodeRows, PagePool

CPU = "cpu"


class Dense:
    """The reference: dictionaries of rows, copied whole."""

    def __init__(self):
        self.values = {}

    def write(self, nodes, states, times):
        self.values |= {int(n): (tuple(s.tolist()), int(t)) for n, s, t in zip(nodes, states, times, strict=True)}

    def copy(self):
        twin = Dense()
        twin.values = dict(self.values)
        return twin


def check(rows, dense, dim):
    nodes = np.arange(-2, 400)
    state, times = rows.state(nodes), rows.last_us(nodes)
    for node, s, t in zip(nodes.tolist(), state.tolist(), times.tolist(), strict=True):
        assert (tuple(s), t) == dense.values.get(node, ((0.0,) * dim, 0)), node


@pytest.mark.parametrize("dim", [0, 3])
@pytest.mark.parametrize("seed", range(4))
def test_copies_move_on_by_themselves_and_know_what_differs(dim, seed):
    rng = np.random.default_rng(seed)
    pool = PagePool(dim, CPU)
    held = [(NodeRows(pool), Dense())]
    for _ in range(60):
        rows, dense = held[rng.integers(len(held))]
        nodes = rng.permutation(350)[: rng.integers(1, 40)]
        states, times = rng.normal(size=(len(nodes), dim)).astype(np.float32), rng.integers(1, 99, len(nodes))
        rows.write(nodes, states, times)
        dense.write(nodes, states, times)
        if rng.random() < 0.4:
            held.append((rows.copy(), dense.copy()))
        if len(held) > 4:
            held.pop(rng.integers(len(held)))
    for rows, dense in held:
        check(rows, dense, dim)
        for other, other_dense in held:
            slots = rows.changed_slots(other)
            want = [n for n in range(400) if rows_of(dense, n, dim) != rows_of(other_dense, n, dim)]
            assert rows.changed_nodes(slots, other).tolist() == want


def rows_of(dense, node, dim):
    return dense.values.get(node, ((0.0,) * dim, 0))


def test_a_copy_takes_no_rows_and_dropped_ones_are_used_again():
    pool = PagePool(8, CPU)
    rows = NodeRows(pool)
    rows.write(np.arange(160), np.ones((160, 8), np.float32), np.ones(160, np.int64))
    before = pool.num_bytes
    for turn in range(50):
        twin = rows.copy()
        twin.write(np.array([5, 100]), np.full((2, 8), turn, np.float32), np.ones(2, np.int64))
        assert twin.state(np.array([5]))[0, 0] == turn and rows.state(np.array([5]))[0, 0] == 1
    assert pool.num_bytes <= before + 2 * 2 * PAGE * (4 * 8 + 8)


def test_equal_pages_of_a_memory_read_from_a_file_are_shared_and_others_are_not():
    pool = PagePool(2, CPU)
    one, two = NodeRows(pool), NodeRows(pool)
    states, times = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32), np.arange(100)
    one.write(np.arange(100), states, times)
    two.write(np.arange(100), states, times)
    two.write(np.array([40]), np.array([[7.0, 7.0]]), np.array([40]))
    two.share_equal(two.used_slots(), one)
    assert two.changed_slots(one).tolist() == [40 // PAGE]
    two.write(np.array([3]), np.array([[9.0, 9.0]]), np.array([3]))
    assert (one.state(np.arange(100)) == states).all()
    assert two.state(np.array([3, 40])).tolist() == [[9.0, 9.0], [7.0, 7.0]]


def test_pages_that_were_shared_as_equal_are_free_once_no_memory_uses_them():
    """As versions that are read one after the other, each like the one before."""
    pool = PagePool(2, CPU)
    states, times = np.random.default_rng(1).normal(size=(160, 2)).astype(np.float32), np.arange(160)
    sizes = []
    for _ in range(4):
        one, two = NodeRows(pool), NodeRows(pool)
        one.write(np.arange(160), states, times)
        two.write(np.arange(160), states, times)
        two.share_equal(two.used_slots(), one)
        assert not len(two.changed_slots(one)), "all pages are shared"
        one = two = None
        sizes.append(pool.num_bytes)
    assert len(set(sizes)) == 1, "no page is counted for a memory that is gone"


def test_a_page_is_free_once_every_memory_wrote_a_copy_of_its_own():
    pool = PagePool(2, CPU)
    one = NodeRows(pool)
    one.write(np.arange(160), np.ones((160, 2), np.float32), np.ones(160, np.int64))
    sizes = []
    for turn in range(6):
        two = one.copy()
        for rows in (one, two):
            rows.write(np.arange(160), np.full((160, 2), turn, np.float32), np.ones(160, np.int64))
        one, two = two, None
        sizes.append(pool.num_bytes)
    assert len(set(sizes[1:])) == 1, "no page stays in use that nobody names"


def test_threads_that_write_their_own_copies_do_not_see_each_other():
    """As the thread that loads a version beside the one that serves."""
    pool = PagePool(4, CPU)
    base = NodeRows(pool)
    base.write(np.arange(2000), np.zeros((2000, 4), np.float32), np.zeros(2000, np.int64))
    wrong = []

    def work(number):
        rng = np.random.default_rng(number)
        for turn in range(40):
            mine = base.copy()
            nodes = rng.permutation(2000)[:200]
            mine.write(nodes, np.full((200, 4), number + turn / 100, np.float32), np.ones(200, np.int64))
            again = mine.copy()
            want = np.zeros((2000, 4), np.float32)
            want[nodes] = number + turn / 100
            if not (again.state(np.arange(2000)) == want).all():
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and not base.state(np.arange(2000)).any()
