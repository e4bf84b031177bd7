"""W3C Trace Context: a request's header `traceparent`, and `traceresponse` in the answer.

Sources: https://www.w3.org/TR/trace-context-2/,
https://w3c.github.io/trace-context/#traceresponse-header (a draft).
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

# Version ff is invalid, as are ids of only zeros.
TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})(?P<trace_id>[0-9a-f]{32})-(?!0{16})(?P<parent>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?",
    re.ASCII,
)
KNOWN_FLAGS = 0x03
"""The flags for "sampled" and "random id". Others have no meaning yet and are not passed on."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of a request. All fields are lower-case hex.

    trace_id: of the whole trace. parent: the caller's span. span: this request's span. flags: two
    digits.
    """

    trace_id: str
    parent: str
    span: str
    flags: str

    @property
    def is_sampled(self) -> bool:
        """Whether the caller, or the first participant of the trace, records it."""
        return int(self.flags, 16) & 1 == 1

    @property
    def response(self) -> str:
        """The value of `traceresponse`."""
        return f"00-{self.trace_id}-{self.span}-{self.flags}"


def trace_of(values: Sequence[str]) -> Trace | None:
    """Parse the trace from a request's `traceparent` headers.

    Returns: None if there is no header, several, or an invalid one.
    """
    match = TRACEPARENT.fullmatch(values[0].strip()) if len(values) == 1 else None
    if match is None or (match["version"] == "00" and match["more"] is not None):
        return None
    flags = int(match["flags"], 16) & KNOWN_FLAGS
    return Trace(match["trace_id"], match["parent"], secrets.token_hex(8), f"{flags:02x}")
