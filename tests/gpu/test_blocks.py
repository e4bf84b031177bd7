"""The graph on the GPU: its kernels, compiled for the CPU, against the graph's own properties; on a GPU the same."""

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from streamd.errors import DeviceMemoryError
from streamd.gpu import free_device_memory, page_locks
from streamd.gpu import graph as blocks
from streamd.gpu.graph import DeviceGraph
from streamd.gpu.mirror import Mirror
from streamd.graph import BlockGraph, Draw
from streamd.graph.blocks.draws import ALL_SETS
from streamd.graph.blocks.hops import Roots, distinct_nodes, earlier_windows
from streamd.telemetry import metrics
from tests.builders import stream
from tests.gpu import host
from tests.graph.drawing import recent, same, uniform
from tests.properties import test_graph_machine as machine
from tests.readings import reading

pytestmark = host.needs_compiler


class DeviceGraphMachine(machine.GraphMachine):
    """The same machine, its entries moved between device and host now and then."""

    def make(self, made):
        return DeviceGraph(made, host.launch, host.Pages(), "cpu")

    @rule(placement=st.sampled_from(["resident", "hybrid"]))
    def move(self, placement):
        self.graph.place(placement)


class DeviceSetsMachine(DeviceGraphMachine):
    """The same with three edge sets, each with stores of its own."""

    num_sets = 3


TestDeviceGraphMachine = DeviceGraphMachine.TestCase
TestDeviceGraphMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestDeviceSetsMachine = DeviceSetsMachine.TestCase
TestDeviceSetsMachine.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def on_device(device, placement="resident", budget_bytes=2**62, **values):
    name, launch, pages = device
    return DeviceGraph(BlockGraph(**values), launch, pages, name, placement, budget_bytes)


def twins(device, placement="resident", **values):
    return BlockGraph(**values), on_device(device, placement, **values)


def hops_of(graph, roots, ranges, k, strategy, deeper):
    """What a model looks at: hop after hop deeper, or the same roots in windows of events."""
    draws = [Draw(fanout=k, strategy=strategy, seed=5 + hop) for hop in range(len(ranges))]
    starts = [end for _, end in ranges] + [ranges[-1][0]]
    next_roots = distinct_nodes if deeper else earlier_windows(starts)
    return graph.sample_neighborhood(Roots(roots, *ranges[0]), draws, next_roots)


@pytest.mark.parametrize("placement", ["resident", "hybrid"])
def test_device_and_host_answer_alike_down_to_the_draws(device, placement):
    src, dst, _ = stream(6000, 60, 40)
    cpu, gpu = twins(device, placement, first_event=50, max_block_entries=8, directions=("out", "both", "in"),
                     read_back=lambda a, b: (src[a - 50:b - 50], dst[a - 50:b - 50], np.zeros(b - a, bool)))
    roots = np.random.default_rng(0).integers(-1, 120, 700)
    cutoff = np.random.default_rng(1).integers(0, 6100, 700)
    since = np.maximum(cutoff - 2000, 0)
    for at in range(0, 6000, 1500):
        for graph in (cpu, gpu):
            graph.insert(src[at:at + 1500], dst[at:at + 1500])
            if at == 1500:
                edges = np.arange(0, 1500, 7)
                graph.hide(src[edges], dst[edges], 50 + edges)
                graph.hide_nodes(np.array([3, 70]))
        for direction in ("both", "out", "in"):
            for k in (1, 10, 64):
                same(recent(cpu, roots, cutoff, k, since, direction), recent(gpu, roots, cutoff, k, since, direction))
                for replace in (False, True):
                    same(uniform(cpu, roots, cutoff, k, 7, replace, since, direction),
                         uniform(gpu, roots, cutoff, k, 7, replace, since, direction))
    assert (placement == "hybrid") == (gpu.entry_bytes == 0)


