"""Where the trainer goes on after a stop: one folder, written whole after each window, the newest
one counts."""

import re
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from crc32c import crc32c
from safetensors.torch import load_file, save
from torch import Tensor

from streamd.errors import CorruptionError, VersionError
from streamd.events import EDGE_SETS
from streamd.models import Memory
from streamd.segments.journal import LogState
from streamd.storage import remove_scratch, write_folder_durably
from streamd.tensors import FORMAT, file_checksum
from streamd.training.learner import Learner
from streamd.training.replay import ReplayChunk

NAME = re.compile(r"\d{20}(\.\d{6})?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """Everything a checkpoint holds beside tensors.

    edge: the first edge not yet in a finished window; window_edge: the first edge of the last
    finished one. checksum: CRC32C of the file of tensors, empty in checkpoints of the release
    before format 2.
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
    compared: list[float]
    settings: dict[str, Any]
    build: dict[str, Any] = field(default_factory=dict)
    replay: dict[str, Any] = field(default_factory=dict)
    tail: list[int] = field(default_factory=list)
    sets: tuple[str, ...] = EDGE_SETS
    format: int = FORMAT
    checksum: str = ""


def build_facts() -> dict[str, Any]:
    """What must be equal for a resumed run to give the same bits."""
    return {"torch": str(torch.__version__), "threads": torch.get_num_threads()}


def save_checkpoint(folder: Path, learner: Learner, cursor: Cursor) -> None:
    """Write `folder/<edge>.<number>` durably, then drop older ones. number: from 0, counts those
    written at one edge."""
    tensors: dict[str, Tensor] = {f"model.{k}": v for k, v in learner.model.state_dict().items()}
    for number, state in learner.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{k}": v for k, v in state.items()}
    tensors |= {f"memory.{k}": v for k, v in learner.memory.tensors().items()}
    for i, chunk in enumerate(learner.tail):
        tensors |= {f"tail.{i}.{k}": v for k, v in chunk.tensors().items()}
    remove_scratch(folder)
    before = [
        int(p.suffix[1:] or 0)
        for p in folder.glob(f"{cursor.edge:020d}*")
        if NAME.fullmatch(p.name)
    ]
    name = f"{cursor.edge:020d}.{max(before, default=-1) + 1:06d}"
    state = save({k: v.contiguous() for k, v in tensors.items()})
    cursor = replace(cursor, checksum=f"{crc32c(state):08x}")
    write_folder_durably(
        folder / name,
        {"state.safetensors": state, "cursor.json": msgspec.json.encode(asdict(cursor))},
    )
    for old in folder.iterdir():
        if old.is_dir() and old.name != name:
            shutil.rmtree(old)


def read_cursor(folder: Path) -> Cursor | None:
    """Of the newest checkpoint; None where there is none.

    Raises: CorruptionError where it is damaged, VersionError where a newer streamd wrote it.
    """
    path = _newest(folder)
    if path is None:
        return None
    try:
        cursor = msgspec.json.decode((path / "cursor.json").read_bytes(), type=Cursor)
        checksum = file_checksum(path / "state.safetensors")
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise CorruptionError(
            f"The trainer's checkpoint {path} is damaged: {error}.", "none is needed."
        ) from None
    if cursor.format > FORMAT:
        raise VersionError(
            f"The trainer's checkpoint {path} has format {cursor.format}, "
            f"this streamd reads up to {FORMAT}.",
            "use the streamd that wrote it.",
        )
    if cursor.sets != EDGE_SETS:
        raise VersionError(
            f"The trainer's checkpoint {path} is of edge sets {', '.join(cursor.sets)}; "
            f"this streamd knows {EDGE_SETS[0]} only.",
            "use the streamd that wrote it.",
        )
    if cursor.checksum not in ("", checksum):
        raise CorruptionError(
            f"The trainer's checkpoint {path} differs from its checksum.", "none is needed."
        )
    return cursor


def _newest(folder: Path) -> Path | None:
    return max(
        (p for p in folder.glob("[0-9]*") if p.is_dir() and NAME.fullmatch(p.name)), default=None
    )


def load_checkpoint(folder: Path, cursor: Cursor, learner: Learner, log: LogState) -> None:
    """Restore the newest checkpoint, whose cursor was read, into `learner`.

    Raises: VersionError where it lies beyond the log, as after a log was replaced; CorruptionError
    where it is not finite.
    """
    path = _newest(folder)
    assert path is not None
    if not log.first_edge <= cursor.edge <= log.num_edges:
        raise VersionError(
            f"The trainer's checkpoint {path.name} is at edge {cursor.edge}, the log holds "
            f"[{log.first_edge}, {log.num_edges}).",
            "remove train/ and models/, or restore the log.",
        )
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in load_file(path / "state.safetensors").items():
        group, rest = name.split(".", 1)
        parts.setdefault(group, {})[rest] = tensor
    for group in ("model", "memory"):
        for name, tensor in parts[group].items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise CorruptionError(
                    f"The trainer's checkpoint {path} is not finite in {group}.{name}.",
                    "none is needed.",
                )
    learner.model.restore(parts["model"])
    optimizer = learner.optimizer.state_dict()
    for name, tensor in parts.get("optimizer", {}).items():
        number, key = name.split(".")
        optimizer["state"].setdefault(int(number), {})[key] = tensor
    learner.optimizer.load_state_dict(optimizer)
    learner.memory = Memory.restored(
        parts["memory"], cursor.memory_edge, cursor.memory_us, learner.model.device
    )
    learner.tail = []
    for i, edge in enumerate(cursor.tail):
        fields = {
            k.split(".", 1)[1]: v for k, v in parts["tail"].items() if k.split(".", 1)[0] == str(i)
        }
        learner.tail.append(ReplayChunk.restored(edge, fields))
    learner.num_learned = cursor.num_learned
    learner.replay.restore(cursor.replay)
    learner.begin()
