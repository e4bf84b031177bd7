"""The items of one record, to be decoded one by one if they are not all valid edges."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from streamd.decode.wire import WireEvent
from streamd.errors import BadEvent

ItemEvents = Sequence[WireEvent | BadEvent | None]
"""The events of one item, each with its own index in the record. An error in place of one refuses
the whole item. None is no event."""


class RecordItems(NamedTuple):
    """The items of one record, in order.

    read: parses an item; raises BadEvent. raw: the bytes of an item for a dead letter. scale:
    microseconds of the items' unit of time, None for the stream's. content_type: of the bytes that
    `raw` returns. may_match_nothing: whether deletes are skipped if the log has no such node or
    edge.
    """

    record: Any
    items: Iterable[Any]
    read: Callable[[Any], ItemEvents]
    raw: Callable[[Any], bytes]
    scale: int | None = None
    content_type: str = ""
    may_match_nothing: bool = False
