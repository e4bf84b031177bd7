"""What a client has written, as the header `streamd-after` names it, so that it reads its own
writes."""

import threading

MAX_TOKENS = 256
"""Most tokens that a server takes in one request."""


class Positions:
    """The places that answers must have seen. Owner: a client, whose threads may all use it.

    A record's place stays until an answer has seen it. That answer's own position then stands for
    it, since another server behind the same address may not have seen it yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, int] = {}
        """Largest offset of each "TOPIC:PARTITION"."""
        self._commit: tuple[int, int] | None = None

    def wrote(self, after: str) -> None:
        """Note records that were written. after: as the server's answer to events says it."""
        with self._lock:
            for token in after.split(","):
                place, _, offset = token.strip().rpartition(":")
                self._records[place] = max(int(offset), self._records.get(place, -1))

    @property
    def header(self) -> str:
        """What the next answer must have seen; empty where nothing was written."""
        with self._lock:
            tokens = [f"{place}:{offset}" for place, offset in self._records.items()]
            if self._commit is not None:
                tokens.append(f"{self._commit[0]}.{self._commit[1]}")
        return ", ".join(tokens)

    def saw(self, header: str, position: str) -> None:
        """Note that an answer which had to see `header` was computed at a position, TERM.SEQ."""
        term, _, seq = position.partition(".")
        with self._lock:
            for token in header.split(", "):
                place, _, offset = token.rpartition(":")
                # More may have been written since the request was sent.
                if place and self._records.get(place) == int(offset):
                    del self._records[place]
            self._commit = max(self._commit or (0, 0), (int(term), int(seq)))

    def forget(self) -> None:
        """Ask for nothing any more: positions mean nothing in another log."""
        with self._lock:
            self._records.clear()
            self._commit = None