@pytest.mark.parametrize("placement", ["resident", "hybrid"])
def test_edge_sets_between_nodes_of_several_kinds_are_drawn_from_alike_on_device_and_host(device, placement):
    """Two edge sets of three have nodes of their own, one comes late; a set's node table ends where its own nodes do.

    user 0..39 --views--> page 40..69,  user --buys--> shop 2000..2019,  page --links--> page (from event 3000)
    """
    rng = np.random.default_rng(4)
    sets = np.where(np.arange(6000) < 3000, rng.integers(0, 2, 6000), rng.integers(0, 3, 6000))
    src = np.where(sets == 2, rng.integers(40, 70, 6000), rng.integers(0, 40, 6000))
    dst = np.where(sets == 1, rng.integers(2000, 2020, 6000), rng.integers(40, 70, 6000))
    gone = np.zeros(6000, bool)
    directions = ("out", "in", "both")
    cpu, gpu = twins(device, placement, max_block_entries=8, directions=directions,
                     of_sets=[(number, d) for number in range(3) for d in directions],
                     read_back=lambda a, b: (src[a:b], dst[a:b], gone[a:b]), sets_of=lambda a, b: sets[a:b])
    roots = np.array([-1, *range(75), *range(1999, 2022), 50_000])
    found = 0
    for at in range(0, 6000, 1500):
        for graph in (cpu, gpu):
            graph.insert(src[at:at + 1500], dst[at:at + 1500], sets[at:at + 1500])
            if at == 1500:
                edges, nodes = np.arange(0, 3000, 7), np.array([3, 45, 2003])
                graph.hide(src[edges], dst[edges], edges)
                graph.hide_nodes(nodes)
                gone[edges] = True
                gone[:3000] |= np.isin(src[:3000], nodes) | np.isin(dst[:3000], nodes)
        if at == 3000:
            gpu.offload(2000)
        for number in (ALL_SETS, 0, 1, 2):
            for direction in directions:
                for strategy in ("recent", "uniform"):
                    draw = Draw(direction=direction, edge_set=number, fanout=6, strategy=strategy, seed=at)
                    same(want := cpu.sample(roots, 0, at + 1500, draw), gpu.sample(roots, 0, at + 1500, draw))
                    found += number == 2 and int(want.mask.sum())
        hop = tuple(Draw(edge_set=n, fanout=3) for n in range(3))
        a, b = (graph.sample_neighborhood(Roots(roots, 0, at + 1500), [hop, hop], distinct_nodes) for graph in (cpu, gpu))
        np.testing.assert_array_equal(a.node_M, b.node_M)
    assert found


@pytest.mark.parametrize("strategy", ["recent", "uniform"])
@pytest.mark.parametrize("deeper", [True, False])
def test_what_a_model_looks_at_is_explored_on_the_device_as_on_the_host(device, strategy, deeper):
    cpu, gpu = twins(device)
    src, dst, _ = stream(4000, 60, 40)
    for graph in (cpu, gpu):
        graph.insert(src, dst)
    roots = np.array([-1, 2, 3, 77, 99, 500])
    ranges = [(0, 3000)] * 3 if deeper else [(2000, 3000), (1000, 2000), (0, 1000)]
    a, b = (hops_of(graph, roots, ranges, 6, strategy, deeper) for graph in (cpu, gpu))
    assert (a.node_M == b.node_M).all() and len(a.hops) == len(b.hops) == 3
    for x, y in zip(a.hops, b.hops, strict=True):
        for column in ("root_U", "neighbor_UK", "eid_UK", "mask_UK"):
            np.testing.assert_array_equal(getattr(x, column), getattr(y, column))


def test_all_that_the_graph_does_on_the_device_is_on_its_own_stream(monkeypatch):
    current = []

    class Stream:
        def __enter__(self):
            current.append(1)

        def __exit__(self, *error):
            current.pop()

    def on_own_stream(done):
        def checked(*args):
            assert current
            calls.append(done)
            return done(*args)
        return checked

    calls = []
    graph = DeviceGraph(BlockGraph(), on_own_stream(host.launch), host.Pages(), "cpu")
    graph.on_stream = Stream
    monkeypatch.setattr(graph, "to_device", on_own_stream(graph.to_device))
    monkeypatch.setattr(blocks, "to_host", on_own_stream(blocks.to_host))
    src, dst, _ = stream(3000)
    roots = np.arange(9)
    asked = (lambda: graph.insert(src, dst), lambda: recent(graph, roots, 3000, 5), lambda: uniform(graph, roots, 3000, 5, 0),
             lambda: hops_of(graph, roots, [(0, 3000)], 5, "recent", True), lambda: graph.hide(src[:1], dst[:1], np.array([0])),
             lambda: graph.hide_nodes(np.array([3])), lambda: graph.place("hybrid"), lambda: graph.place("resident"))
    for ask in asked:
        count = len(calls)
        ask()
        assert len(calls) > count or graph.placement == "hybrid", "it did something there"
        assert not current


