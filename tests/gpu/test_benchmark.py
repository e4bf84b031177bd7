"""The GPU's benchmark, small and on a CPU: a session with a GPU should spend its minutes measuring, not mending this."""

import zlib

import numpy as np
import pytest

from streamd.gpu.graph import DeviceGraph
from streamd.graph import BlockGraph
from tests.benchmarks import cache, gpu, synth
from tests.benchmarks.parts import named
from tests.builders import stream
from tests.gpu import host

pytestmark = host.needs_compiler


def test_every_part_of_the_gpu_benchmark_runs():
    src, dst, time = stream(4000, 60, 40)
    rows = gpu.sampling("small", lambda p: DeviceGraph(BlockGraph(), host.launch, host.Pages(), "cpu", p), src, dst, 10.0, "cpu", (50,), slice_edges=500)
    assert len(rows) == 2 * (2 + 8) and all(np.isfinite(r.ours) and r.ours > 0 for r in rows if "device memory" not in r.what)
    made = {"src": src, "dst": dst, "t": time / 1e6, "num_nodes": 100}
    rows = gpu.turnaround(made, "cpu", 900, 3, 8)
    assert [r.unit for r in rows] == ["s", "s", "s", "edges/s", "s", *"%%%%%"] * 2
    for part in (rows[5:10], rows[15:]):
        assert abs(sum(r.ours for r in part) - 100) < 0.1 and all(r.ours > 0 for r in part)
    rows = gpu.fetching("cpu", 2000, 60, 3, 5)
    assert len(rows) == 9 and gpu.bandwidth("cpu", 1000) > 0


def test_a_cache_of_all_rows_holds_all_in_an_epoch_and_a_small_one_does_not():
    src, dst, time = stream(2000, 60, 40)
    made = {"src": src, "dst": dst, "t": time / 1e6, "num_nodes": 100}
    rows = cache.hits("small", made, 400, 300, (30, 1000))
    assert len(rows) == 12 and all(0 <= r.ours <= 100 for r in rows)
    last = [r.ours for r in rows if "epoch" in r.what]
    assert last[3:] == [100, 100, 100] and max(last[:3]) < 90


def test_a_preset_is_the_stream_that_published_figures_are_of():
    known = {"reddit": (1916195109, 946912120), "gdelt": (3671688646, 903691287), "netflix": (854266157, 1616735917)}
    for preset, checksums in known.items():
        g = synth.make(preset, 0.002)
        assert (zlib.crc32(g["src"].tobytes()), zlib.crc32(g["dst"].tobytes())) == checksums
        assert (np.diff(g["t"]) >= 0).all() and max(g["src"].max(), g["dst"].max()) < g["num_nodes"]


def test_a_benchmark_is_run_by_its_name_and_its_parts_by_theirs():
    assert named(["gpu"]) == ["gpu-presets", "gpu-window", "gpu-features", "gpu-large"] == list(gpu.PARTS)
    assert named(["gpu-window", "cache"]) == ["cache", "gpu-window"] and named([])[:2] == ["files", "graph"]
    with pytest.raises(ValueError, match="no such benchmark: graf; there are files"):
        named(["graph", "graf"])
