"""Two live leaders on a real Apache Kafka: one is stopped by SIGSTOP amid a commit, the other claims and commits, the first goes on.

Seeds choose the step, the numbers of commits and the size of records. `make fences` runs 200 of them on three brokers."""

import json
import os
import random
import signal
import subprocess
import sys
import uuid
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from streamd.demo.broker import ApacheKafka
from streamd.errors import KafkaError
from streamd.eventlog.recovery import published_seq
from streamd.ingest.kafka.client import make_admin
from streamd.replica.changelog.topics import ensure_topic
from streamd.settings.loading import KafkaSettings
from tests.crash.daemons import wait
from tests.replica.directories import difference, lines_of

pytestmark = pytest.mark.kafka
STEPS = ("acknowledged", "acknowledged", "sent", "line", "idle")
"""Where the first leader is stopped: when it knows that a commit is acknowledged and before it shows it; when it has sent it; when its
line is durable; when it has nothing to say."""
FENCE_SEEDS = int(os.environ.get("FENCE_SEEDS", "200"))


class Process:
    """A member in a process of its own."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-m", "tests.replica.fence_member"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, do, **values):
        self.process.stdin.write(json.dumps({"do": do, **values}) + "\n")
        self.process.stdin.flush()

    def answer(self):
        """The next answer; what the member logs lies between."""
        while True:
            line = self.process.stdout.readline()
            assert line, "the process ended"
            if line.startswith('{"shown"'):
                return json.loads(line)

    def ask(self, do, **values):
        self.tell(do, **values)
        answer = self.answer()
        assert "error" not in answer, answer
        return answer

    def is_stopped(self):
        return Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def processes():
    with ExitStack() as stack:
        made = [Process(), Process()]
        for process in made:
            stack.callback(process.end)
        yield made


def has_topic(kafka, name):
    """Make the topic; a busy cluster says some moments later that it has it."""
    try:
        with closing(make_admin(kafka)) as admin:
            return ensure_topic(admin, kafka, name) is not None
    except KafkaError:
        return False


def play(seed, folder, servers, processes):
    """One seed: both lead in turn, each stopped once while the other takes over. Returns: the steps at which they were stopped."""
    rng = random.Random(seed)
    name = f"fence-{uuid.uuid4().hex[:8]}"
    kafka = KafkaSettings(bootstrap_servers=servers)
    wait(lambda: has_topic(kafka, name), "the topic is there", 60)
    paths = [folder / "a", folder / "b"]
    for process, path in zip(processes, paths, strict=True):
        process.ask("open", path=str(path), topic=name, servers=servers, room=rng.choice([120, 400, 100_000]))
    number, stopped_at = 20, []

    def numbers(least, most):
        nonlocal number
        first, number = number, number + rng.randint(least, most)
        return list(range(first, number))

    term = processes[0].ask("lead")["term"]
    for turn in range(rng.randint(1, 2)):
        first, second = processes[turn], processes[1 - turn]
        first.ask("commit", numbers=numbers(0, 4))

        # The first leader is stopped at a step.
        step = rng.choice(STEPS)
        stopped_at.append(step)
        if step == "idle":
            first.tell("idle", seconds=60)
            first.stop()
        else:
            some = numbers(1, 6)
            first.tell("commit", numbers=some, step=step, at=rng.randrange(len(some)))
        wait(first.is_stopped, "it is stopped", 30)

        # The other claims, and commits in its place.
        if rng.random() < 0.7:
            second.ask("follow")
        led = second.ask("lead")
        assert led["term"] == term + 1
        term = led["term"]
        second.ask("commit", numbers=numbers(0, 6))

        # The first goes on, finds out, and has shown nothing but what came before the claim.
        first.go_on()
        answer = first.answer()
        if "error" not in answer:
            first.tell("idle", seconds=60)
            answer = first.answer()
        assert answer.get("error") == "FencedError", answer
        assert answer["shown"] <= led["seq"], "it showed a commit behind the claim"
        mine, theirs = lines_of(paths[turn]), lines_of(paths[1 - turn])
        assert all(mine[seq] == theirs[seq] for seq in range(1, answer["shown"] + 1)), "it showed something else"

        # It comes back as a follower.
        first.ask("follow")
        second.ask("commit", numbers=numbers(1, 3))
        if turn == 0:
            first.ask("follow")
    leads = processes[len(stopped_at) % 2]
    leads.ask("close")
    for process in processes:
        process.ask("follow")
    assert published_seq(paths[0]) == published_seq(paths[1]) > 0
    assert difference(*paths) == ""
    return stopped_at


@pytest.mark.parametrize("seeds", [range(5)])
def test_a_leader_that_is_stopped_amid_a_commit_shows_nothing_that_does_not_count(kafka, tmp_path, processes, seeds):
    for seed in seeds:
        play(seed, tmp_path / str(seed), kafka.bootstrap_servers, processes)


@pytest.mark.slow
def test_many_seeds_on_three_brokers(kafka_home, tmp_path, processes):
    with closing(ApacheKafka(kafka_home, tmp_path / "kafka", nodes=3)) as kafka:
        for seed in range(FENCE_SEEDS):
            steps = play(seed, tmp_path / str(seed), kafka.bootstrap_servers, processes)
            print(f"seed {seed} of {FENCE_SEEDS}: stopped at {', '.join(steps)}", flush=True)
