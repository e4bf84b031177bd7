"""The position that scoring has reached, stored locally as well: the topic does not have it if all
records have expired, or none was ever written."""

from pathlib import Path

import structlog

from streamd.roles import SCORE, make_folder
from streamd.storage import write_durably

logger = structlog.get_logger()
FILE = "complete"


class ScoredPosition:
    """The event id before which every event was scored or skipped at the last write. Owner: the
    role's loop."""

    def __init__(self, data_dir: Path) -> None:
        self._path = make_folder(data_dir, SCORE) / FILE
        self._written: int | None = None
        self._failing = False

    def read(self) -> int | None:
        """The position that was written last, None if it cannot be read."""
        try:
            return int(self._path.read_bytes())
        except (OSError, ValueError):
            return None

    def write(self, event: int) -> None:
        """Write the position durably if it changed. A failure is logged, and the older position
        stays."""
        if event == self._written:
            return
        try:
            write_durably(self._path, b"%d" % event)
        except OSError as error:
            if not self._failing:
                logger.error("position_not_written", file=str(self._path), error=str(error))
            self._failing = True
        else:
            self._written = event
            self._failing = False
