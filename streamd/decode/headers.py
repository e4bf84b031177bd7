"""Which headers leave a record one that the fast path may take."""

from collections.abc import Sequence
from typing import Any

from streamd.decode.wire import JSON, REFUSED_HEADER, content_type
from streamd.errors import BadEvent

Header = tuple[str, bytes | None]
MAX_KNOWN = 1_024
"""Most headers and names that are remembered: producers may send any number of them."""
MAX_KNOWN_BYTES = 100
"""Longer headers and names are looked at each time."""


class JSONHeaders:
    """Tells headers that leave a value JSON from those that do not. Owner: the decoder.

    harmless: names of headers that ingest does not read, and whole headers that say JSON, as far as
    they were met.
    """

    def __init__(self) -> None:
        self.harmless: set[str | Header] = set()

    def admit(self, header: Header) -> bool:
        """Whether a header leaves the value JSON; if so it is remembered."""
        name, content = header
        if name == REFUSED_HEADER:
            return False
        known: str | Header = name
        num_bytes = len(name)
        if name.lower() == "content-type":
            try:
                if content_type([header]) != JSON:
                    return False
            except BadEvent:
                return False
            known = header
            num_bytes += len(content or b"")
        if num_bytes <= MAX_KNOWN_BYTES and len(self.harmless) < MAX_KNOWN:
            self.harmless.add(known)
        return True


def content_of(headers: Sequence[Header]) -> str:
    """The last content type in headers, in lower case and without parameters; empty for none."""
    kind = ""
    for name, content in headers:
        if name.lower() == "content-type":
            kind = (content or b"").decode("latin-1").split(";")[0].strip().lower()
    return kind


def content_header(record: Any) -> str:
    """The `content-type` header as sent, at most 100 bytes of it; empty where there is none."""
    values = [
        value for name, value in record.headers or () if name.lower() == "content-type" and value
    ]
    return values[-1][:100].decode(errors="replace") if values else ""
