"""The trainer's checkpoints: one folder each, written whole after a window. Only the newest is
used.

Format: `state.safetensors` holds the tensors of model, optimizer and held-out tail,
`memory-000.safetensors` and so on the memory (`streamd.models.memory.files`), and `cursor.json`
everything else.
"""

import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from crc32c import crc32c
from safetensors.torch import load_file, save
from torch import Tensor

from streamd.errors import CorruptionError, SchemaError, VersionError
from streamd.eventlog.journal.journal import LogState
from streamd.events import EDGE_SETS
from streamd.gpu import device_facts
from streamd.models import LinkModel, Memory, build_model
from streamd.models.inference.stored_weights import with_all_facts
from streamd.models.memory.files import read_memory
from streamd.models.widening import widened_memory, widened_model, widened_optimizer
from streamd.registry.manifest import MEMORY
from streamd.schema import Schema
from streamd.schema_change import check_extends
from streamd.storage import ImmutableFile, remove_scratch, write_folder_durably
from streamd.tensors import FORMAT, file_checksum
from streamd.training.learner import Learner
from streamd.training.replay import ReplayChunk, ReplayStore, whole_chunk

NAME = re.compile(r"\d{20}(\.\d{6})?")
"""Name of a checkpoint's folder: event id, and number among the checkpoints at that event. Both are
padded with zeros, so that names sort as numbers do."""


