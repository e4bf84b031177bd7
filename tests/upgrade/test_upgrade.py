"""Every release opens the directories of the ones before it, and goes on with them."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.models.inference.new_rates import COUNTS
from streamd.registry import Registry
from streamd.settings.loading import as_environment, schema_of
from tests.builders import HOUR, settings
from tests.server.world import World, wait
from tests.upgrade.make import ASKED, TOPIC, VALUES

HERE = Path(__file__).parent
RELEASES = sorted(p.name.removesuffix(".json") for p in HERE.glob("*.json"))


@pytest.fixture(params=RELEASES)
def old(request, tmp_path):
    """(directory of an older release, its settings, what it must still say)"""
    with tarfile.open(HERE / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / "data"
    return path, settings(path, **VALUES), json.loads((HERE / f"{request.param}.json").read_text())


def test_the_log_says_what_it_said_and_can_be_gone_on_with(old):
    path, chosen, want = old
    log = LogReader.open(path)
    src, dst, when = log.edges(0, log.num_edges)
    events = [[str(log.keys[u]), str(log.keys[v]), t] for u, v, t in zip(src.tolist(), dst.tolist(), when.tolist(), strict=True)]
    assert events == want["events"] and sorted(map(str, log.ids)) == want["keys"] and log.watermark == want["watermark"]
    positions = {t: {str(p): [x.offset, x.index, list(x.ahead)] for p, x in parts.items()}
                 for t, parts in log.state.progress.positions.items()}
    assert positions == want["positions"] and len(log.labels()[0]) == want["labels"] and TOPIC in positions
    writer = LogWriter(path, schema_of(chosen), 250)
    assert writer.num_edges == len(want["events"]) and writer.newest_us == want["events"][-1][2]
    writer.close()


def test_its_versions_answer_as_they_did_and_the_trainer_goes_on(old):
    path, chosen, want = old
    registry = Registry.of(chosen)
    assert registry.names() == want["versions"] and registry.champion() == want["champion"]
    world = World.of(path, chosen).start()
    try:
        wait(lambda: world.engine.status.version == want["champion"])
        for (src, dst), before in zip(ASKED, want["answers"], strict=True):
            now = world.client.post("/v1/score", json={"src": src, "dst": dst}).json()
            for a, b in zip(now["scores"], before["scores"], strict=True):
                assert a["dst"] == b["dst"] and a["known"] == b["known"] and a["score"] == pytest.approx(b["score"], abs=1e-4)
        writer = LogWriter(path, schema_of(chosen), 250)
        from streamd.events import Progress, empty_batch
        writer.commit(empty_batch(schema_of(chosen)), Progress(), 40 * HOUR)
        writer.close()
        world.train()
        assert registry.champion() not in (None, want["champion"]), "it learned on and published"
        wait(lambda: world.engine.status.version == registry.champion())

        # The old version had no rate of new destinations; the one that went on from it has.
        assert COUNTS not in registry.load(want["champion"]).weights
        assert registry.load(registry.champion()).weights[COUNTS][0].sum() > 0
        now = world.client.post("/v1/score", json={"src": "u:7", "dst": ["never seen", "neither was this"]}).json()
        assert np.isfinite(now["scores"][0]["score"]) and now["scores"][0]["score"] == now["scores"][1]["score"]
    finally:
        world.stop()


def test_verify_finds_nothing_wrong_with_it(old):
    path, chosen, _ = old
    env = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")} | as_environment(chosen)
    done = subprocess.run([sys.executable, "-m", "streamd", "verify"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
