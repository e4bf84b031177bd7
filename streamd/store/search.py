"""Searches streams of bytes for many keys at once, in bounded memory."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamd.store.key_bounds import CONTEXT_BYTES, is_whole

CHUNK_BYTES = 1 << 22
"""Number of bytes searched at once, 4 MiB: a disk reads them in some milliseconds."""
SHORT_BYTES = 6
"""A form of a key with fewer bytes may be found by chance: there are 12 million words of five
letters, so gigabytes of text contain each of them hundreds of times."""
FEW_FORMS = 16
"""Up to this number, forms are searched one by one, which is faster than the table: a table takes
the same time for any number."""
WINDOWS = (8, 4)
"""Numbers of bytes of a form that a table hashes; shorter forms are searched one by one."""
HASH_BITS = 20
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""Multiplier of Fibonacci hashing: the upper bits of a product depend on all bits of a window."""


def forms_of(key: str) -> list[bytes]:
    """The forms in which the text of a key may be stored: UTF-8, and with the escapes of JSON."""
    return sorted({key.encode(), json.dumps(key)[1:-1].encode()})


def is_found_by_chance(key: str) -> bool:
    """Whether other data may contain the bytes of a key by chance, as those of a short text, or of
    digits, which occur in times and sizes."""
    return min(map(len, forms_of(key))) < SHORT_BYTES or key.lstrip("-").isdigit()


class KeySearch:
    """Finds keys in bytes. A key's number is its index in `keys`."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = list(keys)
        self._forms: dict[bytes, int] = {}
        for number, key in enumerate(self.keys):
            for form in forms_of(key):
                self._forms.setdefault(form, number)
        self.longest = max(map(len, self._forms), default=1)
        """Bytes of the longest form."""
        few = len(self._forms) <= FEW_FORMS
        self._single = [form for form in self._forms if few or len(form) < WINDOWS[-1]]
        self._tables = [] if few else [_Table(window, self._of(window)) for window in WINDOWS]

    def _of(self, window: int) -> list[bytes]:
        """The forms for the table of a window: a form belongs to the longest window that it
        fills."""
        longer = [w for w in WINDOWS if w > window]
        most = min(longer, default=1 << 62)
        return [form for form in self._forms if window <= len(form) < most]

    def find(
        self, data: bytes, decided: int = 0, end: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """Yield (number of a key, offset of its first occurrence), each key once. A part of a
        longer text is no occurrence (`streamd.store.key_bounds`).

        decided, end: only occurrences that end in (decided, end] count; the other bytes are
        context, by which a part of a longer text is recognized.
        """
        last = len(data) if end is None else end
        found: dict[int, int] = {}
        for form, at in self._occurrences(data):
            number, after = self._forms[form], at + len(form)
            is_earlier = at < found.get(number, last)
            if is_earlier and decided < after <= last and is_whole(data, at, after):
                found[number] = at
        yield from sorted(found.items())

    def _occurrences(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield (form, offset) of each occurrence of the bytes of a form, possibly twice."""
        for form in self._single:
            at = data.find(form)
            while at >= 0:
                yield form, at
                at = data.find(form, at + 1)
        for table in self._tables:
            yield from table.find(data)

    def find_in(
        self, pieces: Iterable[bytes], before: bytes = b"", after: bytes = b""
    ) -> dict[int, int]:
        """Find keys in a stream of pieces, across their borders too.

        before, after: the bytes next to the stream. An occurrence that ends in the stream counts.
        Returns: number of a key -> offset of its first occurrence in the stream, negative if it
        begins in `before`.
        """
        found: dict[int, int] = {}
        data = before
        decided = len(before)
        start = -len(before)
        for piece in pieces:
            data += piece
            # Decide about the last occurrences with the next piece: its bytes may show that they
            # are parts of longer texts.
            end = len(data) - CONTEXT_BYTES
            if end < decided + CONTEXT_BYTES:
                continue
            self._add(found, data, decided, end, start)
            cut = max(0, end - CONTEXT_BYTES - self.longest)
            start += cut
            data, decided = data[cut:], end - cut
        self._add(found, data + after, decided, len(data), start)
        return found

    def _add(self, found: dict[int, int], data: bytes, decided: int, end: int, start: int) -> None:
        """Add the occurrences that end in (decided, end] of `data`, which begins at `start`."""
        for number, at in self.find(data, decided, end):
            found[number] = min(found.get(number, start + at), start + at)


class _Table:
    """Finds forms of at least `window` bytes by a hash of some of their bytes."""

    def __init__(self, window: int, forms: list[bytes]) -> None:
        self._window = window
        self._type = np.dtype(f"<u{window}")
        # Hash the window of each form that the fewest other forms have: many start or end alike.
        windows = [[form[i : i + window] for i in range(len(form) - window + 1)] for form in forms]
        shared = Counter(one for some in windows for one in set(some))
        self._forms: dict[bytes, list[tuple[bytes, int]]] = {}
        for form, some in zip(forms, windows, strict=True):
            offset = min(range(len(some)), key=lambda i, some=some: shared[some[i]])  # type: ignore[misc]
            self._forms.setdefault(some[offset], []).append((form, offset))
        self._has = np.zeros(1 << HASH_BITS, np.bool_)
        if self._forms:
            self._has[_hashes(np.frombuffer(b"".join(self._forms), self._type))] = True

    def find(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield (form, offset) of each occurrence of a form, possibly twice."""
        if not self._forms:
            return
        for shift in range(self._window):
            count = (len(data) - shift) // self._window
            if count <= 0:
                break
            words = np.frombuffer(data, self._type, count, shift)
            for index in np.flatnonzero(self._has[_hashes(words)]).tolist():
                at = shift + index * self._window
                for form, offset in self._forms.get(data[at : at + self._window], ()):
                    if at >= offset and data.startswith(form, at - offset):
                        yield form, at - offset


def _hashes(words: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.uint64]:
    return (words.astype(np.uint64) * MULTIPLIER) >> np.uint64(64 - HASH_BITS)
