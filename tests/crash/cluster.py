"""A leader, replicas and what asks them all the time, each process started as users start it, and faults for every part.

What they answered is compared with a plain reading of the log, up to the edge that each answer says it saw."""

import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zlib
from bisect import bisect_right
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from kafka import KafkaAdminClient, KafkaProducer
from safetensors.numpy import load_file

from streamd.eventlog.reader import LogReader
from streamd.eventlog.recovery import published_seq
from streamd.models.inference.numpy_model import NumpyModel
from streamd.models.rule import NAME as RULE
from streamd.models.rule import rule_scores
from streamd.registry import Registry
from streamd.serving.loaded_version import UNKNOWN
from streamd.settings.loading import as_environment
from streamd.telemetry.heartbeat import read_beat
from tests.builders import HOUR, SECOND
from tests.crash.daemons import Daemon, produce, wait
from tests.graph.reference_facts import ReferenceFacts
from tests.replica.directories import difference, lines_of
from tests.replica.models_world import content, logged_windows

USERS, ITEMS = 40, 30
STEP = 10 * SECOND
"""Event time between two events of the stream."""
RECORD = 7
"""Events a record: a log that lacks one lacks so many."""
TIMEOUT = 5
"""`leader.timeout_seconds` of standbys: on cores that are shared, a leader may be quiet for seconds."""
PATIENCE = 240
"""Longest wait for anything, seconds: these machines share their cores with much else."""


