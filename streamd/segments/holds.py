"""What each role still needs of the log, written by the role, read by whoever drops or overwrites rows.

`DATA/holds/<role>` outlives its role: a trainer that is down for a week still finds its events. `DATA/holds/compact` is
the wish that everything deleted before an edge becomes physical; roles that see it write newer state at their next cut.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from streamd.errors import CorruptionError
from streamd.storage import write_durably

FOLDER, WISH = "holds", "compact"


@dataclass(frozen=True)
class Hold:
    """edge: the oldest edge the role replays from after a restart. clean_edge: deletes that lie before this edge of the
    log have left all files of the role."""

    edge: int
    clean_edge: int


def write_hold(data_dir: Path, role: str, hold: Hold) -> None:
    """Say durably what a role needs; what it no longer names may go at once."""
    (data_dir / FOLDER).mkdir(parents=True, exist_ok=True)
    write_durably(data_dir / FOLDER / role, msgspec.json.encode(asdict(hold)))


def begin_hold(data_dir: Path, role: str, edge: int) -> None:
    """Hold the log from an edge on for a role that is about to read it for the first time."""
    if not (data_dir / FOLDER / role).exists():
        write_hold(data_dir, role, Hold(edge, edge))


def read_holds(data_dir: Path) -> dict[str, Hold]:
    """Holds by role, of all roles that ever ran here. Raises: CorruptionError where one cannot be read."""
    holds = {}
    for path in sorted((data_dir / FOLDER).glob("[a-z]*")):
        if path.name != WISH:
            try:
                holds[path.name] = msgspec.json.decode(path.read_bytes(), type=Hold)
            except msgspec.DecodeError as error:
                raise CorruptionError(f"{path} is damaged: {error}.",
                                      f"remove it if {path.name} will not run here again, or start {path.name}.") from None
    return holds


def ask_to_compact(data_dir: Path, edge: int) -> None:
    """Ask that what was deleted before `edge` becomes physical."""
    (data_dir / FOLDER).mkdir(parents=True, exist_ok=True)
    write_durably(data_dir / FOLDER / WISH, b"%d" % edge)


def asked_to_compact(data_dir: Path) -> int | None:
    """The edge of the wish that stands, None where there is none."""
    try:
        return int((data_dir / FOLDER / WISH).read_bytes())
    except FileNotFoundError:
        return None


def compact_done(data_dir: Path) -> None:
    """Take the wish back."""
    (data_dir / FOLDER / WISH).unlink(missing_ok=True)
