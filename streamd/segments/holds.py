"""What each role still needs of the log, written by the role, read by whoever drops or overwrites
rows.

`DATA/roles/<name>/hold` outlives its role: a trainer that is down for a week still finds its
events. `DATA/holds/compact` is the wish that everything deleted before an edge becomes physical;
roles that see it write newer state at their next cut.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from streamd.errors import CorruptionError
from streamd.roles import HOLD, OLD_HOLDS, folder_of, make_folder, names_in
from streamd.storage import write_durably

WISHES = "holds"
WISH = "compact"


class Hold(msgspec.Struct, frozen=True):
    """edge: the oldest edge the role replays from after a restart. purged_before_event: deletes that lie
    before this edge of the log have left all files of the role."""

    edge: int
    purged_before_event: int = msgspec.field(name="clean_edge")


def write_hold(data_dir: Path, name: str, hold: Hold) -> None:
    """Say durably what a role needs; what it no longer names may go at once."""
    write_durably(make_folder(data_dir, name) / HOLD, msgspec.json.encode(hold))


def begin_hold(data_dir: Path, name: str, edge: int) -> None:
    """Hold the log from an edge on for a role that is about to read it for the first time."""
    if not (folder_of(data_dir, name) / HOLD).exists():
        write_hold(data_dir, name, Hold(edge, edge))


def read_holds(data_dir: Path) -> dict[str, Hold]:
    """Holds by name, of all roles that ever ran here. Raises: CorruptionError where one cannot be
    read."""
    holds = {}
    for name, path in _places(data_dir):
        try:
            holds[name] = msgspec.json.decode(path.read_bytes(), type=Hold)
        except FileNotFoundError:
            continue
        except msgspec.DecodeError as error:
            raise CorruptionError(
                f"{path} is damaged: {error}.",
                f"remove it if {name} will not run here again, or start {name}.",
            ) from None
    return holds


def _places(data_dir: Path) -> Iterator[tuple[str, Path]]:
    """Where holds may be. A role that starts may move its own meanwhile, from an old place to the
    new: so the old ones are read before it is looked which new ones there are."""
    yield from (
        (p.name, p) for p in sorted((data_dir / OLD_HOLDS).glob("[a-z]*")) if p.name != WISH
    )
    yield from ((name, folder_of(data_dir, name) / HOLD) for name in names_in(data_dir))


def ask_to_compact(data_dir: Path, edge: int) -> None:
    """Ask that what was deleted before `edge` becomes physical."""
    (data_dir / WISHES).mkdir(parents=True, exist_ok=True)
    write_durably(data_dir / WISHES / WISH, b"%d" % edge)


def asked_to_compact(data_dir: Path) -> int | None:
    """The edge of the wish that stands, None where there is none."""
    try:
        return int((data_dir / WISHES / WISH).read_bytes())
    except FileNotFoundError:
        return None


def compact_done(data_dir: Path) -> None:
    """Take the wish back."""
    (data_dir / WISHES / WISH).unlink(missing_ok=True)