class Member(Daemon):
    """The daemon of one machine. down: times, monotonic, between which it was killed and could not answer yet."""

    def __init__(self, path, broker, topic, **values):
        super().__init__(path, broker, topic, **values)
        self.down = []

    @property
    def name(self):
        return self.path.name

    def children(self):
        """Process ids by role, of those that run now."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == self.process.pid:
                    words = (path / "cmdline").read_bytes().split(b"\0")
                    found[words[words.index(b"--role") + 1].decode()] = int(path.name)
            except (OSError, IndexError, ValueError):
                continue
        return found

    def kill_role(self, role):
        """Kill -9 of one role; the daemon starts it again. Returns: whether it ran."""
        pid = self.children().get(role)
        if pid is None:
            return False
        if role == "serve":
            self.down.append([time.monotonic(), None])
        os.kill(pid, signal.SIGKILL)
        wait(lambda: not runs(pid), f"{role} is gone")
        return True

    def kill_machine(self):
        """Kill -9 of all its processes at once, as the loss of the machine does."""
        self.down.append([time.monotonic(), None])
        children = self.children().values()
        self.kill()
        for pid in children:
            if runs(pid):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            wait(lambda pid=pid: not runs(pid), "its processes are gone")

    def pause(self, seconds, *roles):
        """Let some roles, or the whole machine, stand still for a while, as a virtual machine that is moved does."""
        children = self.children()
        pids = [children[r] for r in roles if r in children] if roles else [self.process.pid, *children.values()]
        if not roles:
            self.down.append([time.monotonic(), None])
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            for pid in pids:
                if runs(pid):
                    os.kill(pid, signal.SIGCONT)

    def kill_daemon(self):
        """Kill -9 of the daemon alone: its roles end with it, in good order."""
        self.down.append([time.monotonic(), None])
        children = self.children().values()
        self.kill()
        for pid in children:
            wait(lambda pid=pid: not runs(pid), "its roles have ended", PATIENCE)

    def wipe(self):
        """Remove all that its directory holds; the directory may be a disk of its own."""
        for path in self.path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.reader = None

    def answers_again(self):
        """Wait until it is ready after a kill: from then on it must answer."""
        if self.down and self.down[-1][1] is None:
            wait(self.is_ready, f"{self.name} is ready again", PATIENCE)
            self.down[-1][1] = time.monotonic()

    def was_down(self, begun, ended):
        return any(begin <= ended and (end is None or begun <= end) for begin, end in self.down)

    def score(self, src, dst, **headers):
        """Ask once. Returns: the answer, with its `position`. Raises: OSError."""
        body = json.dumps({"src": src, "dst": dst}).encode()
        named = {k.replace("_", "-"): v for k, v in headers.items()}
        url = f"http://127.0.0.1:{self.settings.server.port}/v1/score"
        request = urllib.request.Request(url, body, {"content-type": "application/json", **named})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer) | {"position": answer.headers["streamd-position"]}
        except http.client.HTTPException as error:
            # A kill came between head and body.
            raise ConnectionError(f"half an answer: {error!r}") from error

    def command(self, *words):
        """Run a command of streamd on its directory. Returns: exit status and what it printed."""
        done = subprocess.run([sys.executable, "-m", "streamd", *words], env=os.environ | as_environment(self.settings), capture_output=True,
                              text=True, check=False)
        return done.returncode, done.stdout + done.stderr


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Given(NamedTuple):
    """An answer, and what was asked."""

    member: str
    src: str
    dst: list
    answer: dict


class Asker(threading.Thread):
    """Asks one member all the time, without a token. failed: requests that failed while the member was not killed."""

    def __init__(self, member, pause):
        super().__init__(daemon=True)
        self.member, self.pause, self.stop = member, pause, threading.Event()
        self.given, self.failed, self.excused = [], [], 0
        self.newest = ()

    def run(self):
        rng = random.Random(self.member.name)
        while not self.stop.wait(self.pause):
            src = f"u:{rng.randrange(USERS + 3)}"
            dst = [f"i:{rng.randrange(ITEMS + 3)}" for _ in range(4)]
            begun = time.monotonic()
            try:
                answer = self.member.score(src, dst)
            except OSError as error:
                # A kill is noted before it is done, and its end only once the member is ready.
                if self.member.was_down(begun, time.monotonic()):
                    self.excused += 1
                else:
                    said = error.read().decode() if isinstance(error, urllib.error.HTTPError) else ""
                    self.failed.append(f"{self.member.name}: {error} {said}")
            else:
                self.given.append(Given(self.member.name, src, dst, answer))


class TokenWriter(threading.Thread):
    """Writes a record, and asks a member at random for an answer that has it; then another for one that is not older."""

    def __init__(self, cluster, pause):
        super().__init__(daemon=True)
        self.cluster, self.pause, self.stop = cluster, pause, threading.Event()
        self.kept, self.given, self.wrong = 0, [], []

    def run(self):
        rng = random.Random(7)
        number = 0
        while not self.stop.wait(self.pause):
            number += 1
            src = f"w:{number}"
            try:
                token = self.cluster.write(src)
                first, second = rng.choices(self.cluster.members, k=2)
                answer = self.ask(first, src, token)
                if not answer["known"]:
                    self.wrong.append(f"{first.name} answered {token} without it: {answer}")
                later = self.ask(second, src, answer["position"])
                if place(later) < place(answer) or not later["known"]:
                    self.wrong.append(f"{second.name} answered {answer['position']} with {later}")
                self.kept += 1
            except Exception as error:  # noqa: BLE001 - told where the test looks
                self.wrong.append(f"{src}: {error!r}")

    def ask(self, member, src, token):
        """Ask until it answers: with a token a request may fail, and be tried again."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                answer = member.score(src, ["i:0"], streamd_after=token)
                self.given.append(Given(member.name, src, ["i:0"], answer))
                return answer
            except OSError as error:
                if isinstance(error, urllib.error.HTTPError) and error.code not in (429, 503, 504):
                    raise
                if time.monotonic() > until or self.stop.is_set():
                    raise
                time.sleep(0.1)


def place(answer):
    return tuple(map(int, answer["position"].split(".")))


