"""The positions of a client's writes in the log, for the header `streamd-after`: with it, answers
include the client's own writes."""

import threading

MAX_TOKENS = 256
"""Maximum number of positions that a server accepts in one request."""


class Positions:
    """The positions that answers must include. Owner: a client, whose threads may all use it.

    The offset of a record stays until an answer includes it. Then the answer's commit replaces it:
    another server at the same address may not have the record yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, int] = {}
        """"TOPIC:PARTITION" -> largest offset that was written."""
        self._commit: tuple[int, int] | None = None
        """Term and number of the newest commit that an answer included."""

    def add_writes(self, after: str) -> None:
        """Add records that were written. after: the field of `EventsResponse`."""
        with self._lock:
            for token in after.split(","):
                partition, _, offset = token.strip().rpartition(":")
                self._records[partition] = max(int(offset), self._records.get(partition, -1))

    @property
    def header(self) -> str:
        """The value of `streamd-after` for the next request; empty if there is no position."""
        with self._lock:
            tokens = [f"{partition}:{offset}" for partition, offset in self._records.items()]
            if self._commit is not None:
                tokens.append(f"{self._commit[0]}.{self._commit[1]}")
        return ", ".join(tokens)

    def confirm(self, header: str, position: str) -> None:
        """Record that an answer at position TERM.SEQ included the positions in `header`."""
        term, _, seq = position.partition(".")
        with self._lock:
            for token in header.split(", "):
                partition, _, offset = token.rpartition(":")
                # The client may have written more since it sent the request.
                if partition and self._records.get(partition) == int(offset):
                    del self._records[partition]
            self._commit = max(self._commit or (0, 0), (int(term), int(seq)))

    def forget(self) -> None:
        """Drop all positions: they have no meaning in another log."""
        with self._lock:
            self._records.clear()
            self._commit = None
