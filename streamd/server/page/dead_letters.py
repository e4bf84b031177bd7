"""Dead letters for the status page: their number by reason, and the newest example of each."""

import base64
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from streamd.ingest.dead_letters.purge import FOLDER
from streamd.ingest.dead_letters.value_texts import value_text

TAIL_BYTES = 1 << 20
"""Bytes that are read from the end of the current file: some thousand dead letters."""
SHOWN_CHARACTERS = 300
"""Maximum number of characters of an example's value."""


class DeadLettersOnPage:
    """Reads the current local file of dead letters whenever it has changed. Owner: the event loop's
    thread."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FOLDER / "current.jsonl"
        self._stamp = (0, 0)
        self._content: list[dict[str, Any]] = []

    def content(self) -> list[dict[str, Any]]:
        """For each reason, the number of dead letters and the newest example, the most frequent
        reason first. Empty if ingest writes dead letters to a topic."""
        try:
            status = self._path.stat()
            stamp = (status.st_size, status.st_mtime_ns)
            if stamp != self._stamp:
                self._content = self._read(status.st_size)
                self._stamp = stamp
        except OSError:
            # The file does not exist yet, or was just renamed to start another one.
            return []
        return self._content

    def _read(self, size: int) -> list[dict[str, Any]]:
        with self._path.open("rb") as file:
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).splitlines()

        # The first line may be cut off, and the last one may still be written.
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
                    "value": value_text(
                        value, reason, str(letter["content_type"]), SHOWN_CHARACTERS
                    ),
                }
            except (msgspec.DecodeError, UnicodeDecodeError, ValueError, KeyError, TypeError):
                continue
            counts[reason] += 1
        return [
            {"reason": reason, "count": count, "example": newest[reason]}
            for reason, count in counts.most_common()
        ]