class Cluster:
    """A leader and replicas of one log, or standbys of which one leads, a stream of events into its topic, and askers.

    Owner: the test, which closes it."""

    def __init__(self, folder, broker, topic, replicas=0, standbys=0, pause=0.1, timeout=TIMEOUT, **values):
        self.folder, self.broker, self.topic, self.pause, self.timeout = folder, broker, topic, pause, timeout
        self.store = folder / "store"
        self.store.mkdir()
        common = {"model__name": "pair", "log__name": topic, "log__store": f"file://{self.store}", "log__manifest_seconds": 10, "telemetry__archive_port": 0,
                  "ingest__segment_edges": 5_000, "server__deadline_seconds": 30, "registry__keep": 1_000, **values}
        moving = {"log__member": "standby", "leader__timeout_seconds": timeout}
        self.may_lead = [Member(folder / f"standby{i}", broker.bootstrap_servers, topic, **common, **moving) for i in range(standbys)]
        if not standbys:
            self.may_lead = [Member(folder / "leader", broker.bootstrap_servers, topic, **common)]
        self.replicas = [Member(folder / f"replica{i}", broker.bootstrap_servers, topic, log__member="replica", **common) for i in range(replicas)]
        self.members = [*self.may_lead, *self.replicas]
        self.terms, self.led_last = set(), None
        self.producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, retries=1000, acks="all", enable_idempotence=True)
        self.sent, self.done = [], Counter()
        self.lock, self.clock = threading.Lock(), HOUR
        self.feeding, self.closed = threading.Event(), threading.Event()
        self.idle = threading.Event()
        self.askers = [Asker(m, pause) for m in self.members]
        self.writer = TokenWriter(self, 5 * pause)
        self.feeder = threading.Thread(target=self._feed, daemon=True)
        self.feed_failed = None
        self.checked = 0

    def start(self):
        for member in self.members:
            member.start()
        self.feeding.set()
        self.feeder.start()
        for member in self.members:
            wait(lambda member=member: member.seen() > 40, f"{member.name} answers", PATIENCE)
        for thread in (*self.askers, self.writer):
            thread.start()
        return self

    @property
    def leader(self):
        """The member that leads, as it says itself; among standbys this waits until one does."""
        if len(self.may_lead) == 1:
            return self.may_lead[0]
        if self.led_last is not None:
            return self.led_last
        until = time.monotonic() + PATIENCE
        while True:
            # Of two that say so the one in the higher term does: the other one has not noticed.
            beats = [(read_beat(m.path, "ingest"), m) for m in self.may_lead]
            lead = [(b.detail["term"], m.name, m) for b, m in beats if b is not None and b.alive and b.detail.get("leading")]
            if lead:
                term, _, member = max(lead)
                self.terms.add(term)
                return member
            assert time.monotonic() < until, "nobody leads"
            time.sleep(0.05)

    @property
    def followers(self):
        leader = self.leader
        return [m for m in self.members if m is not leader]

    def next_times(self, count):
        with self.lock:
            begin, self.clock = self.clock, self.clock + count * STEP
        return range(begin, self.clock, STEP)

    def _feed(self):
        rng = random.Random(5)
        try:
            while not self.closed.is_set():
                if not self.feeding.is_set():
                    self.idle.set()
                    time.sleep(0.02)
                    continue
                rows = [(f"u:{rng.randrange(USERS)}", f"i:{rng.randrange(ITEMS)}", t) for t in self.next_times(20)]
                produce(self.producer, self.topic, rows, size=RECORD)
                self.sent += rows
                time.sleep(2.5 * self.pause)
        except Exception as error:  # noqa: BLE001 - told where the test looks
            self.feed_failed = error
            self.idle.set()

    def write(self, src):
        """Send a record of one event. Returns: its token."""
        row = (src, "i:0", self.next_times(1)[0])
        value = json.dumps([{"src": row[0], "dst": row[1], "time": row[2]}]).encode()
        said = self.producer.send(self.topic, value, partition=zlib.crc32(src.encode()) % 4).get(90)
        self.sent.append(row)
        return f"{said.topic}:{said.partition}:{said.offset}"

    # Faults

    def leader_node(self):
        """The broker that leads the changelog's partition."""
        admin = KafkaAdminClient(bootstrap_servers=self.broker.bootstrap_servers)
        try:
            [topic] = admin.describe_topics([f"{self.topic}.changelog"])
            return topic["partitions"][0]["leader_id"] - 1
        finally:
            admin.close()

    def fault(self, what, rng):
        """Let one thing go wrong, and start again what nothing else would."""
        self.done[what] += 1
        kind, _, part = what.partition(" ")
        if kind == "standby":
            leader = self.leader
            member = rng.choice([m for m in self.may_lead if m is not leader])
        else:
            member = rng.choice(self.replicas) if kind == "replica" else self.leader
        if kind == "broker":
            node = self.leader_node()
            self.broker.kill(node)
            time.sleep(rng.uniform(0, 12))
            self.broker.start(node)
        elif kind == "store":
            with self.store_away():
                time.sleep(rng.uniform(5, 15))
        elif part == "paused":
            member.pause(rng.uniform(1, 3 * self.timeout))
        elif part == "ingest-paused":
            member.pause(rng.uniform(self.timeout, 3 * self.timeout), "ingest")
        elif part == "asked":
            status, said = member.command("lead")
            assert status == 0 and said.startswith("leads in term"), said
        elif part == "disk":
            full_disk(member.path, rng.uniform(4, 10))
        elif part in ("machine", "wiped"):
            member.kill_machine()
            if part == "wiped":
                member.wipe()
            # Among standbys sometimes longer than it takes the other one to lead.
            time.sleep(rng.uniform(0, 3 if len(self.may_lead) == 1 else 3 * self.timeout))
            member.start()
        elif part == "daemon":
            member.kill_daemon()
            member.start()
        elif not member.kill_role(part):
            self.done[what] -= 1
        member.answers_again()

    @contextmanager
    def store_away(self):
        """In the place of the store's folder is a file meanwhile: nothing can be read or written."""
        away = self.folder / "store-away"
        self.store.rename(away)
        self.store.write_text("no folder")
        try:
            yield
        finally:
            self.store.unlink()
            away.rename(self.store)

    # What must hold

    def check(self):
        """Let all come to rest, and check what must hold then; the stream goes on afterwards."""
        self.writer.stop.set()
        self.writer.join()
        self.idle.clear()
        self.feeding.clear()
        self.idle.wait(120)
        assert self.feed_failed is None, self.feed_failed
        try:
            self.settle()
            self.check_logs()
            self.check_models()
            self.check_answers()
            return self.writer.kept
        finally:
            self.writer = TokenWriter(self, 5 * self.pause)
            self.writer.start()
            self.feeding.set()

    def settle(self):
        """Wait until all members have the same commits, versions and windows."""
        num = len(self.sent)
        wait(lambda: self.leader.edges() == num, f"the leader shows all {num} events, not {self.leader.edges()}", PATIENCE)
        for member in self.members:
            wait(lambda member=member: member.seen() == num, f"the server of {member.name} has seen all events", PATIENCE)

        def rest():
            return [(published_seq(m.path), content(m.path)) for m in self.members]

        until = time.monotonic() + PATIENCE
        last = None
        while True:
            seen = rest()
            if all(one == seen[0] for one in seen) and seen[0] == last:
                return
            last = seen[0]
            assert time.monotonic() < until, f"they differ: {[why(seen[0], one) for one in seen[1:]]}"
            time.sleep(1)

    def check_logs(self):
        for member in self.followers:
            assert difference(self.leader.path, member.path) == "", member.name
        want = sorted((u, v) for u, v, _ in self.sent)
        assert sorted((u, v) for u, v, _ in self.leader.events()) == want, "each event is in the log once"

    def check_models(self):
        """Versions, journal and history are equal everywhere (`settle`), each window is there once."""
        windows = logged_windows(self.leader.path)
        begins = [w["start_us"] for w in windows]
        assert begins == sorted(set(begins)), "each window once"
        return windows

    def check_answers(self):
        """Each answer is what the log says up to where the answer says it saw it; none failed, no token was broken."""
        assert self.writer.wrong == [], self.writer.wrong[:3]
        for asker in self.askers:
            assert asker.is_alive()
            assert asker.failed == [], asker.failed[:3]
        given = [*self.writer.given]
        for asker in self.askers:
            count = len(asker.given)
            given += asker.given[:count]
            del asker.given[:count]
        oracle = Oracle(self.leader)
        wrong = oracle.wrong(given)
        assert wrong == [], f"{len(wrong)} of {len(given)} answers are wrong: {wrong[:3]}"
        assert sum(oracle.stale) > len(oracle.stale) / 4, f"an answer from an older log would be noticed: {Counter(oracle.stale)}"
        self.checked += len(given)

    def verify(self):
        """What an operator would ask at the end: checksums, and every byte against the changelog."""
        for member in self.members:
            status, said = member.command("verify")
            assert status == 0, said
            status, said = member.command("changelog", "verify")
            assert status == 0 and "0 commits of the changelog not shown" in " ".join(said.split()), said

    def finish(self, verify=True):
        """Check all once more, stop, and check the directories at rest. Returns: how many tokens were kept since the last check."""
        kept = self.check()
        self.feeding.clear()
        for thread in (*self.askers, self.writer):
            thread.stop.set()
        for thread in (*self.askers, self.writer):
            thread.join()
        self.closed.set()
        self.feeder.join()
        self.settle()
        if verify:
            self.verify()
        if len(self.may_lead) > 1:
            # Whoever is stopped last leads last, and has a commit of its own.
            self.check_logs()
            followers, self.led_last = self.followers, self.leader
            for member in (*followers, self.led_last):
                assert member.stop() == 0
            return kept
        assert self.leader.stop() == 0
        for member in self.replicas:
            wait(lambda member=member: published_seq(member.path) == published_seq(self.leader.path), f"{member.name} has the last commit", PATIENCE)
            assert member.stop() == 0
        self.check_logs()
        return kept

    def close(self):
        self.closed.set()
        for thread in (*self.askers, self.writer):
            thread.stop.set()
        for member in self.members:
            if member.process is not None and member.process.poll() is None:
                member.kill_machine()
            print(f"--- {member.name}\n{member.output()[-5000:]}" if member.process else "")
        self.producer.close(5)


