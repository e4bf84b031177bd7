"""Files of a standby in the folder of ingest: a request to lead, and the term in which it led
last."""

import time
from pathlib import Path

import msgspec
import structlog

from streamd.roles import make_folder
from streamd.storage import DISK, write_durably

logger = structlog.get_logger()
INGEST = "ingest"
REQUEST = "lead"
"""File with a request to lead."""
LAST_TERM = "led"
"""File with the last term in which this directory led."""


class LeadRequest(msgspec.Struct, frozen=True):
    """A request to lead. until: wall time in seconds at which the requester stops waiting."""

    until: float


def ask_to_lead(data_dir: Path, seconds: float) -> None:
    """Ask the standby of a directory to lead; the request expires after `seconds`."""
    path = make_folder(data_dir, INGEST) / REQUEST
    write_durably(path, msgspec.json.encode(LeadRequest(time.time() + seconds)))


def is_asked_to_lead(data_dir: Path) -> bool:
    """Whether there is a request that has not expired; an expired one is removed."""
    path = make_folder(data_dir, INGEST) / REQUEST
    try:
        asked = msgspec.json.decode(path.read_bytes(), type=LeadRequest)
    except FileNotFoundError:
        return False
    except msgspec.DecodeError:
        asked = LeadRequest(0)
    if time.time() < asked.until:
        return True
    withdraw(data_dir)
    return False


def withdraw(data_dir: Path) -> None:
    """Remove the request, if there is one."""
    DISK.unlink(make_folder(data_dir, INGEST) / REQUEST)


def led_term(data_dir: Path) -> int:
    """The last term in which a directory led, 0 if there is none."""
    try:
        return int((make_folder(data_dir, INGEST) / LAST_TERM).read_bytes())
    except (FileNotFoundError, ValueError):
        return 0


def note_led(data_dir: Path, term: int) -> None:
    """Store the term in which a directory leads. The caller does so only once its log is open: a
    member that claims and then fails must leave the lead to another one.

    On a full disk the term is not stored; then the next start waits for the leader's timeout before
    it leads.
    """
    try:
        write_durably(make_folder(data_dir, INGEST) / LAST_TERM, b"%d" % term)
    except OSError as error:
        logger.warning(
            "lead_not_stored",
            term=term,
            error=str(error),
            meaning="the next start waits for leader.timeout_seconds before it leads",
        )
