"""The graph on the GPU: its kernels, compiled for the CPU, against the graph's own properties; on a GPU the same."""

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from streamd.errors import DeviceMemoryError, OffloadedError
from streamd.gpu import blocks, make_room
from streamd.gpu.blocks import DeviceGraph
from streamd.graph import BlockGraph
from streamd.telemetry import metrics
from tests.builders import stream
from tests.gpu import host
from tests.properties import test_graph_machine as machine

pytestmark = host.needs_compiler


class DeviceGraphMachine(machine.GraphMachine):
    """The same machine, its entries moved between device and host now and then."""

    def make(self, first, tau, directed):
        return DeviceGraph(host.launch, host.Pages(), "cpu", first_edge=first, max_block_entries=tau, directed=directed)

    @rule(placement=st.sampled_from(["resident", "hybrid"]))
    def move(self, placement):
        if self.offloaded == self.first:
            self.graph.place(placement)

    @rule(share=st.floats(0, 1))
    def offload(self, share):
        if self.graph.placement == "resident":
            super().offload(share)


TestDeviceGraphMachine = DeviceGraphMachine.TestCase
TestDeviceGraphMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def twins(device, placement="resident", **values):
    name, launch, pages = device
    return BlockGraph(**values), DeviceGraph(launch, pages, name, placement, **values)


def same(a, b):
    assert (a.mask == b.mask).all()
    assert (a.neighbor[a.mask] == b.neighbor[b.mask]).all() and (a.eid[a.mask] == b.eid[b.mask]).all()
    assert not b.neighbor[~b.mask].any() and not b.eid[~b.mask].any(), "padding is zero"