@dataclass(frozen=True, slots=True)
class TrainerPosition:
    """The progress of the trainer through the log.

    event: id of the first event that is not yet in a finished window.
    window_event: id of the first event of the windows that were finished last.
    """

    event: int
    window_event: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """Everything that a checkpoint holds besides tensors.

    edge: id of the first event that is not yet in a finished window.
    window_edge: id of the first event of the last finished window.
    memory_edge, memory_us: event id and event time (microseconds) that memory has reached.
    num_learned: as in `Learner`. history_bytes: valid length of the windows' history.
    version, champion, shadow: names of versions, "" for none.
    compared: the fields of `Comparison`, in their order.
    settings: must be equal for training to continue. build: must be equal for a resumed run to give
    the same bits.
    replay: index of the replay store. tail: first event ids of the held-out chunks.
    schema: the log's; empty in checkpoints from before logs could extend their schema.
    sets: reserved. format: number of the stores' format.
    checksum: CRC32C of the file of tensors, empty in checkpoints of the release before format 2.
    memory: CRC32C of each file of the memory; empty before format 4: the file of tensors held
    memory then.
    nightly: name of the nightly baseline's folder, "" for none.
    records: of the windows since the checkpoint before, which become lines of the log after this
    one; None if history is a file, with its valid length in `history_bytes`.
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
    schema: dict[str, Any] = field(default_factory=dict)
    sets: tuple[str, ...] = EDGE_SETS
    format: int = FORMAT
    checksum: str = ""
    memory: tuple[str, ...] = ()
    nightly: str = ""
    records: list[str] | None = None

    @property
    def position(self) -> TrainerPosition:
        return TrainerPosition(self.edge, self.window_edge)


def build_facts(device: str) -> dict[str, Any]:
    """The facts of this build and of a device, "cpu" or "cuda", that must be equal for a resumed
    run to give the same bits."""
    return {
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        **device_facts(device),
    }


def save_checkpoint(
    folder: Path, learner: Learner, memory: Sequence[ImmutableFile], cursor: Cursor
) -> None:
    """Write a checkpoint `folder/<edge>.<number>` durably. The number, from 0, counts the
    checkpoints at one event id.

    memory: files of the learner's memory, to which the checkpoint links.

    All ranks call this together; only the first writes.

    1. Gather the tensors of all ranks.
    2. Write the whole folder durably under a new name.
    3. Remove older checkpoints. Before step 2, a kill would leave none.
    """
    # 1. All state as named tensors.
    tensors: dict[str, Tensor] = {f"model.{k}": v for k, v in learner.model.state_dict().items()}
    for number, state in learner.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{k}": v for k, v in state.items()}
    for i, chunk in enumerate(learner.tail):
        whole = whole_chunk(chunk, learner.ranks)
        if whole is not None:
            tensors |= {f"tail.{i}.{k}": v for k, v in whole.tensors().items()}
    if not learner.ranks.is_first:
        return

    # 2. A new name, even if there is a checkpoint at this event already.
    remove_scratch(folder)
    before = [
        int(p.suffix[1:] or 0)
        for p in folder.glob(f"{cursor.edge:020d}*")
        if NAME.fullmatch(p.name)
    ]
    name = f"{cursor.edge:020d}.{max(before, default=-1) + 1:06d}"

    # Write it durably.
    state = save({k: v.contiguous() for k, v in tensors.items()})
    cursor = replace(
        cursor, checksum=f"{crc32c(state):08x}", memory=tuple(file.checksum for file in memory)
    )
    write_folder_durably(
        folder / name,
        {
            "state.safetensors": state,
            **{MEMORY.format(i): file for i, file in enumerate(memory)},
            "cursor.json": msgspec.json.encode(asdict(cursor)),
        },
    )
    # 3. The older ones.
    for old in folder.iterdir():
        if old.is_dir() and old.name != name:
            shutil.rmtree(old)


def read_cursor(folder: Path) -> Cursor | None:
    """Read the cursor of the newest checkpoint; None if there is no checkpoint.

    Raises: CorruptionError if it is damaged, VersionError if a newer streamd wrote it.
    """
    path = _newest(folder)
    if path is None:
        return None

    # Read both files completely before using any value of them.
    try:
        cursor = msgspec.json.decode((path / "cursor.json").read_bytes(), type=Cursor)
        checksum = file_checksum(path / "state.safetensors")
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise CorruptionError(
            f"The trainer's checkpoint {path} is damaged: {error}.", "none is needed."
        ) from None

    # Refuse checkpoints of a newer streamd.
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

    # Check that the tensors are those of this cursor.
    if cursor.checksum not in ("", checksum):
        raise CorruptionError(
            f"The trainer's checkpoint {path} differs from its checksum.", "none is needed."
        )
    return cursor


def _newest(folder: Path) -> Path | None:
    return max(
        (p for p in folder.glob("[0-9]*") if p.is_dir() and NAME.fullmatch(p.name)), default=None
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """The learner's state in a checkpoint, read and checked.

    made_on: the log's schema at the time of the checkpoint.
    files: of the memory; none for a checkpoint before format 4, or if the schema was extended
    since.
    """

    cursor: Cursor
    made_on: Schema
    model: LinkModel
    optimizer: torch.optim.AdamW
    memory: Memory
    tail: list[ReplayChunk]
    files: list[ImmutableFile]

    def restore(self, learner: Learner) -> None:
        """Replace the state of the learner for which the checkpoint was read."""
        learner.replay.restore(self.cursor.replay, self.made_on, self.model.schema)
        learner.model, learner.optimizer = self.model, self.optimizer
        learner.memory = self.memory
        learner.tail = self.tail
        learner.num_learned = self.cursor.num_learned
        # Tail and replay may be older than a delete.
        learner.drop_deleted()
        learner.begin()


def load_checkpoint(folder: Path, cursor: Cursor, learner: Learner, log: LogState) -> Loaded:
    """Read the newest checkpoint for `learner`, without changing it: if one part is damaged, the
    learner must get none of the others. cursor: as returned by `read_cursor`.

    Raises: VersionError if its event is not in the log, for example after the log was replaced;
    CorruptionError if a tensor is not finite, or a file of the memory is missing or damaged.
    """
    # The checkpoint must be of this log.
    path = _newest(folder)
    assert path is not None
    if not log.first_edge <= cursor.edge <= log.num_edges:
        raise VersionError(
            f"The trainer's checkpoint {path.name} is at event {cursor.edge}, which is not in the "
            f"log: it holds [{log.first_edge}, {log.num_edges}).",
            "remove train/ and models/, or restore the log.",
        )
    schema = log.schema
    made_on = Schema.restored(cursor.schema) if cursor.schema else schema
    if made_on != schema:
        _check_extends(path, made_on, schema)

    # Read weights, optimizer and memory, under the schema of that time.
    parts = _read_tensors(path)
    model = build_model(learner.model.settings, made_on, 0, learner.model.device).eval()
    model.restore(parts["model"])
    optimizer = model.optimizer(learner.learning_rate)
    _restore_optimizer(optimizer, parts.get("optimizer", {}), made_on.num_edge_sets)
    files = [
        ImmutableFile(path / MEMORY.format(i), checksum) for i, checksum in enumerate(cursor.memory)
    ]
    at = cursor.memory_edge, cursor.memory_us
    if files:
        widths = learner.memory.dim, made_on.edge_feature_dim
        try:
            memory = read_memory(files, *at, widths, model.device, learner.ranks)
        except VersionError as error:
            raise CorruptionError(
                f"The trainer's checkpoint {path} is damaged: {error}", "none is needed."
            ) from None
    else:
        memory = Memory.restored(parts["memory"], *at, model.device, ranks=learner.ranks)

    # Widen them to the log's present schema.
    if made_on != schema:
        narrow, files = model, []
        model = widened_model(narrow, schema)
        optimizer = widened_optimizer(optimizer, narrow, learner.learning_rate, model)
        memory = widened_memory(memory, made_on, schema)
    return Loaded(
        cursor=cursor,
        made_on=made_on,
        model=model,
        optimizer=optimizer,
        memory=memory,
        tail=_read_tail(cursor.tail, parts.get("tail", {}), learner.replay, made_on, schema),
        files=files,
    )


def _read_tensors(path: Path) -> dict[str, dict[str, Tensor]]:
    """The tensors of a checkpoint by group: model, optimizer, memory, tail.

    Raises: CorruptionError if a tensor of model or memory is not finite.
    """
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in load_file(path / "state.safetensors").items():
        group, rest = name.split(".", 1)
        parts.setdefault(group, {})[rest] = tensor

    # Non-finite values would spread in the first step, so refuse them here.
    for group in ("model", "memory"):
        for name, tensor in parts.get(group, {}).items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise CorruptionError(
                    f"The trainer's checkpoint {path} has non-finite values in {group}.{name}.",
                    "none is needed.",
                )
    return parts


def _read_tail(
    edges: Sequence[int],
    tensors: dict[str, Tensor],
    replay: ReplayStore,
    made_on: Schema,
    schema: Schema,
) -> list[ReplayChunk]:
    """This rank's share of the held-out tail. edges: first event ids of its chunks."""
    tail = []
    for i, edge in enumerate(edges):
        fields = {k.split(".", 1)[1]: v for k, v in tensors.items() if k.split(".", 1)[0] == str(i)}
        chunk = ReplayChunk.from_tensors(edge, fields).widen(made_on, schema)
        if chunk is not None:
            tail.append(replay.share_of(chunk))
    return tail


def _check_extends(path: Path, made_on: Schema, schema: Schema) -> None:
    """Check that the log's schema extends the checkpoint's. Raises: VersionError."""
    try:
        check_extends(made_on, schema)
    except SchemaError as error:
        raise VersionError(
            f"The trainer's checkpoint {path} is not of this log: {error}",
            "remove train/ and models/, or restore the log.",
        ) from None


def _restore_optimizer(
    optimizer: torch.optim.AdamW, tensors: dict[str, Tensor], num_edge_sets: int
) -> None:
    """Restore an optimizer's tensors, which are named by the number of their parameter."""
    state = optimizer.state_dict()
    shapes = [p.shape for group in optimizer.param_groups for p in group["params"]]
    for name, tensor in tensors.items():
        number, key = name.split(".")
        full = with_all_facts(tensor, shapes[int(number)], num_edge_sets)
        state["state"].setdefault(int(number), {})[key] = full
    optimizer.load_state_dict(state)
