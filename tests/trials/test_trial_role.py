"""The trial role as a process: killed at any moment and started again, it counts each record and event once."""

import json
import os
import random
import subprocess
import sys
import time

import msgspec
import numpy as np
import pytest
from kafka import KafkaProducer

from streamd.demo.standin import StandIn
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress, Schema
from streamd.roles import TRIAL
from streamd.settings.loading import as_environment
from streamd.trials.arms import Arms
from streamd.trials.impressions import Impression
from streamd.trials.trial_state import read_sums, state_path
from tests.builders import HOUR, SECOND, batch, settings

ARMS = {"champion": 0.5, "rule": 0.5}
USERS, ITEMS, NUM = 50, 20, 1200
ROLE = """
import sys
from streamd.settings.loading import load_settings
from streamd.daemon.run_role import run_role
from streamd.trials import joining, trial_state
joining.HOLD_SECONDS, joining.PAUSE_SECONDS, joining.SLICE_EVENTS, trial_state.CLOSED_AT_ONCE = 0.2, 0.02, 50, 20
sys.exit(run_role(load_settings()[0], "trial"))
"""


@pytest.fixture
def broker():
    made = StandIn()
    made.create_topic("shown", 4)
    yield made
    made.close()


def test_a_role_killed_at_any_moment_counts_each_record_and_event_once(tmp_path, broker, tmp_path_factory):
    s = settings(tmp_path, trials__name="ranking", trials__arms=ARMS, trials__topic="shown", trials__horizon_seconds=30,
                 trials__edge_set="default", telemetry__trial_port=0, stream__time_unit="us",
                 kafka__bootstrap_servers=broker.bootstrap_servers, kafka__client=broker.client)
    rng, rand = np.random.default_rng(0), random.Random(0)
    arms = Arms("ranking", ARMS)
    writer = LogWriter(tmp_path, Schema(), 10_000)
    keys = [*(f"u{i}" for i in range(USERS)), *(f"i{i}" for i in range(ITEMS))]
    writer.keys.update({key: i for i, key in enumerate(keys)})
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, api_version=(2, 3), linger_ms=5)

    def start():
        environ = {**os.environ, **as_environment(s)}
        return subprocess.Popen([sys.executable, "-c", ROLE], env=environ, stdout=subprocess.DEVNULL, stderr=log)

    # What happens is also what a plain model of it counts: each user takes the first shown item in every third answer.
    want = {arm: {"impressions": 0, "outcomes": 0, "value": 0.0} for arm in ARMS}
    units = {arm: set() for arm in ARMS}
    num_events, num_kills = 0, 0
    with (tmp_path_factory.mktemp("log") / "stderr").open("w+") as log:
        process = start()
        for i in range(NUM // 50):
            src, dst, times = [], [], []
            for j in range(50):
                at, user = (50 * i + j + 1) * 60 * SECOND, int(rng.integers(USERS))
                shown = rng.permutation(ITEMS)[:4]
                arm, answer = arms.arm_of(f"u{user}"), f"a{i}-{j}"
                record = msgspec.json.encode(Impression(
                    answer=answer, trial="ranking", arm=arm, unit=f"u{user}", version="v", src=f"u{user}", dst=[f"i{n}" for n in shown],
                    edge_set="default", edge=num_events + j, time_us=at))
                for _ in range(1 + (j % 10 == 0)):
                    producer.send("shown", record, f"u{user}".encode())
                want[arm]["impressions"] += 1
                units[arm].add(user)
                is_taken = j % 3 == 0
                # The event of an answer that nobody takes is about an item that was not shown.
                src.append(user)
                dst.append(USERS + int(shown[0] if is_taken else next(n for n in range(ITEMS) if n not in shown)))
                times.append(at + SECOND)
                want[arm]["outcomes"] += is_taken
                want[arm]["value"] += is_taken
                if j % 7 == 0:
                    producer.send("shown", json.dumps({"type": "outcome", "answer": answer, "time": at + 2 * SECOND, "value": 2.5}).encode())
                    want[arm]["outcomes"] += 1
                    want[arm]["value"] += 2.5
            producer.flush()
            writer.commit(batch(Schema(), np.array(src), np.array(dst), np.array(times), keys if not i else ()), Progress(), times[-1])
            num_events += 50
            time.sleep(rand.random() * 0.05)
            if i % 6 == 5 or process.poll() is not None:
                # Often after its start, which takes a second or two, sometimes within it.
                time.sleep(rand.random() * 3)
                assert process.poll() is None, log.seek(0) or log.read()
                process.kill()
                process.wait()
                num_kills += 1
                process = start()
        # An event after all horizons.
        writer.commit(batch(Schema(), np.array([0]), np.array([USERS]), np.array([times[-1] + 3 * HOUR])), Progress(), times[-1] + 3 * HOUR)
        writer.close()
        deadline = time.monotonic() + 60
        path = state_path(tmp_path, "ranking")

        def found():
            sums = read_sums(path)
            return sums and {arm: {"impressions": sums.impressions[arm], "outcomes": sums.outcomes[arm], "value": sums.sums[arm].total}
                             for arm in ARMS}

        while found() != want and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found() == want, (read_sums(path).reasons, log.seek(0) or log.read()[-2000:])
        sums = read_sums(path)
        assert {arm: sums.sums[arm].units for arm in ARMS} == {arm: len(own) for arm, own in units.items()}
        assert set(sums.reasons) <= {"double"} and num_kills == 4
        process.terminate()
        assert process.wait(20) == 0
    assert (tmp_path / "roles" / TRIAL).is_dir()