@pytest.mark.gpu
def test_a_query_does_not_wait_for_what_a_model_computes():
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    from streamd.gpu.launch import CudaLauncher, PageLock
    graph = DeviceGraph(BlockGraph(), CudaLauncher(), PageLock(), "cuda")
    src, dst, _ = stream(3000)
    graph.insert(src, dst)
    hops_of(graph, np.arange(9), [(0, 3000)], 5, "recent", True)
    torch.cuda.synchronize()
    torch.cuda._sleep(4_000_000_000)
    done = torch.cuda.Event()
    done.record()
    hops_of(graph, np.arange(9), [(0, 3000)], 5, "recent", True)
    assert not done.query()
    torch.cuda.synchronize()


def test_an_insert_sends_what_it_changed_and_not_the_graph(device):
    _, gpu = twins(device)
    src, dst, _ = stream(50_000, 300, 200)
    gpu.insert(src, dst)
    sent = reading(metrics.gpu_transfer_bytes.labels("up"))
    gpu.insert(src[:100], dst[:100])
    assert reading(metrics.gpu_transfer_bytes.labels("up")) - sent < 100 * 2 * 100 < gpu.device_bytes / 40


def test_a_delete_sends_what_it_hid_and_not_all_that_was_ever_hidden(device):
    _, gpu = twins(device)
    plain, (src, dst, _) = BlockGraph(), stream(50_000, 300, 200)
    for graph in (plain, gpu):
        graph.insert(src, dst)
        graph.hide(src[:30_000], dst[:30_000], np.arange(30_000))

    def sent(work):
        before = reading(metrics.gpu_transfer_bytes.labels("up"))
        work(gpu)
        work(plain)
        same(recent(plain, np.arange(500), 50_000, 30), recent(gpu, np.arange(500), 50_000, 30))
        return reading(metrics.gpu_transfer_bytes.labels("up")) - before

    asked = sent(lambda graph: None)
    hides = [sent(lambda graph, e=e: graph.hide(src[e:e + 1], dst[e:e + 1], np.array([e]))) for e in range(30_000, 30_009)]
    assert max(hides) - asked < 100, "two entries and their nodes' flags"
    node = int(src[-1])
    num_events = int(((src == node) | (dst == node)).sum())
    assert sent(lambda graph: graph.hide_nodes(np.array([node]))) - asked < 100 * num_events < gpu.device_bytes / 10


def test_a_graph_that_outgrows_its_budget_moves_to_the_host_and_says_so(device, capsys):
    graph = on_device(device, budget_bytes=300_000)
    plain, (src, dst, _), sizes = BlockGraph(), stream(30_000, 300, 200), set()
    for at in range(0, 30_000, 100):
        graph.insert(src[at:at + 100], dst[at:at + 100])
        sizes.add(graph.entry_bytes)
        assert graph.device_bytes <= 300_000
    assert len(sizes) < 8, "near its budget too it grows in large steps"
    plain.insert(src, dst)
    assert graph.placement == "hybrid" and "graph_moved_to_host" in capsys.readouterr().out
    assert reading(metrics.gpu_placement.labels("hybrid")) == 1
    same(recent(plain, np.arange(500), 30_000, 10), recent(graph, np.arange(500), 30_000, 10))
    graph.place("resident")
    assert graph.placement == "hybrid", "nor does asking for it make it fit"
    same(recent(plain, np.arange(500), 30_000, 10), recent(graph, np.arange(500), 30_000, 10))


@pytest.mark.parametrize("budget", [100_000, 2_000_000, 5_000_000])
def test_while_it_grows_too_a_graph_keeps_to_its_budget(budget, monkeypatch):
    graph = DeviceGraph(BlockGraph(), host.launch, host.Pages(), "cpu", "resident", budget)
    plain, (src, dst, _), new_rows, peaks = BlockGraph(), stream(60_000, 300, 200), graph.new_rows, []

    def noted(mirror, name, rows):
        peaks.append((name, graph.device_bytes + rows * 8 * (4 if name == "nodes" else 1)))
        return new_rows(mirror, name, rows)

    monkeypatch.setattr(graph, "new_rows", noted)
    for at in range(0, 60_000, 1000):
        for g in (graph, plain):
            g.insert(src[at:at + 1000], dst[at:at + 1000])
        same(recent(plain, np.arange(500), 60_000, 10), recent(graph, np.arange(500), 60_000, 10))
        assert graph.device_bytes <= budget or graph.placement == "hybrid"
    assert max(bytes_ for name, bytes_ in peaks if name == "entries") <= budget
    assert graph.placement == ("hybrid" if budget < 10**6 else "resident")
    if budget == 2_000_000:
        assert graph.device_bytes > budget / 2, "it has more than half, since old and new entries need not be there together"


