"""A whole daemon in a trial: each role is killed while users ask and act, and the figures are what the driver did."""

import json
import os
import signal
import time
import urllib.request

import msgspec
import numpy as np
import pytest
from kafka import KafkaProducer, TopicPartition

from streamd.demo.standin import StandIn
from streamd.ingest.kafka.client import make_consumer
from streamd.trials.arms import Arms
from streamd.trials.trial_state import read_sums, state_path
from tests.builders import HOUR, SECOND
from tests.crash.daemons import Daemon, wait
from tests.crash.test_chaos import role_of

ARMS = {"champion": 0.4, "last_midnight": 0.3, "rule": 0.3}
USERS, ITEMS, ROUNDS = 12, 15, 60
KILLED = ["train", "serve", "trial", "ingest"]
"""Roles in the order of their kills; the daemon itself is last."""


class Driver:
    """Asks and acts, and counts by itself."""

    def __init__(self, daemon, broker):
        self.daemon, self.broker = daemon, broker
        self.producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, api_version=(2, 3))
        self.arms, self.rng = Arms("kills", ARMS), np.random.default_rng(0)
        self.answers, self.units = set(), set()
        self.want = {arm: {"impressions": 0, "outcomes": 0, "value": 0.0} for arm in ARMS}

    def act(self, events):
        """Send edges, all through one partition: their order is that of their times."""
        for src, dst, at in events:
            self.producer.send("acts", json.dumps({"src": src, "dst": dst, "time": at}).encode(), partition=0)
        self.producer.flush()

    def ask(self, user, at):
        unit = f"{user} at {at // (6 * HOUR)}"
        body = {"src": user, "k": 4, "time": at, "trial": {"unit": unit}}
        url = f"http://127.0.0.1:{self.daemon.settings.server.port}/v1/recommend"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            answer = json.load(response)
        arm = self.arms.arm_of(unit)
        assert answer["arm"] == arm
        self.answers.add(answer["answer"])
        self.units.add(unit)
        self.want[arm]["impressions"] += 1
        return arm, answer

    def turn(self, begin):
        """Some users ask, and a minute later some of them take an item or their program reports a value."""
        events = []
        for i, user in enumerate(self.rng.permutation(USERS)[:5].tolist()):
            at = begin + i * SECOND
            arm, answer = self.ask(f"u{user}", at)
            shown = [one["dst"] for one in answer["scores"]]
            if i % 2 == 0 and shown:
                events.append((f"u{user}", shown[0], at + 60 * SECOND))
                self.want[arm]["outcomes"] += 1
                self.want[arm]["value"] += 1
            else:
                # A new node, which no answer showed.
                events.append((f"u{user}", f"new:{at}", at + 60 * SECOND))
            if i == 3:
                outcome = {"type": "outcome", "answer": answer["answer"], "time": at + 90 * SECOND, "value": 2.5}
                self.producer.send("shown", json.dumps(outcome).encode())
                self.want[arm]["outcomes"] += 1
                self.want[arm]["value"] += 2.5
        self.act(events)

    def in_topic(self):
        """The answers that the topic has."""
        consumer = make_consumer(self.daemon.settings.kafka)
        parts = [TopicPartition("shown", i) for i in range(4)]
        ends = consumer.end_offsets(parts)
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        found = set()
        while any(consumer.position(part) < ends[part] for part in parts):
            for records in consumer.poll(timeout_ms=200).values():
                found |= {msgspec.json.decode(r.value)["answer"] for r in records if b'"impression"' in r.value}
        consumer.close()
        return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_role_is_killed_in_a_trial_and_the_figures_are_those_of_the_driver(tmp_path):
    broker = StandIn()
    for topic in ("acts", "shown"):
        broker.create_topic(topic, 4)
    daemon = Daemon(tmp_path / "data", broker.bootstrap_servers, "acts", trials__name="kills", trials__arms=ARMS, trials__topic="shown",
                    trials__horizon_seconds=3600, trials__edge_set="default", telemetry__trial_port=0, kafka__client=broker.client)
    driver = Driver(daemon, broker)
    num_kills = 0
    try:
        rng = np.random.default_rng(1)
        driver.act([(f"u{rng.integers(USERS)}", f"i{rng.integers(ITEMS)}", i * 20 * SECOND) for i in range(180)])
        daemon.start()
        for number in range(ROUNDS):
            wait(daemon.is_ready, "it answers", 120)
            driver.turn(HOUR + number * HOUR // 2)
            if number % 7 == 6:
                role = KILLED[num_kills] if num_kills < len(KILLED) else ""
                if role in ("serve", ""):
                    # A killed server loses impressions of its last moments, and cannot count them.
                    wait(lambda: driver.in_topic() == driver.answers, "all impressions are sent")
                if role:
                    wait(lambda role=role: role_of(daemon, role) is not None, f"{role} runs")
                    killed = role_of(daemon, role)
                    os.kill(killed, signal.SIGKILL)
                    if role == "serve":
                        wait(lambda role=role, killed=killed: role_of(daemon, role) not in (None, killed), "it is started again")
                else:
                    daemon.kill()
                    time.sleep(1)
                    daemon.start()
                num_kills += 1
        driver.act([("u0", "new:0", 50 * HOUR)])
        path = state_path(daemon.path, "kills")

        def found():
            sums = read_sums(path)
            return sums and {arm: {"impressions": sums.impressions[arm], "outcomes": sums.outcomes[arm], "value": sums.sums[arm].total}
                             for arm in ARMS}

        deadline = time.monotonic() + 240
        while found() != driver.want and time.monotonic() < deadline:
            time.sleep(0.5)
        sums = read_sums(path)
        assert found() == driver.want and sum(one.units for one in sums.sums.values()) == len(driver.units), sums.reasons
        assert set(sums.reasons) <= {"double"} and num_kills == 8
        shown = daemon.get("/v1/trials")
        assert {one["arm"]: one["answers"] for one in shown["arms"]} == {arm: one["impressions"] for arm, one in driver.want.items()}
    finally:
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.stop()
        driver.producer.close()
        broker.close()
        print(daemon.output()[-6000:])