def why(left, right):
    """In which files two members differ."""
    (a, x), (b, y) = left, right
    return f"commits {a} and {b}; " + ", ".join(sorted(p for p in {*x, *y} if x.get(p) != y.get(p))[:5])


class CarriedFacts(ReferenceFacts):
    """The reference, but that popularity is carried on from event to event: the sums over all events for each answer would take an hour."""

    def __init__(self, half_lives_seconds, max_pairs):
        super().__init__(half_lives_seconds, max_pairs)
        self.carried, self.asked = {}, 0

    def _weights(self, i, key, t):
        weight, when = self.carried.get((i, key), (0.0, t))
        return weight * 2.0 ** (-(t - when) / 1e6 / self.half_lives[i])

    def update(self, u, v, t):
        super().update(u, v, t)
        for i in range(len(self.half_lives)):
            for key in ("all", v):
                self.carried[i, key] = self._weights(i, key, t) + 1.0, t

    def popularity(self, i, c, t):
        found = self._weights(i, "all", t), self._weights(i, c, t)
        self.asked += 1
        if self.asked % 5000 == 0:
            np.testing.assert_allclose(found, super().popularity(i, c, t), rtol=1e-9)
        return found


class Oracle:
    """Says what is right at each edge, from the leader's log and versions alone, by plain Python and one model a version."""

    def __init__(self, leader):
        self.events = leader.events()
        self.reader = LogReader.open(leader.path)
        self.ids = {key: i for i, key in enumerate(self.reader.keys)}
        self.times = self.reader.edges(0, self.reader.num_edges)[2].tolist()
        self.settings = leader.settings
        self.registry, self.models = Registry.of(leader.settings), {}
        self.stale = []
        """For each answer whether the same scores on facts of an older edge would have been noticed."""
        self.edges_at = {}
        edges = 0
        for seq, line in sorted(lines_of(leader.path).items()):
            for first, count, *_ in json.loads(line[9:])["segments"]:
                edges = max(edges, first + count)
            self.edges_at[seq] = edges
        self.ends = sorted(set(self.edges_at.values()))

    def wrong(self, given):
        """Which of some answers are wrong, in words."""
        model = self.settings.model
        facts = CarriedFacts(model.half_lives_seconds, model.max_pairs)
        known, at, wrong = set(), 0, []
        for one in sorted(given, key=lambda g: g.answer["as_of"]["last_edge"]):
            end = one.answer["as_of"]["last_edge"] + 1
            # Would this notice an answer from an older log? Facts and nodes are those of the edge before.
            if end - at >= RECORD:
                self.stale.append(not self._are_right(one, facts, known, self.times[end - 1] + 1))
            for src, dst, when in self.events[at:end]:
                facts.update(self.ids[src], self.ids[dst], when)
                known |= {src, dst}
            at = end
            if why := self._difference(one, end, facts, known):
                wrong.append(f"{one.member}: {why}: {one}")
        return wrong

    def _difference(self, one, end, facts, known):
        as_of = one.answer["as_of"]
        seq = place(one.answer)[1]
        now = self.times[end - 1] + 1
        # A commit that is taken in by parts is not said to be seen before its end.
        later = bisect_right(self.ends, self.edges_at[seq])
        if not self.edges_at[seq] <= end <= (self.ends[later] if later < len(self.ends) else end):
            return f"commit {seq} has {self.edges_at[seq]} edges"
        if (as_of["newest_event"], as_of["time"]) != (now - 1, now):
            return f"the newest event is of {now - 1}"
        said = [one.answer["known"], *(s["known"] for s in one.answer["scores"])]
        if said != [key in known for key in (one.src, *one.dst)]:
            return "other nodes are known"
        if [s["dst"] for s in one.answer["scores"]] != one.dst:
            return "other candidates"
        return "" if self._are_right(one, facts, known, now) else "other scores"

    def _are_right(self, one, facts, known, now):
        """Whether the scores of an answer are those that facts give."""
        u, *targets = (self.ids[key] if key in known else UNKNOWN for key in (one.src, *one.dst))
        rows = np.array([facts.row(u, v, now) for v in targets], np.float32)
        version = one.answer["as_of"]["version"]
        right = rule_scores(rows) if version == RULE else self._model(version).pair_logits(rows)
        return np.allclose([s["score"] for s in one.answer["scores"]], right, rtol=1e-3, atol=5e-3)

    def _model(self, version):
        if version not in self.models:
            # Older versions keep no memory, and so cannot be loaded whole; their weights say all that this model scores by.
            manifest = self.registry.manifest(version)
            weights = load_file(self.registry.folder / version / "model.safetensors")
            self.models[version] = NumpyModel(manifest.model_settings(), manifest.log_schema(), weights)
        return self.models[version]


def full_disk(path, seconds):
    """Fill the disk that a directory is on, for some time."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            # Others may let go of room meanwhile.
            try:
                file.write(b"\0" * 65_536)
            except OSError:
                time.sleep(0.01)
    filler.unlink()


@contextmanager
def small_disks(paths):
    """A file system of its own for each directory. Yields: whether this machine lets one mount them."""
    mounted = []
    for path in paths:
        path.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192m", "tmpfs", str(path)], capture_output=True, check=False)
        mounted += [path] * (done.returncode == 0)
    try:
        yield len(mounted) == len(paths)
    finally:
        for path in mounted:
            subprocess.run(["umount", "-l", str(path)], check=True)
