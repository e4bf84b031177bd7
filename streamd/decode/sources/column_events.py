"""Makes events from many records at once: each record goes to the first source that takes it."""

import itertools
from dataclasses import replace

import numpy as np

from streamd.decode.block import Block, EventRows, Origin, Taken, empty_block, joined
from streamd.decode.checks import EventChecker
from streamd.decode.rounding import NOTHING
from streamd.decode.sources.envelopes import Form
from streamd.decode.sources.layout import Layout
from streamd.decode.sources.paths import Columns
from streamd.errors import BadEvent
from streamd.events import Bools, Int64


def column_events(
    form: Form, columns: Columns, origin: Origin, count: int, checker: EventChecker, most: int
) -> Taken | None:
    """Make the events of `count` objects; None if one has to be decoded alone.

    An object that may be several events numbers them as `Form.events` does, after those of the
    objects before it in the same record. most: the maximum number of events.
    """
    lengths_RL = first_RL = None
    if not form.is_simple:
        lengths_RL = form.lengths(columns, count)
        if lengths_RL is None:
            return None
        # With `also`, events of several sources are numbered one after the other; otherwise each
        # source numbers from 0.
        num_R = lengths_RL.sum(1) if form.has_also else lengths_RL.max(1)
        if num_R.sum() > most:
            return None
        first_RL = np.broadcast_to((np.cumsum(num_R) - num_R)[:, None], lengths_RL.shape)
        if form.has_also:
            first_RL = first_RL + np.cumsum(lengths_RL, 1) - lengths_RL
    objects = _Objects(columns, origin, count, checker, lengths_RL, first_RL)
    for at, layout in enumerate(form.layouts):
        if not objects.add(layout, at):
            return None
    return objects.result()


class _Objects:
    """Collects the events of some objects. Owner: `column_events`.

    lengths_RL: number of events that each object may be by each layout, int64[objects, layouts];
    first_RL: index of the first of them among all; both None if each object is at most one event.
    """

    def __init__(
        self,
        columns: Columns,
        origin: Origin,
        count: int,
        checker: EventChecker,
        lengths_RL: Int64 | None,
        first_RL: Int64 | None,
    ) -> None:
        self._columns = columns
        self._origin = origin
        self._count = count
        self._checker = checker
        self._dim = checker.rules.schema.edge_feature_dim
        self._lengths_RL = lengths_RL
        self._first_RL = first_RL
        self._is_taken = np.zeros(count, np.bool_)
        self._rounded = NOTHING
        self._blocks: list[Block] = []
        self._order: list[Int64] = []

    def add(self, layout: Layout, at: int) -> bool:
        """Add the events of the objects that a source takes. at: number of the source. Returns:
        False if one has to be decoded alone."""
        # Only a source with `also` takes objects that an earlier source took.
        columns, row_E, order_E, origin = self._spread(layout, at)
        is_edge, is_other = layout.split(columns, len(row_E))
        if not layout.also and self._is_taken.any():
            is_free = ~self._is_taken[row_E]
            is_edge &= is_free
            is_other &= is_free
        has_edges = self._add_edges(layout, columns, origin, is_edge)
        if not has_edges or not self._add_others(layout, columns, origin, is_other):
            return False
        self._order += [order_E[some] for some in (is_edge, is_other) if some.any()]
        self._is_taken[row_E[is_edge | is_other]] = True
        return True

    def result(self) -> Taken:
        """The events, in their order in the records."""
        num_skipped = self._count - int(self._is_taken.sum())
        if not self._blocks:
            return Taken(empty_block(self._dim), num_skipped, NOTHING)
        events = joined(self._blocks)
        if len(self._blocks) > 1:
            # Sources were applied one after the other, so restore the records' order.
            events = events.take(np.argsort(np.concatenate(self._order)))
        return Taken(events, num_skipped, self._rounded)

    def _spread(self, layout: Layout, at: int) -> tuple[Columns, Int64, Int64, Origin]:
        """The columns of all events that the objects may be by a layout; their objects and their
        indexes among all events, int64[E] each; and their origin."""
        row_E = np.arange(self._count)
        if self._lengths_RL is None or self._first_RL is None:
            return self._columns, row_E, row_E, self._origin
        columns, order_E = self._columns, self._first_RL[:, at]
        if layout.each is not None:
            length_R = self._lengths_RL[:, at]
            columns = layout.each.spread(columns, length_R, layout.leaves)
            row_E = np.repeat(row_E, length_R)
            in_list_E = np.arange(len(row_E)) - np.repeat(np.cumsum(length_R) - length_R, length_R)
            order_E = order_E[row_E] + in_list_E

        # Number objects of one record together, those of several records each from 0.
        is_one_record = not isinstance(self._origin.offset, np.ndarray)
        item_E = order_E if is_one_record else order_E - self._first_RL[row_E, 0]
        return columns, row_E, order_E, replace(self._origin.take(row_E), item=item_E)

    def _add_edges(self, layout: Layout, columns: Columns, origin: Origin, is_edge: Bools) -> bool:
        """Add edges by columns. Returns: False if one is not valid."""
        num_edges = int(is_edge.sum())
        if not num_edges:
            return True
        if num_edges < len(is_edge):
            kept = is_edge.tolist()
            columns = [
                list(itertools.compress(column, kept)) if n in layout.leaves else ()
                for n, column in enumerate(columns)
            ]
            origin = origin.take(is_edge)
        edges = layout.edges(columns, origin.stamp, num_edges)
        block = None if edges is None else self._checker.block(edges, origin)
        if edges is None or block is None:
            return False
        self._rounded += edges.rounded
        self._blocks.append(block)
        return True

    def _add_others(
        self, layout: Layout, columns: Columns, origin: Origin, is_other: Bools
    ) -> bool:
        """Add events of other types, one by one from the same columns. Returns: False if one is not
        valid."""
        if not is_other.any():
            return True
        rows = EventRows(origin.source, origin.now_us, self._dim)
        try:
            for i in np.flatnonzero(is_other).tolist():
                offset, item, stamp_us = origin.of(i)
                row = [column[i] for column in columns]
                rule = layout.rule_of(row)
                assert rule is not None
                event = layout.event(rule, row, stamp_us)
                latest_us = self._checker.latest(stamp_us, origin.now_us)
                checked = self._checker.event(event, stamp_us, latest_us, 1)
                self._rounded += checked.rounded
                rows.add(checked, offset, item, stamp_us)
        # Decoding the objects alone finds which one is refused.
        except BadEvent:
            return False
        self._blocks.append(rows.block())
        return True
