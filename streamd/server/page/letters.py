"""Dead letters as the status page shows them: how many there are of each reason, and the newest."""

import base64
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from streamd.ingest.dead_letters.sinks import FOLDER

TAIL_BYTES = 1 << 20
"""Bytes at the end of the newest file that are read: some thousand letters."""
SHOWN_CHARACTERS = 300
"""Of the value of an example."""


class Letters:
    """Reads the local files of dead letters again when they change. Owner: the event loop's
    thread."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FOLDER / "current.jsonl"
        self._stamp = (0, 0)
        self._content: list[dict[str, Any]] = []

    def content(self) -> list[dict[str, Any]]:
        """Of each reason among the newest letters their number and the newest example, most
        frequent first; empty where letters go to a topic."""
        try:
            status = self._path.stat()
            stamp = (status.st_size, status.st_mtime_ns)
            if stamp != self._stamp:
                self._content = self._read(status.st_size)
                self._stamp = stamp
        except OSError:
            # Between two files, or none yet.
            return []
        return self._content

    def _read(self, size: int) -> list[dict[str, Any]]:
        with self._path.open("rb") as file:
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).splitlines()

        # The first line may be half a one, and the last still be written.
        counts: Counter[str] = Counter()
        newest: dict[str, dict[str, Any]] = {}
        for line in lines:
            try:
                letter = msgspec.json.decode(line, type=dict[str, Any])
                value = base64.b64decode(letter["value_base64"])
                reason = str(letter["reason"])
                newest[reason] = {
                    "topic": str(letter["topic"]),
                    "partition": int(letter["partition"]),
                    "offset": int(letter["offset"]),
                    "error": str(letter["error"]),
                    "time_us": int(letter["time_us"]),
                    "value": value.decode(errors="replace")[:SHOWN_CHARACTERS],
                }
            except (msgspec.DecodeError, UnicodeDecodeError, ValueError, KeyError, TypeError):
                continue
            counts[reason] += 1
        return [
            {"reason": reason, "count": count, "example": newest[reason]}
            for reason, count in counts.most_common()
        ]
