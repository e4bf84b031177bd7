"""`python -m tests.simulator.growth`: how much the roles grow over a run without faults, at n events and at 2 n.

A log with retention, bounded keys and a steady load has a bounded journal, bounded memory and a bounded cost of each event.
"""

import gc
import re
import sys
import time
import types
from pathlib import Path
from typing import NamedTuple

EVENTS = 2000
"""n, in edges; some forty seconds of load."""
RETAINED_SECONDS = 10
"""Event time that the log keeps."""
KINDS = (("leader",), ("standby", "standby", "replica"))
LEVELS = {"journal_bytes": 4_096, "product_bytes": 20_000, "open_files": 4, "files": 8}
"""What must not grow, and by how much it may differ besides."""
RATES = ("turns", "read_bytes", "cpu_seconds")
"""What an event must not cost more of."""
MOST = 1.4
"""Largest ratio of a level at 2 n to that at n; and of a rate, which the machine's load moves too, 1.6."""
MOST_RATE = 1.6


class Sample(NamedTuple):
    """Of one moment. journal_bytes, files: of the largest data directory. product_bytes: of what the objects of streamd's classes hold. read_bytes, cpu_seconds:
    of the process up to now."""

    edges: int
    turns: int
    read_bytes: int
    cpu_seconds: float
    journal_bytes: int
    product_bytes: int
    open_files: int
    files: int


def product_bytes():
    """Bytes of all objects of streamd's classes and of what they hold, but for the simulator's."""
    gc.collect()
    waiting = [o for o in gc.get_objects() if str(type(o).__module__).startswith("streamd.")]
    seen = {id(o): o for o in waiting}
    while waiting:
        one = waiting.pop()
        held = [one.__closure__, one.__defaults__] if isinstance(one, types.FunctionType) else gc.get_referents(one)
        for o in held:
            if id(o) not in seen and not isinstance(o, type | types.ModuleType) and not str(type(o).__module__).startswith("tests."):
                seen[id(o)] = o
                waiting.append(o)
    return sum(sys.getsizeof(o) for o in seen.values())


def sample(world):
    """Look at a world."""
    folders = [machine.data_dir for machine in world.machines]
    return Sample(
        world.checks.model.num_edges, world.scheduler.turns, int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text()).group(1)),
        time.process_time(), max(sum(f.stat().st_size for f in (folder / "journal").iterdir()) for folder in folders),
        product_bytes(), sum(1 for _ in Path("/proc/self/fd").iterdir()), max(sum(1 for _ in folder.rglob("*")) for folder in folders))


def measure(kind, events=EVENTS, retained_seconds=RETAINED_SECONDS):
    """Run a log of some members. Returns: samples at n / 2, n, 3 n / 2 and 2 n edges, where n is `events`."""
    from tests.simulator.world import World

    world, samples = World(5), []
    world.kinds, world.odds, world.faults.is_on, world.checks.model.learned.scribes = (kind,), 0, False, None
    world.settings = {"retention__max_age_seconds": retained_seconds, "ingest__segment_edges": 256, "windows__width_seconds": 1,
                      "ingest__commit_interval_seconds": 0.1, "ingest__merge_wait_seconds": 0.2, "log__manifest_seconds": 3}
    world.producers.be_steady()

    def look():
        if world.checks.model.num_edges >= (len(samples) + 1) * events / 2:
            samples.append(sample(world))
        if len(samples) < 4:
            world.scheduler.at(0.5, look)
        else:
            world.producers.end()

    world.scheduler.at(0.5, look)
    world.run(events / 5)
    return samples


def grown(samples):
    """What grew, in words, one line each."""
    half, first, more, second = samples
    lines = []
    for name, slack in LEVELS.items():
        a, b = getattr(first, name), getattr(second, name)
        if b > MOST * a + slack:
            lines.append(f"{name}: {a} at {first.edges} edges, {b} at {second.edges}")
    for name in RATES:
        a, b = ((getattr(y, name) - getattr(x, name)) / (y.edges - x.edges) for x, y in ((half, first), (more, second)))
        if b > MOST_RATE * a:
            lines.append(f"{name}: {a:.6g} an edge at {first.edges} edges, {b:.6g} at {second.edges}")
    return lines


def main():
    found = []
    for kind in KINDS:
        samples = measure(kind)
        print(", ".join(kind), *samples, sep="\n  ")
        found += [f"{', '.join(kind)}: {line}" for line in grown(samples)]
    print(*found, sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
