"""Events of the broker's records by place, and the events between two positions of a partition."""

from typing import NamedTuple

from tests.simulator.broker import ABORTED, OPEN
from tests.simulator.scheduler import Failure

START = (-1, 0, ())
"""The position of a partition that was not read."""
EDGE, NODE, LABEL, DELETE_NODE, DELETE_EDGE, REFUSED = "edge", "node", "label", "delete of a node", "delete of an edge", "refused"
SKIPPED = "skipped"
"""That no source takes."""


class Item(NamedTuple):
    """An event as it was sent. id: of an edge, a node or a label, its only number, by which the log is compared. number: in the order in which all
    events of the world were produced. key: source of an edge, or node. time_us: of an edge or a label, or of the edge that is deleted. edge_set: its number.
    Keys of another node set than the first are `SetKey`."""

    kind: str
    id: int
    number: int
    key: str
    target: str = ""
    time_us: int = 0
    edge_set: int = 0


class Sent(NamedTuple):
    """An event at its place. partition: id of the topic and number. place: offset and index in the record."""

    partition: tuple[str, int]
    place: tuple[int, int]
    item: Item

    @property
    def where(self):
        return (*self.partition, *self.place)


def is_aborted(entry):
    return entry.transaction is not None and entry.transaction.state == ABORTED


def events_at(partition, offset):
    """What a record has for those who read what is committed. Raises: Failure where its transaction is open: nobody may read it."""
    entry = partition.history[offset]
    if entry.told is None or is_aborted(entry):
        return []
    if entry.transaction is not None and entry.transaction.state == OPEN:
        raise Failure(f"offset {offset} of {partition.topic.name}-{partition.number} is read, and its transaction is open")
    name = partition.topic.id, partition.number
    return [Sent(name, (offset, index), item) for index, item in enumerate(entry.told) if item.kind != SKIPPED]


def passed(partition, before, after):
    """The events that a position has and the one before has not. Raises: Failure where it falls."""
    base, base_ahead = before[:2], _ahead(partition, before[2])
    end, end_ahead = after[:2], _ahead(partition, after[2])
    name = f"{partition.topic.name}-{partition.number}"
    if end < base:
        raise Failure(f"{name} falls from {before} to {after}")
    if lost := [place for place in base_ahead if place >= end and place not in end_ahead]:
        raise Failure(f"{name} forgets {lost} ahead, from {before} to {after}")
    for offset in range(max(base[0], 0), end[0] + (end[1] > 0)):
        for sent in events_at(partition, offset):
            if base <= sent.place < end and sent.place not in base_ahead:
                yield sent
    for place, sent in end_ahead.items():
        if place not in base_ahead and place >= end:
            yield sent


def _ahead(partition, runs):
    """The events of runs ahead, by place."""
    out = {}
    for offset, index, *last in runs:
        end = tuple(last) or (offset, index)
        for at in range(offset, end[0] + 1):
            out |= {sent.place: sent for sent in events_at(partition, at) if (offset, index) <= sent.place <= end}
    return out
