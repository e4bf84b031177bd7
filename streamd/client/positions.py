"""The positions of a client's writes, for the header `streamd-after`, so that it reads its own
writes."""

import threading

MAX_TOKENS = 256
"""Most tokens that a server takes in one request."""


class Positions:
    """The positions that answers must have seen. Owner: a client; its threads may all use it.

    The position of a record stays until an answer has seen it. The position of that answer then
    takes over, since another server at the same address may not have seen the record yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, int] = {}
        """Largest offset of each "TOPIC:PARTITION"."""
        self._commit: tuple[int, int] | None = None

    def wrote(self, after: str) -> None:
        """Add records that were written. after: from the server's answer to events."""
        with self._lock:
            for token in after.split(","):
                place, _, offset = token.strip().rpartition(":")
                self._records[place] = max(int(offset), self._records.get(place, -1))

    @property
    def header(self) -> str:
        """The positions that the next answer must have seen; empty if there are none."""
        with self._lock:
            tokens = [f"{place}:{offset}" for place, offset in self._records.items()]
            if self._commit is not None:
                tokens.append(f"{self._commit[0]}.{self._commit[1]}")
        return ", ".join(tokens)

    def saw(self, header: str, position: str) -> None:
        """Note that the server computed an answer at position TERM.SEQ which had seen `header`."""
        term, _, seq = position.partition(".")
        with self._lock:
            for token in header.split(", "):
                place, _, offset = token.rpartition(":")
                # The client may have written more since it sent the request.
                if place and self._records.get(place) == int(offset):
                    del self._records[place]
            self._commit = max(self._commit or (0, 0), (int(term), int(seq)))

    def forget(self) -> None:
        """Drop all positions: they have no meaning in another log."""
        with self._lock:
            self._records.clear()
            self._commit = None
