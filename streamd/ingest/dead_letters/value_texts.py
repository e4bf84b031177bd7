"""The value of a dead letter as text, the same in the list and on the status page."""

from streamd.decode.wire import OWN_EVENT_US


def value_text(value: bytes, reason: str, content_type: str, most: int) -> str:
    """The first `most` characters of a letter's value, for people, with an ellipsis if there are
    more. reason, content_type: as in `DeadLetter`."""
    if not value:
        return "(null)" if reason == "tombstone" else "(empty)"
    # A character of UTF-8 has at most four bytes.
    decoded = value[: 4 * most].decode(errors="backslashreplace")
    text = decoded[:most]
    if len(decoded) > most or len(value) > 4 * most:
        text = f"{decoded[: most - 1]}…"
    # The refused event of a mapped record is streamd's own event, with times in microseconds.
    return f"{text} (times in microseconds)" if content_type == OWN_EVENT_US else text
