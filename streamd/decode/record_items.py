"""The items of one record, which are decoded one by one where they are not all valid edges."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from streamd.decode.wire import WireEvent
from streamd.errors import BadEvent

ItemEvents = Sequence[WireEvent | BadEvent | None]
"""The events that an item may be: each with its number in the record. An error of one refuses the
whole item. None is no event."""


class RecordItems(NamedTuple):
    """The items of one record, in order.

    read: parses an item. Raises BadEvent. raw: the bytes of an item,
    which a dead letter keeps. scale: microseconds of the items' unit of time, None for the
    stream's. content_type: of what `raw` returns.
    """

    record: Any
    items: Iterable[Any]
    read: Callable[[Any], ItemEvents]
    raw: Callable[[Any], bytes]
    scale: int | None = None
    content_type: str = ""