@pytest.mark.parametrize("placement", ["resident", "hybrid"])
def test_device_and_host_answer_alike_down_to_the_draws(device, placement):
    cpu, gpu = twins(device, placement, first_edge=50, max_block_entries=8)
    src, dst, _ = stream(6000, 60, 40)
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
        for k in (1, 10, 64):
            same(cpu.recent(roots, cutoff, k, since), gpu.recent(roots, cutoff, k, since))
            for replace in (False, True):
                same(cpu.uniform(roots, cutoff, k, 7, replace, since), gpu.uniform(roots, cutoff, k, 7, replace, since))
    assert (placement == "hybrid") == (gpu._on_gpu["entries"].numel() == 0)


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("deeper", [True, False])
def test_what_a_model_looks_at_is_explored_on_the_device_as_on_the_host(device, seed, deeper):
    cpu, gpu = twins(device)
    src, dst, _ = stream(4000, 60, 40)
    for graph in (cpu, gpu):
        graph.insert(src, dst)
    roots = np.array([-1, 2, 3, 77, 99, 500])
    ranges = [(0, 3000)] * 3 if deeper else [(2000, 3000), (1000, 2000), (0, 1000)]
    a, b = (graph.explore(roots, ranges, 6, seed, deeper) for graph in (cpu, gpu))
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
    graph = DeviceGraph(on_own_stream(host.launch), host.Pages(), "cpu")
    graph.on_stream = Stream
    monkeypatch.setattr(graph, "_up", on_own_stream(graph._up))
    monkeypatch.setattr(blocks, "_numpy", on_own_stream(blocks._numpy))
    src, dst, _ = stream(3000)
    roots = np.arange(9)
    asked = (lambda: graph.insert(src, dst), lambda: graph.recent(roots, 3000, 5), lambda: graph.uniform(roots, 3000, 5, 0),
             lambda: graph.explore(roots, [(0, 3000)], 5, None, True), lambda: graph.hide(src[:1], dst[:1], np.array([0])),
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
    graph = DeviceGraph(CudaLauncher(), PageLock(), "cuda")
    src, dst, _ = stream(3000)
    graph.insert(src, dst)
    graph.explore(np.arange(9), [(0, 3000)], 5, None, True)
    torch.cuda.synchronize()
    torch.cuda._sleep(4_000_000_000)
    done = torch.cuda.Event()
    done.record()
    graph.explore(np.arange(9), [(0, 3000)], 5, None, True)
    assert not done.query()
    torch.cuda.synchronize()


def test_an_insert_sends_what_it_changed_and_not_the_graph(device):
    _, gpu = twins(device)
    src, dst, _ = stream(50_000, 300, 200)
    gpu.insert(src, dst)
    sent = metrics.gpu_transfer_bytes.labels("up")._value.get()
    gpu.insert(src[:100], dst[:100])
    assert metrics.gpu_transfer_bytes.labels("up")._value.get() - sent < 100 * 2 * 100 < gpu.device_bytes / 40


def test_a_graph_that_outgrows_its_budget_moves_to_the_host_and_says_so(device, capsys):
    name, launch, pages = device
    graph = DeviceGraph(launch, pages, name, budget_bytes=200_000)
    plain, (src, dst, _), sizes = BlockGraph(), stream(30_000, 300, 200), set()
    for at in range(0, 30_000, 100):
        graph.insert(src[at:at + 100], dst[at:at + 100])
        sizes.add(len(graph._on_gpu["entries"]))
        assert graph.device_bytes <= 200_000
    assert len(sizes) < 8, "near its budget too it grows in large steps"
    plain.insert(src, dst)
    assert graph.placement == "hybrid" and "graph_moved_to_host" in capsys.readouterr().out
    assert metrics.gpu_placement.labels("hybrid")._value.get() == 1
    same(plain.recent(np.arange(500), 30_000, 10), graph.recent(np.arange(500), 30_000, 10))
    graph.place("resident")
    assert graph.placement == "hybrid", "nor does asking for it make it fit"
    same(plain.recent(np.arange(500), 30_000, 10), graph.recent(np.arange(500), 30_000, 10))


def test_out_of_memory_moves_the_entries_and_where_nothing_else_helps_says_what_to_do(monkeypatch):
    graph = DeviceGraph(host.launch, host.Pages(), "cpu")
    room, full = graph._room, {"entries"}

    def short(name, size):
        if name in full:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return room(name, size)

    monkeypatch.setattr(graph, "_room", short)
    src, dst, _ = stream(3000)
    graph.insert(src, dst)
    assert graph.placement == "hybrid" and graph.recent(np.array([3]), 3000, 5).mask.all()
    full.add("nodes")
    with pytest.raises(DeviceMemoryError, match=r"lower retention.*device: cpu"):
        graph.insert(src + 5000, dst + 5000)


def test_room_for_learning_is_made_once_by_moving_the_entries(capsys):
    graph = DeviceGraph(host.launch, host.Pages(), "cpu")
    graph.insert(*stream(3000)[:2])
    before = graph.device_bytes
    assert make_room(graph) and graph.placement == "hybrid" and graph.device_bytes < before / 2
    assert "graph_moved_to_host" in capsys.readouterr().out
    assert not make_room(graph) and not make_room(BlockGraph())
    assert graph.recent(np.array([3]), 3000, 5).mask.all()


def test_pages_are_locked_as_they_come_into_use_and_unlocked_when_entries_move(monkeypatch):
    monkeypatch.setattr(blocks, "LOCK_BYTES", 4096)
    pages = host.Pages()
    graph = DeviceGraph(host.launch, pages, "cpu", "hybrid")
    src, dst, _ = stream(3000)
    for at in range(0, 3000, 500):
        graph.insert(src[at:at + 500], dst[at:at + 500])
        used = int(graph._arrays.used[0]) * 8
        assert used <= sum(pages.locked.values()) < used + 2 * 4096
    assert graph.offload(2000) == 0, "what is page-locked stays"
    graph.place("resident")
    assert not pages.locked and graph.recent(np.array([3]), 3000, 5).mask.all()


def test_more_neighbours_than_a_thread_can_remember_are_refused(device):
    _, gpu = twins(device)
    gpu.insert(np.array([0]), np.array([1]))
    assert gpu.recent(np.array([0]), 1, 500).mask.sum() == 1
    with pytest.raises(ValueError, match="at most 128"):
        gpu.uniform(np.array([0]), 1, 129, 0)


def test_what_was_offloaded_is_asked_for_by_name_and_comes_back(device):
    cpu, gpu = twins(device)
    src, dst, _ = stream(20_000, 50, 30)
    gpu.insert(src, dst)
    cpu.insert(src, dst)
    gpu.offload(15_000)
    with pytest.raises(OffloadedError):
        gpu.recent(np.arange(80), 9000, 5)
    edges = np.arange(100, 200)
    for graph in (cpu, gpu):
        graph.hide(src[edges], dst[edges], edges)
    gone = np.isin(np.arange(20_000), edges)
    gpu.restore(0, lambda a, b: (src[a:b], dst[a:b], gone[a:b]))
    same(cpu.recent(np.arange(80), 9000, 5), gpu.recent(np.arange(80), 9000, 5))
