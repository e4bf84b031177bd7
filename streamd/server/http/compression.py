"""Compressed bodies of requests and responses; the expanded size of a request's body is bounded."""

import gzip
import re
import zlib

from fastapi import HTTPException, Response

from streamd.server.http.connections import MAX_BODY_BYTES

WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""Content coding -> zlib's `wbits`; `deflate` has zlib's header and checksum (RFC 9110, 8.4.1)."""
MIN_COMPRESSED_BYTES = 1024
"""A smaller body fits one packet uncompressed."""
# A weight of 0 refuses a coding (RFC 9110, 12.4.2).
NEVER = re.compile(r"\s*q\s*=\s*0(\.0*)?\s*", re.IGNORECASE)


def expand_body(body: bytes, coding: str) -> bytes:
    """Undo the `content-encoding` of a request's body.

    Raises: HTTPException if the body does not have this coding, the coding is unknown, or the body
    expands to more than MAX_BODY_BYTES.
    """
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    if coding not in WINDOW_BITS:
        raise HTTPException(
            400, f"content-encoding {coding[:64]!r} is not supported; send gzip, deflate or none"
        )

    # Expand at most to the limit of a body: a few bytes may expand to gigabytes.
    stream = zlib.decompressobj(WINDOW_BITS[coding])
    try:
        plain = stream.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error as error:
        raise HTTPException(400, f"the body is not {coding}: {error}") from None
    if len(plain) > MAX_BODY_BYTES:
        raise HTTPException(413, f"the expanded body is larger than {MAX_BODY_BYTES} bytes")

    # Refuse a stream that is cut off, or followed by other bytes.
    if not stream.eof or stream.unused_data:
        raise HTTPException(400, f"the body is not one whole {coding} stream")
    return plain


def compress_response(response: Response, accepted: str) -> Response:
    """Compress a response if `accept-encoding` (accepted) allows it and its body has at least
    MIN_COMPRESSED_BYTES."""
    coding = _coding(accepted)
    if coding is None or response.status_code != 200 or len(response.body) < MIN_COMPRESSED_BYTES:
        return response

    # Use the fastest level, since the engine shares this thread, and no time stamp, so that equal
    # answers have equal bytes.
    plain = bytes(response.body)
    response.body = (
        gzip.compress(plain, 1, mtime=0) if coding == "gzip" else zlib.compress(plain, 1)
    )
    response.headers["content-encoding"] = coding
    response.headers["content-length"] = str(len(response.body))
    return response


def _coding(accepted: str) -> str | None:
    """The coding of a response: gzip if accepted, else deflate; None if neither is accepted."""
    names = set()
    for one in accepted.lower().split(","):
        name, _, weight = one.partition(";")
        if not NEVER.fullmatch(weight):
            names.add(name.strip())
    return next((coding for coding in WINDOW_BITS if coding in names), None)