def test_no_array_grows_beyond_what_the_host_may_hold(monkeypatch):
    graph = DeviceGraph(BlockGraph(), host.launch, host.Pages(), "cpu")
    most = {"nodes": 1500, "hidden": 1500, "entries": 1500, "blocks": 6000}
    monkeypatch.setattr(Mirror, "most_rows", lambda mirror, name: most[name])
    graph.insert(np.arange(1200), np.arange(1200))
    graph.insert(np.arange(1200, 1400), np.arange(1200, 1400))
    assert graph.device_bytes == 1500 * (4 * 8 + 8 + 1) + 6000 * 8


def test_out_of_memory_moves_the_entries_and_where_nothing_else_helps_says_what_to_do(monkeypatch):
    graph = DeviceGraph(BlockGraph(), host.launch, host.Pages(), "cpu")
    new_rows, full = graph.new_rows, {"entries"}

    def short(mirror, name, size):
        if name in full:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return new_rows(mirror, name, size)

    monkeypatch.setattr(graph, "new_rows", short)
    src, dst, _ = stream(3000)
    graph.insert(src, dst)
    assert graph.placement == "hybrid" and recent(graph, np.array([3]), 3000, 5).mask.all()
    full.add("nodes")
    with pytest.raises(DeviceMemoryError, match=r"lower retention.*device: cpu"):
        graph.insert(src + 5000, dst + 5000)


@pytest.mark.parametrize("said", ["CUDA out of memory", "CUDA error: out of memory", "CUDA_ERROR_OUT_OF_MEMORY: out of memory"])
def test_a_lack_of_memory_is_known_whoever_says_it(monkeypatch, said):
    launches = []

    def launch(name, threads, args):
        if launches:
            raise RuntimeError(launches[-1])
        host.launch(name, threads, args)

    graph = DeviceGraph(BlockGraph(), launch, host.Pages(), "cpu")
    src, dst, _ = stream(3000)
    to_device, sent = graph.to_device, []

    def short(array):
        sent.append(array)
        if len(sent) == 2:
            raise RuntimeError(said)
        return to_device(array)

    # There is no page-locked memory to send entries from: they move to the host, all else is sent.
    monkeypatch.setattr(graph, "to_device", short)
    graph.insert(src, dst)
    assert graph.placement == "hybrid" and recent(graph, np.array([3]), 3000, 5).mask.all()
    launches.append(said)
    with pytest.raises(DeviceMemoryError, match=r"no memory for the graph.*set device: cpu"):
        recent(graph, np.array([3]), 3000, 5)
    launches.append("an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal"):
        recent(graph, np.array([3]), 3000, 5)


def test_entries_stay_where_they_are_when_the_host_locks_no_more_pages():
    graph, plain = DeviceGraph(BlockGraph(directions=("out", "in")), host.launch, pages := FewPages(1), "cpu"), BlockGraph(directions=("out", "in"))
    src, dst, _ = stream(3000)
    for g in (graph, plain):
        g.insert(src, dst)
    taken = graph.entry_bytes
    with pytest.raises(DeviceMemoryError, match=r"no more pages"):
        graph.place("hybrid")
    assert graph.placement == "resident" and graph.entry_bytes == taken and not pages.locked
    assert reading(metrics.gpu_placement.labels("hybrid")) == 0
    same(recent(plain, np.arange(80), 3000, 5, direction="in"), recent(graph, np.arange(80), 3000, 5, direction="in"))
    pages.most = 2
    graph.place("hybrid")
    assert len(pages.locked) == 2 and not graph.entry_bytes
    same(recent(plain, np.arange(80), 3000, 5, direction="in"), recent(graph, np.arange(80), 3000, 5, direction="in"))


