"""The content type of a record, and which headers leave it one that the fast path may take."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from streamd.decode.wire import CONTENT_TYPES, JSON, NDJSON, OWN_ROW, REFUSED_HEADER
from streamd.errors import BadEvent

Header = tuple[str, bytes | None]
NAMES = {
    "text/json": JSON,
    "application/ndjson": NDJSON,
    "application/jsonl": NDJSON,
    "application/x-jsonl": NDJSON,
    "application/jsonlines": NDJSON,
    "application/x-jsonlines": NDJSON,
}
"""Other names in use for the same media types."""
CLOUDEVENTS = "application/cloudevents"
"""Beginning of the types of events with their attributes in the value."""
PARAMETER = re.compile(r';\s*([^\s;="]+)="?([^;"]*)')
MAX_TYPE_BYTES = 200
"""Longer content types are cut: no known one has so many bytes."""
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
                if own_content_type([header]) != JSON:
                    return False
            except BadEvent:
                return False
            known = header
            num_bytes += len(content or b"")
        if num_bytes <= MAX_KNOWN_BYTES and len(self.harmless) < MAX_KNOWN:
            self.harmless.add(known)
        return True


class MediaType(NamedTuple):
    """A media type (RFC 9110, section 8.3.1) without the other ways to write the same.

    essence: type and subtype in lower case, empty for none. parameters: names and values in lower
    case, since those that we read are words.
    """

    essence: str = ""
    parameters: frozenset[tuple[str, str]] = frozenset()


@lru_cache(MAX_KNOWN)
def media_type(content: bytes) -> MediaType:
    """The media type in a header, which some programs write as JSON text, in quotes."""
    text = content.decode("latin-1").replace("\\", "").strip(" \t\r\n\"'").lower()
    essence = text.partition(";")[0].strip()
    return MediaType(NAMES.get(essence, essence), frozenset(PARAMETER.findall(text)))


def media_type_of(headers: Sequence[Header]) -> MediaType:
    """The media type in the last header `content-type`; an empty one if there is none."""
    kind = MediaType()
    for name, content in headers:
        if name.lower() == "content-type":
            kind = media_type((content or b"")[:MAX_TYPE_BYTES])
    return kind


def content_of(headers: Sequence[Header]) -> str:
    """The last content type in headers, without parameters; empty if there is none."""
    return media_type_of(headers).essence


def own_content_type(headers: Sequence[Header]) -> str:
    """The form of our own events that headers name, JSON by default. Raises: BadEvent if unknown.

    Any type with the suffix `+json` is JSON too (RFC 6839).
    """
    essence = content_of(headers)
    if essence in CONTENT_TYPES:
        return essence
    known = f"known are {', '.join(CONTENT_TYPES)}"
    # Those would be read as our own events.
    if essence.startswith(CLOUDEVENTS) or essence == OWN_ROW:
        known = "give the topic an entry in sources"
        known += ", with envelope: cloudevents" if essence != OWN_ROW else ""
    elif essence.endswith("+json") or not any(n.lower() == "content-type" for n, _ in headers):
        return JSON
    raise BadEvent("unknown_content_type", f"content-type {essence[:80]!r}, {known}")


def content_header(record: Any) -> str:
    """The `content-type` header as sent, at most 100 bytes of it; empty where there is none."""
    values = [
        value for name, value in record.headers or () if name.lower() == "content-type" and value
    ]
    return values[-1][:100].decode(errors="replace") if values else ""
