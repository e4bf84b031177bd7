"""Where the trainer goes on after a stop: one folder, written whole after each window, the newest one counts."""

import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from streamd.errors import VersionError
from streamd.models import Memory
from streamd.segments.journal import LogState
from streamd.storage import write_folder_durably
from streamd.training.learner import Learner
from streamd.training.replay import Recorded


@dataclass(frozen=True)
class Cursor:
    """Everything a checkpoint holds beside tensors.

    edge: the first edge not yet in a finished window; window_edge: the first edge of the last finished one.
    """

    edge: int
    window_edge: int
    memory_edge: int
    memory_us: int
    num_learned: int
    history_bytes: int
    version: str
    champion: str
    shadow: str
    compared: tuple[int, float, float]
    settings: dict[str, Any]
    build: dict[str, Any] = field(default_factory=dict)
    replay: dict[str, Any] = field(default_factory=dict)
    tail: list[int] = field(default_factory=list)


def build_facts() -> dict[str, Any]:
    """What must be equal for a resumed run to give the same bits."""
    return {"torch": str(torch.__version__), "threads": torch.get_num_threads()}


def save_checkpoint(folder: Path, learner: Learner, cursor: Cursor) -> None:
    """Write `folder/<edge>.<number>` durably, then drop older ones. number: from 0, counts those written at one edge."""
    tensors: dict[str, Tensor] = {f"model.{k}": v for k, v in learner.model.state_dict().items()}
    for number, state in learner.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{k}": v for k, v in state.items()}
    tensors |= {f"memory.{k}": v for k, v in learner.memory.tensors().items()}
    for i, chunk in enumerate(learner.tail):
        tensors |= {f"tail.{i}.{k}": v for k, v in chunk.tensors().items()}
    before = [int(p.suffix[1:] or 0) for p in folder.glob(f"{cursor.edge:020d}*")]
    name = f"{cursor.edge:020d}.{max(before, default=-1) + 1:06d}"
    write_folder_durably(folder / name, {
        "state.safetensors": save({k: v.contiguous() for k, v in tensors.items()}),
        "cursor.json": msgspec.json.encode(asdict(cursor))})
    for old in folder.iterdir():
        if old.is_dir() and old.name != name:
            shutil.rmtree(old)


def read_cursor(folder: Path) -> Cursor | None:
    """Of the newest checkpoint; None where there is none."""
    path = _newest(folder)
    return msgspec.json.decode((path / "cursor.json").read_bytes(), type=Cursor) if path else None


def _newest(folder: Path) -> Path | None:
    return max((p for p in folder.glob("[0-9]*") if p.is_dir()), default=None)


def load_checkpoint(folder: Path, cursor: Cursor, learner: Learner, log: LogState) -> None:
    """Restore the newest checkpoint, whose cursor was read, into `learner`.

    Raises: VersionError where it lies beyond the log, as after a log was replaced.
    """
    path = _newest(folder)
    assert path is not None
    if not log.first_edge <= cursor.edge <= log.num_edges:
        raise VersionError(f"The trainer's checkpoint {path.name} is at edge {cursor.edge}, the log holds "
                           f"[{log.first_edge}, {log.num_edges}).", "remove train/ and models/, or restore the log.")
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in load_file(path / "state.safetensors").items():
        group, rest = name.split(".", 1)
        parts.setdefault(group, {})[rest] = tensor
    learner.model.load_state_dict(parts["model"])
    optimizer = learner.optimizer.state_dict()
    for name, tensor in parts.get("optimizer", {}).items():
        number, key = name.split(".")
        optimizer["state"].setdefault(int(number), {})[key] = tensor
    learner.optimizer.load_state_dict(optimizer)
    learner.memory = Memory.restored(parts["memory"], cursor.memory_edge, cursor.memory_us, learner.model.device)
    learner.tail = []
    for i, edge in enumerate(cursor.tail):
        fields = {k.split(".", 1)[1]: v for k, v in parts["tail"].items() if k.split(".", 1)[0] == str(i)}
        learner.tail.append(Recorded.restored(edge, fields))
    learner.num_learned = cursor.num_learned
    learner.replay.restore(cursor.replay)
    learner.begin()
