"""Reads the content type of a record, and finds headers that exclude it from the fast path."""

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
"""Other names of the same media types."""
CLOUDEVENTS = "application/cloudevents"
"""Prefix of the types of events that have their attributes in the value."""
PARAMETER = re.compile(r';\s*([^\s;="]+)="?([^;"]*)')
MAX_TYPE_BYTES = 200
"""Longer content types are cut: no known one is so long."""
MAX_KNOWN = 1_024
"""Maximum headers and names that are cached: producers may send any number of them."""
MAX_KNOWN_BYTES = 100
"""Longer headers and names are not cached."""


class JSONHeaders:
    """Finds whether headers leave a value JSON. Owner: the decoder.

    harmless: cache of names of headers that ingest does not read, and of whole headers for JSON.
    """

    def __init__(self) -> None:
        self.harmless: set[str | Header] = set()

    def admit(self, header: Header) -> bool:
        """Whether a header leaves the value JSON; if so it is added to the cache."""
        name, content = header
        if name == REFUSED_HEADER:
            return False
        # A content type is harmless only with its content, other headers by name.
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
        # Producers choose headers, so bound the cache.
        if num_bytes <= MAX_KNOWN_BYTES and len(self.harmless) < MAX_KNOWN:
            self.harmless.add(known)
        return True


class MediaType(NamedTuple):
    """A media type (RFC 9110, section 8.3.1) in a normalized form.

    essence: type and subtype in lower case, "" for none. parameters: names and values in lower
    case, since those that are read are words.
    """

    essence: str = ""
    parameters: frozenset[tuple[str, str]] = frozenset()


@lru_cache(MAX_KNOWN)
def media_type(content: bytes) -> MediaType:
    """Parse the media type in a header; some programs write it as JSON text, in quotes."""
    text = content.decode("latin-1").replace("\\", "").strip(" \t\r\n\"'").lower()
    essence = text.partition(";")[0].strip()
    return MediaType(NAMES.get(essence, essence), frozenset(PARAMETER.findall(text)))


def media_type_of(headers: Sequence[Header]) -> MediaType:
    """The media type in the last header `content-type`; an empty one if there is none."""
    kind = MediaType()
    for name, content in headers:
        if name.lower() == "content-type":
            # Cut first, because `media_type` caches its argument.
            kind = media_type((content or b"")[:MAX_TYPE_BYTES])
    return kind


def content_of(headers: Sequence[Header]) -> str:
    """The last content type in headers, without parameters; "" if there is none."""
    return media_type_of(headers).essence


def own_content_type(headers: Sequence[Header]) -> str:
    """The content type of streamd's own events in headers, JSON by default. Raises: BadEvent if
    unknown.

    Any type with the suffix `+json` is JSON too (RFC 6839).
    """
    essence = content_of(headers)
    if essence in CONTENT_TYPES:
        return essence
    known = f"known are {', '.join(CONTENT_TYPES)}"
    # Without this branch these would be read as streamd's own events.
    if essence.startswith(CLOUDEVENTS) or essence == OWN_ROW:
        known = "give the topic an entry in sources"
        known += ", with envelope: cloudevents" if essence != OWN_ROW else ""
    elif essence.endswith("+json") or not any(n.lower() == "content-type" for n, _ in headers):
        return JSON
    raise BadEvent("unknown_content_type", f"content-type {essence[:80]!r}, {known}")


def content_header(record: Any) -> str:
    """The `content-type` header as sent, at most 100 bytes of it; "" if there is none."""
    values = [
        value for name, value in record.headers or () if name.lower() == "content-type" and value
    ]
    return values[-1][:100].decode(errors="replace") if values else ""
