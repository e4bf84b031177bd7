"""Processes of a group of ranks whose trainer only exchanges: `python -m tests.ranks.worker supervisor|agent|rank`.

Settings come by variables. Ranks write into the folder "told" of the data directory, and do there what the tests tell them.
"""

import json
import os
import sys
import types
from pathlib import Path

import numpy as np

from streamd.processes import PYTHON
from streamd.settings.loading import load_settings

COMMAND = (*PYTHON, "-m", "tests.ranks.worker")


def exchanged(ranks):
    """What each way to exchange gives this rank, as arrays by name. Ranks give and ask for different numbers of rows."""
    import torch

    from streamd.ranks.row_exchange import Route
    rng = np.random.default_rng(ranks.rank)
    table = torch.from_numpy(np.random.default_rng(9).normal(size=(50, 3)))
    got = {"flags": ranks.gather(np.array([ranks.is_first, True])),
           "floats": ranks.gather(rng.normal(size=(3 * ranks.rank, 2)).astype(np.float32)),
           "all": ranks.all(ranks.rank != 1), "total": ranks.total([0.1, ranks.rank]), "told": ranks.broadcast({"a": [ranks.rank, "ü"]})["a"][0]}
    weights = [torch.from_numpy(rng.normal(size=(40, 30)).astype(np.float32)).requires_grad_() for _ in range(3)]
    for weight in weights[: 2 + ranks.rank]:
        weight.grad = weight.detach() * 2
    ranks.add_gradients(weights)
    got |= {f"gradient {i}": weight.grad.numpy() for i, weight in enumerate(weights)}

    # Rows of owners, and gradients back to them; the second rank asks for nothing.
    own = table.clone().requires_grad_()
    asked = rng.integers(0, 50, 0 if ranks.rank == 1 else 2000)
    for name, group in (("recording", ranks.recording), ("learning", ranks.learning), ("rows", ranks.rows)):
        rows = Route(group, asked).rows(lambda node: own[torch.from_numpy(node)])
        (rows * torch.from_numpy(rng.normal(size=(len(asked), 3)))).sum().backward()
        got |= {f"rows {name}": rows.detach().numpy(), f"back {name}": own.grad.numpy().copy()}
    return {name: np.asarray(value) for name, value in got.items()}


class Trainer:
    """Stands in for the trainer: says what was exchanged, then takes turns until rank 0 is stopped."""

    def __init__(self, settings, paths, device, reader, registry, clock, beat, on_step, ranks, stop):
        self._folder, self._beat, self._ranks = settings.data_dir / "told", beat, ranks

    def run(self, stop):
        import structlog

        from streamd.errors import JournalError
        rank = self._ranks.rank
        np.savez(self._folder / f"exchanged-{rank}.npz", **exchanged(self._ranks))
        structlog.get_logger().info("turns_begin")
        turn = 0
        while not self._ranks.broadcast(stop.is_set()):
            turn += 1
            self._beat.touch("turning")
            say(self._folder / f"rank-{rank}", {"pid": os.getpid(), "agent": os.getppid(), "turn": turn})
            if (self._folder / f"refuse-{rank}").exists():
                raise JournalError("told so")
            stop.wait(0.01)
        say(self._folder / f"stopped-{rank}", {"pid": os.getpid()})


def say(path: Path, what):
    """Write a file whose reader never sees half of it."""
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(what))
    scratch.replace(path)


def main(part):
    if part == "supervisor":
        from streamd.daemon import supervisor
        popen = supervisor.subprocess.Popen
        supervisor.subprocess.Popen = lambda _, env: popen([*COMMAND, "agent"], env=env)
        return supervisor.Supervisor(settings(), ("train",)).run()
    if part == "agent":
        from streamd.daemon.torchrun import run_ranks
        return run_ranks(settings(), [*COMMAND, "rank"])
    sys.modules["streamd.training.trainer"] = types.SimpleNamespace(Trainer=Trainer)
    from streamd.daemon import run_role as daemon
    daemon.make_kernels_ready = lambda **_: None
    return daemon.run_role(settings(), "train")


def settings():
    return load_settings(None, None, os.environ)[0]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