def test_a_graph_that_does_not_fit_the_device_again_has_the_pages_of_all_its_directions_locked():
    graph = DeviceGraph(BlockGraph(directions=("out", "in")), host.launch, pages := host.Pages(), "cpu", "hybrid", budget_bytes=300_000)
    src, dst, _ = stream(30_000, 300, 200)
    graph.insert(src, dst)
    graph.place("resident")
    assert graph.placement == "hybrid" and len(pages.locked) == 2


class FewPages(host.Pages):
    """A system that locks so many pieces at most."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def lock(self, address, size):
        if len(self.locked) == self.most:
            raise DeviceMemoryError("no more pages")
        super().lock(address, size)


def test_room_for_learning_is_made_once_by_moving_the_entries(capsys):
    graph = DeviceGraph(BlockGraph(), host.launch, host.Pages(), "cpu")
    graph.insert(*stream(3000)[:2])
    before = graph.device_bytes
    assert free_device_memory(graph) and graph.placement == "hybrid" and graph.device_bytes < before / 2
    assert "graph_moved_to_host" in capsys.readouterr().out
    assert not free_device_memory(graph) and not free_device_memory(BlockGraph())
    assert recent(graph, np.array([3]), 3000, 5).mask.all()


def test_pages_are_locked_as_they_come_into_use_and_unlocked_when_entries_move(monkeypatch):
    monkeypatch.setattr(page_locks, "LOCK_BYTES", 4096)
    pages = host.Pages()
    plain = BlockGraph()
    graph = DeviceGraph(plain, host.launch, pages, "cpu", "hybrid")
    src, dst, _ = stream(3000)
    for at in range(0, 3000, 500):
        graph.insert(src[at:at + 500], dst[at:at + 500])
        used = int(plain.any_store.arrays.used[0]) * 8
        assert used <= sum(pages.locked.values()) < used + 2 * 4096
    size = graph.num_bytes
    graph.offload(2000)
    assert graph.num_bytes == size, "what is page-locked stays"
    graph.place("resident")
    assert not pages.locked and recent(graph, np.array([3]), 3000, 5).mask.all()


def test_page_locks_end_with_the_graph_so_that_the_next_may_lie_where_it_lay(device):
    name, launch, pages = device
    src, dst, _ = stream(3000)
    plain = BlockGraph()
    plain.insert(src, dst)
    for _ in range(3):
        graph = DeviceGraph(BlockGraph(), launch, pages, name, "hybrid")
        graph.insert(src, dst)
        same(recent(plain, np.arange(50), 3000, 5), recent(graph, np.arange(50), 3000, 5))
        if name == "cpu":
            assert len(pages.locked) == 1
        del graph
    if name == "cpu":
        assert not pages.locked, "no collector of garbage had to run"


def test_more_neighbors_than_a_thread_can_remember_are_refused(device):
    _, gpu = twins(device)
    gpu.insert(np.array([0]), np.array([1]))
    assert recent(gpu, np.array([0]), 1, 500).mask.sum() == 1
    with pytest.raises(ValueError, match="at most 128"):
        uniform(gpu, np.array([0]), 1, 129, 0)


def test_what_was_offloaded_is_read_back_for_the_device(device):
    src, dst, _ = stream(20_000, 50, 30)
    gone = np.zeros(20_000, bool)
    cpu, gpu = twins(device, read_back=lambda a, b: (src[a:b], dst[a:b], gone[a:b]))
    for graph in (cpu, gpu):
        graph.insert(src, dst)
    size = gpu.num_bytes
    gpu.offload(15_000)
    assert gpu.num_bytes < size
    edges = np.arange(100, 200)
    gone[edges] = True
    for graph in (cpu, gpu):
        graph.hide(src[edges], dst[edges], edges)
    for before in (9_000, 150):
        same(recent(cpu, np.arange(80), before, 5), recent(gpu, np.arange(80), before, 5))
        same(uniform(cpu, np.arange(80), before, 5, 1), uniform(gpu, np.arange(80), before, 5, 1))
    gpu.offload(15_000)
    gone |= (src == 4) | (dst == 4)
    for graph in (cpu, gpu):
        graph.hide_nodes(np.array([4]))
    same(recent(cpu, np.arange(80), 9_000, 5), recent(gpu, np.arange(80), 9_000, 5))
