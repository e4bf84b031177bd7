"""What `streamd doctor` checks: each check says what it saw, and none stops the others."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streamd.errors import StreamdError
from streamd.processes import PYTHON
from streamd.settings import Settings

MIN_FREE_BYTES = 1_000_000_000


@dataclass(frozen=True)
class Check:
    name: str
    good: bool
    seen: str


def examine(settings: Settings) -> Iterator[Check]:
    """Run all checks, yielding each as it is done."""
    for name, look in (("broker", _broker), ("data directory", _data_directory), ("crc32c", _crc32c),
                       ("device", _device), ("kernels", _kernels)):
        yield _checked(name, look, settings)


def _checked(name: str, look: Callable[[Settings], str], settings: Settings) -> Check:
    try:
        return Check(name, True, look(settings))
    except (StreamdError, OSError, ImportError) as error:
        return Check(name, False, str(error))


def _broker(settings: Settings) -> str:
    from streamd.ingest.client import make_admin

    admin = make_admin(settings.kafka)
    try:
        cluster = admin.describe_cluster()
        topics = admin.describe_topics(list(settings.kafka.topics))
    finally:
        admin.close()
    found = {t["name"]: len(t["partitions"]) for t in topics if not t["error_code"]}
    missing = set(settings.kafka.topics) - set(found)
    if missing:
        raise StreamdError(f"Cluster {cluster['cluster_id']} has no topic {sorted(missing)}.", "create it.")
    stand_in = " (a mock, for a first look only)" if str(cluster["cluster_id"]).startswith("mockCluster") else ""
    return f"cluster {cluster['cluster_id']}{stand_in}, partitions {found}"


def _data_directory(settings: Settings) -> str:
    folder = settings.data_dir.resolve()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_BYTES:
        raise StreamdError(f"Only {free / 1e9:.1f} GB are free in {folder}.", "free space or set data_dir.")
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        begun = time.perf_counter()
        for _ in range(10):
            file.write(b"x" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
        wait = (time.perf_counter() - begun) / 10
    return f"{settings.data_dir}: {free / 1e9:.0f} GB free, {wait * 1e3:.1f} ms to make a write durable"


def _crc32c(_: Settings) -> str:
    import crc32c
    from kafka.record import util

    if util.crc32c_c is None:
        raise StreamdError("kafka-python uses its slow crc32c in Python.", "pip install crc32c.")
    data = bytes(1 << 24)
    begun = time.perf_counter()
    crc32c.crc32c(data)
    return f"in C, {len(data) / (time.perf_counter() - begun) / 1e9:.1f} GB/s"


def _device(settings: Settings) -> str:
    import torch

    from streamd.gpu import choose_device

    told = f"trainer on {choose_device(settings.device)}, server on {choose_device(settings.server.device)}; "
    told += f"torch {torch.__version__}, {torch.get_num_threads()} threads; "
    if not torch.cuda.is_available():
        return told + "no GPU"
    free, whole = torch.cuda.mem_get_info()
    return (f"{told}GPU {torch.cuda.get_device_name()}, {free / 1e9:.1f} of {whole / 1e9:.1f} GB free, "
            f"graph {settings.gpu.placement}, {settings.gpu.cache_rows} feature rows cached")


def _kernels(_: Settings) -> str:
    seconds = warm_up()
    return f"compiled or loaded in {seconds:.1f} s"


def warm_up() -> float:
    """Compile all kernels, or load them where that was done before; one process at a time. Returns: seconds."""
    from filelock import FileLock

    from streamd.graph.jit import CACHE, note_compiled

    begun = time.perf_counter()
    with FileLock(Path(tempfile.gettempdir()) / f"streamd-kernels-{os.getuid()}.lock"):
        half = None
        if CACHE is not None and not list(CACHE.rglob("facts_kernels.advance*")):
            # numba compiles on one core at a time: a second process does half of it.
            half = subprocess.Popen([*PYTHON, "-c", "from streamd.doctor import warm_facts; warm_facts()"])
        warm_graph()
        if half is not None:
            half.wait()
        warm_facts()
        note_compiled()
    return time.perf_counter() - begun


def warm_graph() -> None:
    from streamd.graph import BlockGraph, TemporalSampler
    from streamd.graph.gather import edge_features
    from streamd.graph.sampler import Strategy
    from streamd.segments.columns import EdgeColumns

    src, dst, when = np.array([0, 1]), np.array([1, 2]), np.array([1, 2])
    columns = EdgeColumns.of([(0, when, np.zeros((2, 1), np.float32))], 2, 1)
    graph = BlockGraph()
    graph.insert(src, dst)
    graph.hide(src[:1], dst[:1], src[:1])
    graph.hide_nodes(src[:1])
    strategies: tuple[Strategy, ...] = ("recent", "uniform")
    for strategy in strategies:
        _, layer = TemporalSampler(graph, [2, 2], strategy, columns=columns).sample(src, when)
        edge_features(columns, layer.eid, layer.mask)


def warm_facts() -> None:
    from streamd.graph import PairFacts

    src, dst, when = np.array([0, 1]), np.array([1, 2]), np.array([1, 2])
    facts = PairFacts((1, 2, 3, 4, 5), 10)
    facts.advance_scoring(src, dst, when, np.array([0]), np.array([[1, 2]]))
    facts.rows(src, when, np.array([[1], [2]]))
