"""The items of one record, which are decoded one by one where they are not all valid edges."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from streamd.decode.wire import WireEvent


class RecordItems(NamedTuple):
    """The items of one record, in order.

    read: parses an item; None where it is no event. Raises BadEvent. raw: the bytes of an item,
    which a dead letter keeps. scale: microseconds of the items' unit of time, None for the
    stream's. content_type: of what `raw` returns.
    """

    record: Any
    items: Iterable[Any]
    read: Callable[[Any], WireEvent | None]
    raw: Callable[[Any], bytes]
    scale: int | None = None
    content_type: str = ""
