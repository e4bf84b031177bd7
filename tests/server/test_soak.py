"""Hundreds of swaps under load, by a server in a process of its own."""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from streamd.daemon.supervisor import role_environment
from streamd.demo.broker import free_port
from tests.builders import HOUR, stream, write_log
from tests.server.world import SCHEMA, World, wait

SWAPS = int(os.environ.get("SOAK_SWAPS", "300"))


def resident_bytes(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_hundreds_of_swaps_fail_no_request_and_leave_memory_flat(tmp_path):
    write_log(tmp_path, *stream(4000, num_users=300, num_items=200, hours=24), SCHEMA, watermark=100 * HOUR)
    port = free_port()
    world = World(tmp_path, server__port=port)
    world.train()
    server = subprocess.Popen([sys.executable, "-m", "streamd", "run", "--role", "serve"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, env=role_environment(world.settings, "serve", os.environ))
    stop, took, failed, seen = threading.Event(), [], [], [""]

    def client():
        link, rng = http.client.HTTPConnection("127.0.0.1", port, timeout=10), np.random.default_rng(0)
        while not stop.wait(0.005):
            body = json.dumps({"src": f"n:{rng.integers(300)}", "dst": [f"n:{d}" for d in rng.integers(300, 500, 100)]})
            begun = time.perf_counter()
            link.request("POST", "/v1/score", body, {"content-type": "application/json"})
            answer = link.getresponse()
            content = answer.read()
            took.append((begun, time.perf_counter() - begun))
            if answer.status != 200:
                failed.append(content)
            else:
                seen[0] = json.loads(content)["as_of"]["version"]

    def is_ready():
        try:
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
            link.request("GET", "/readyz")
            return link.getresponse().status == 200
        except OSError:
            return False

    try:
        wait(is_ready, 60)
        asking = threading.Thread(target=client)
        asking.start()
        wait(lambda: seen[0] == world.registry.champion())
        time.sleep(3)
        usual = np.percentile([t for _, t in took[50:]], 99)
        versions, during, memory = world.registry.names()[-2:], [], []
        for number in range(SWAPS):
            begun = time.perf_counter()
            world.registry.promote(versions[number % 2], "soak", f"swap {number}")
            wait(lambda n=number: seen[0] == versions[n % 2])
            during += [t for at, t in took[-50:] if at >= begun]
            memory.append(resident_bytes(server.pid))
        stop.set()
        asking.join()
    finally:
        stop.set()
        server.terminate()
        server.wait()
    third = SWAPS // 3
    grown = np.mean(memory[-third:]) / np.mean(memory[third:2 * third])
    print(f"\n{SWAPS} swaps, {len(took)} requests, p99 {1e3 * usual:.1f} ms, while swapping {1e3 * np.percentile(during, 99):.1f} ms, "
          f"memory of the last third over the second {grown:.3f}, {memory[-1] / 1e6:.0f} MB")
    assert failed == [] and len(during) > SWAPS and grown < 1.05
