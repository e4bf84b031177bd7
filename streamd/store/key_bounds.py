"""Decides whether the bytes of a key are a whole text or a part of a longer one: a search for
`user:34` must not find it in `user:340`."""

import re
import struct
import unicodedata

from streamd.eventlog.node_keys import KIND, REMOVED, ROW_HEAD, STRING

MAX_ROW_BYTES = 4_096
"""Maximum length of a text that is recognized as a row of the file of keys: 16 times the default of
`ingest.max_key_bytes`. A longer row is treated as any other text."""
CONTEXT_BYTES = MAX_ROW_BYTES + ROW_HEAD
"""Bytes before and after an occurrence of a key that the decision may need."""
CHARACTER_BYTES = 12
"""Longest form of a character: a pair of JSON's escapes."""

CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
ESCAPED_BEFORE = re.compile(rb"\\(?:[bfnrt]|((?:u[Dd][89AaBb][0-9A-Fa-f]{2}\\)?u[0-9A-Fa-f]{4}))\Z")
ESCAPED_AFTER = re.compile(rb"\\((?:u[Dd][89AaBb][0-9A-Fa-f]{2}\\)?u[0-9A-Fa-f]{4})")
"""JSON's escapes before and after a text; the group has the code units of the character."""
_length_at = struct.Struct("<I").unpack_from


def is_whole(data: bytes, begin: int, end: int) -> bool:
    """Whether `data[begin:end]`, the bytes of a key, are a whole text.

    In a row of the file of keys, the row's length decides. In any other text, the bytes are a part
    of a longer text if a letter, digit or underscore is next to them, even if it is written as one
    of JSON's escapes. In doubt they are whole, so that a search misses nothing.
    """
    row = _row_around(data, begin, end)
    if row is not None:
        return row == (begin, end)
    before = data[max(0, begin - CHARACTER_BYTES) : begin]
    return not (_ends_in_word(before) or _begins_with_word(data[end : end + CHARACTER_BYTES]))


def _row_around(data: bytes, begin: int, end: int) -> tuple[int, int] | None:
    """The bounds [begin, end) of the text of the row, in the file of keys, around some bytes; None
    if they are in no row. A row may end after `data`."""
    # A row begins with its length. Its highest byte is zero, while a key has no zero byte.
    first = data.rfind(b"\0", max(0, begin - MAX_ROW_BYTES - 1), begin) + 1
    if first < ROW_HEAD:
        return None
    last = first + int(_length_at(data, first - 4)[0])
    is_text = data[first - ROW_HEAD] & KIND in (STRING, REMOVED)
    if not is_text or last < end or last - first > MAX_ROW_BYTES:
        return None
    return None if CONTROL.search(data, first, last) else (first, last)


def _ends_in_word(text: bytes) -> bool:
    """Whether the last character of a text belongs to a word."""
    if escaped := ESCAPED_BEFORE.search(text):
        return escaped[1] is not None and _is_escape_of_word(escaped[1])
    # A character of UTF-8 ends at the first length at which it can be decoded.
    return any(_is_word(text[-size:]) for size in range(1, min(4, len(text)) + 1))


def _begins_with_word(text: bytes) -> bool:
    """Whether the first character of a text belongs to a word."""
    if escaped := ESCAPED_AFTER.match(text):
        return _is_escape_of_word(escaped[1])
    return any(_is_word(text[:size]) for size in range(1, min(4, len(text)) + 1))


def _is_escape_of_word(numbers: bytes) -> bool:
    """Whether a character of a word is escaped. numbers: one or two code units of UTF-16, as
    `u00e9`."""
    units = [int(unit, 16) for unit in numbers.replace(b"\\", b"").split(b"u")[1:]]
    text = struct.pack(f"<{len(units)}H", *units).decode("utf-16-le", errors="replace")
    return _is_word(text.encode())


def _is_word(text: bytes) -> bool:
    """Whether a text is one letter, digit, underscore or mark on a letter, in UTF-8."""
    try:
        character = text.decode()
    except UnicodeDecodeError:
        return False
    if len(character) != 1:
        return False
    is_mark = unicodedata.category(character).startswith("M")
    return character.isalnum() or character == "_" or is_mark
