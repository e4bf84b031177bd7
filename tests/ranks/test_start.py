"""Ranks as processes: they are started, joined, killed, frozen and stopped, and none is left behind."""

import json
import os
import signal
import subprocess

import numpy as np
import pytest

from streamd.daemon.supervisor import ROLE_REFUSED
from streamd.daemon.torchrun import MAX_RESTARTS
from streamd.processes import PYTHON
from streamd.settings.loading import as_environment
from streamd.telemetry.heartbeat import read_beats, refusals
from tests.builders import settings, stream, write_log
from tests.processes import is_alive, soon
from tests.ranks import worker
from tests.ranks.threads import run


class Group:
    """Ranks on a data directory, started by a supervisor, by its agent alone, or by torchrun's own command."""

    def __init__(self, path, **values):
        write_log(path, *stream(50))
        self.told, self.output = path / "told", path / "output"
        self.told.mkdir()
        values = {"training__ranks": 2, "training__rank_timeout_seconds": 2, "training__nice": 0, "telemetry__log_format": "json", **values}
        self.settings, self.process, self.seen = settings(path, **values), None, set()

    def start(self, *command, **variables):
        env = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")}
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(command, env=env | as_environment(self.settings) | variables, stdout=output, stderr=output)
        self.seen.add(self.process.pid)
        return self

    def turning(self):
        """What ranks said, once all of them take turns that are newer than this call."""
        def turns():
            found = [json.loads(p.read_text()) for p in sorted(self.told.glob("rank-?"))]
            return found if len(found) == self.settings.training.ranks and all(is_alive(f["pid"]) for f in found) else None

        before = {p.name: p.read_text() for p in self.told.glob("rank-?")}
        soon(lambda: turns() and all(p.read_text() != before.get(p.name) for p in self.told.glob("rank-?")), "all ranks take turns")
        found = turns()
        self.seen |= {pid for f in found for pid in (f["pid"], f["agent"])}
        return found

    def lines(self):
        """The log lines of all processes."""
        return [json.loads(line) for line in self.output.read_text().splitlines() if line.startswith("{")]

    def stopped(self):
        """Process ids of the ranks that ended in order, by rank."""
        return [json.loads(p.read_text())["pid"] for p in sorted(self.told.glob("stopped-?"))]

    def is_gone(self):
        self.process.poll()
        return not any(map(is_alive, self.seen))

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in filter(is_alive, self.seen):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def group(tmp_path):
    made = Group(tmp_path / "data")
    yield made
    made.close()


TORCHRUN = (*PYTHON, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2")
"""As someone starts it by hand."""
BY_HAND = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"}


def test_ranks_exchange_as_threads_do_one_that_is_killed_is_started_again_and_none_outlives_the_supervisor(group):
    group.start(*worker.COMMAND, "supervisor")
    first = group.turning()
    agent = first[0]["agent"]
    assert agent == first[1]["agent"] != group.process.pid
    for rank, expected in enumerate(run(2, worker.exchanged)):
        with np.load(group.told / f"exchanged-{rank}.npz") as found:
            assert set(found) == set(expected)
            for name, value in expected.items():
                np.testing.assert_array_equal(found[name], value, strict=True, err_msg=name)

    # Each line names its rank, and each rank has a heartbeat: the first one as the role.
    joined = [line for line in group.lines() if line["event"] == "turns_begin"]
    assert sorted(line["rank"] for line in joined) == [0, 1] and {line["role"] for line in joined} == {"train"}
    assert [(beat.name, beat.pid, beat.alive) for beat in read_beats(group.settings.data_dir)] == [
        ("train", first[0]["pid"], True), ("train-rank-1", first[1]["pid"], True)]

    os.kill(first[1]["pid"], signal.SIGKILL)
    soon(lambda: not is_alive(first[0]["pid"]), "the other rank ends too")
    second = group.turning()
    assert {f["agent"] for f in second} == {agent} and not {f["pid"] for f in first} & {f["pid"] for f in second}

    # Where the supervisor is killed its agent gets a signal, and all ranks end in order.
    group.process.kill()
    soon(group.is_gone, "none is left")
    assert group.stopped() == [f["pid"] for f in second]


def test_a_frozen_rank_ends_the_others_and_is_gone_with_the_agent(group):
    group.start(*TORCHRUN, "--no-python", *worker.COMMAND, "rank", **BY_HAND)
    first = group.turning()
    os.kill(first[1]["pid"], signal.SIGSTOP)
    soon(lambda: not is_alive(first[0]["pid"]), "the other rank ends once it has waited")
    ended, = (line for line in group.lines() if line["event"] == "refused")
    assert (ended["kind"], ended["rank"]) == ("RanksError", 0) and is_alive(first[1]["pid"])
    group.process.kill()
    soon(group.is_gone, "none is left")
    assert group.stopped() == []


@pytest.mark.slow
def test_an_agent_that_is_killed_is_started_again_and_a_signal_to_the_supervisor_ends_all_in_order(group):
    group.start(*worker.COMMAND, "supervisor")
    first = group.turning()
    os.kill(first[0]["agent"], signal.SIGKILL)
    # Ranks that lost their agent may take another turn before they end.
    soon(lambda: not any(is_alive(f[name]) for f in first for name in ("pid", "agent")), "the agent and its ranks end")
    second = group.turning()
    assert second[0]["agent"] != first[0]["agent"]
    group.process.send_signal(signal.SIGTERM)
    assert group.process.wait(30) == 0 and group.is_gone() and group.stopped() == [f["pid"] for f in second]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_starts_all_again_where_a_rank_was_killed_or_is_frozen_and_ends_all_in_order(group, rank):
    group.start(*TORCHRUN, "--max-restarts=2", "--no-python", *worker.COMMAND, "rank", **BY_HAND)
    first = group.turning()
    for number in (signal.SIGKILL, signal.SIGSTOP):
        os.kill(first[rank]["pid"], number)
        soon(lambda f=first: not any(is_alive(x["pid"]) for x in f), "all ranks end")
        second = group.turning()
        assert first[0]["agent"] == second[0]["agent"]
        first = second
    group.process.send_signal(signal.SIGINT)
    group.process.wait(30)
    assert group.is_gone() and group.stopped() == [f["pid"] for f in first]


@pytest.mark.slow
def test_ranks_whose_data_one_of_them_refuses_are_not_started_again(group):
    group.start(*worker.COMMAND, "agent")
    first = group.turning()
    (group.told / "refuse-1").touch()
    assert group.process.wait(30) == ROLE_REFUSED and group.is_gone()
    assert refusals(group.settings.data_dir, ["train"]) == {"train": "rank 1 refused its data; its log lines say why"}
    assert len([line for line in group.lines() if line["event"] == "turns_begin"]) == 2 == len(first)


@pytest.mark.slow
def test_an_agent_gives_up_after_a_few_starts_and_the_supervisor_goes_on(group):
    group.start(*worker.COMMAND, "agent")
    for _ in range(MAX_RESTARTS + 1):
        first = group.turning()
        os.kill(first[0]["pid"], signal.SIGKILL)
        soon(lambda f=first: not is_alive(f[1]["pid"]), "the other ends")
    assert group.process.wait(30) == 1 and group.is_gone()
