"""Hundreds of swaps under load."""

import http.client
import json
import os
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import uvicorn

from streamd.server.app import create_app
from streamd.server.protocol import BoundedProtocol
from tests.builders import HOUR, stream, write_log
from tests.server.test_server import SCHEMA, World, wait

SWAPS = int(os.environ.get("STREAMD_SOAK_SWAPS", "300"))


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_hundreds_of_swaps_fail_no_request_and_leave_memory_flat(tmp_path):
    write_log(tmp_path, *stream(4000, num_users=300, num_items=200, hours=24), SCHEMA, watermark=100 * HOUR)
    world = World(tmp_path)
    world.train()
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(world.state), log_level="error", http=BoundedProtocol))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    wait(lambda: server.started and world.engine.status.version == world.registry.champion())
    stop, took, failed = threading.Event(), [], []

    def client():
        link, rng = http.client.HTTPConnection(*listening.getsockname(), timeout=10), np.random.default_rng(0)
        while not stop.wait(0.005):
            body = json.dumps({"src": f"n:{rng.integers(300)}", "dst": [f"n:{d}" for d in rng.integers(300, 500, 100)]})
            begun = time.perf_counter()
            link.request("POST", "/v1/score", body, {"content-type": "application/json"})
            answer = link.getresponse()
            content = answer.read()
            took.append((begun, time.perf_counter() - begun))
            if answer.status != 200:
                failed.append(content)

    asking = threading.Thread(target=client)
    asking.start()
    time.sleep(3)
    usual = np.percentile([t for _, t in took[50:]], 99)
    versions, during, memory = world.registry.names()[-2:], [], []
    for number in range(SWAPS):
        begun = time.perf_counter()
        world.registry.promote(versions[number % 2], "soak", f"swap {number}")
        wait(lambda n=number: world.engine.status.version == versions[n % 2])
        during += [t for at, t in took[-50:] if at >= begun]
        memory.append(resident_bytes())
    stop.set()
    asking.join()
    server.should_exit = True
    thread.join()
    listening.close()
    third = SWAPS // 3
    grown = np.mean(memory[-third:]) / np.mean(memory[third:2 * third])
    print(f"\n{SWAPS} swaps, {len(took)} requests, p99 {1e3 * usual:.1f} ms, while swapping {1e3 * np.percentile(during, 99):.1f} ms, "
          f"memory of the last third over the second {grown:.3f}, {memory[-1] / 1e6:.0f} MB")
    assert failed == [] and len(during) > SWAPS and grown < 1.05
