"""The demo streams: three data sets, each of a month of real events, in the package."""

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from streamd.demo import posts, trips
from streamd.errors import DemoError
from streamd.exchange.produce import Outgoing

DATA = Path(__file__).parent / "data"
HOUR = 3600
DAY = 86400
DAYS = 31
"""Days of each data set; the first and the last day have events."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoStream:
    """A month of real events. source_kind, target_kind: prefixes of node ids.

    has_nodes: whether nodes have features. has_own_shape: whether the records of its topics have
    another schema than streamd's own events. edge_sets: names of the edge sets, each with its own
    topic and schema; empty if there is only one. window_seconds: event time of a window. remark: a
    note on the scores for the user.
    """

    name: str
    title: str
    source_kind: str
    target_kind: str
    edge_features: tuple[str, ...]
    has_nodes: bool
    remark: str
    has_own_shape: bool = False
    edge_sets: tuple[str, ...] = ()
    window_seconds: int = HOUR

    def windows(self, days: int | None, ends_at: int | None = None) -> Iterator[list[Outgoing]]:
        """Yield the events in time order, one list for each window with events.

        Args:
            days: number of days from the first, None for all.
            ends_at: midnight UTC at the end of the last of these days, in seconds since 1970; None
                for the original times.
        """
        # The file is in time order, so a window ends at the first event of the next.
        batch: list[Outgoing] = []
        num_days = min(days or DAYS, DAYS)
        window = until = None
        later_by = 0
        for row in _rows(self.name):
            t = int(row["t"])
            # Days start at midnight UTC; the first is a whole day. Times are moved by whole days,
            # so that windows and nights are those of the original.
            if until is None:
                until = (t // DAY + num_days) * DAY
                later_by = 0 if ends_at is None else ends_at - until
            if t >= until:
                break
            t += later_by
            if window is not None and t // self.window_seconds != window:
                yield batch
                batch = []
            window = t // self.window_seconds
            batch.append(self._edge(row, t))
        if batch:
            yield batch

    def nodes(self) -> list[Outgoing]:
        """The events of node features, to be sent before the others."""
        if not self.has_nodes:
            return []
        out = []
        for row in _rows(f"{self.name}_nodes"):
            # All columns except id are features.
            key = f"{self.source_kind}:{row.pop('id')}"
            event = {"type": "node", "id": key, "features": [float(v) for v in row.values()]}
            out.append(Outgoing(key.encode(), msgspec.json.encode(event), None))
        return out

    @property
    def node_features(self) -> tuple[str, ...]:
        """Names of the nodes' features, empty if they have none."""
        if not self.has_nodes:
            return ()
        return tuple(name for name in next(_rows(f"{self.name}_nodes")) if name != "id")

    def topics(self, topic: str) -> tuple[str, ...]:
        """Names of its topics. topic: their common prefix."""
        return posts.topics(topic) if self.edge_sets else (topic,)

    def records(self, events: Sequence[Outgoing]) -> list[tuple[int, Outgoing]]:
        """The records of some of its events, each with the index of its topic."""
        if self.edge_sets:
            return [posts.as_record(event) for event in events]
        if self.has_own_shape:
            names = self.edge_features, self.node_features
            return [(0, trips.as_record(event, *names)) for event in events]
        return [(0, event) for event in events]

    def settings(self, topic: str) -> dict[str, Any]:
        """The settings for reading the topics' records, by dotted key."""
        windows = {"windows.width_seconds": self.window_seconds}
        if self.edge_sets:
            return posts.stream_settings(topic) | windows
        if self.has_own_shape:
            return trips.stream_settings(topic, self.edge_features, self.node_features) | windows
        return windows | {
            "stream.time_unit": "s",
            "stream.edge_feature_dim": len(self.edge_features),
            "stream.node_feature_dim": len(self.node_features),
        }

    def _edge(self, row: dict[str, str], t: int) -> Outgoing:
        """The event of a row of the file."""
        # The key of a record is its source, so that events of a source stay in order.
        src = f"{self.source_kind}:{row['src']}"
        event: dict[str, Any] = {"src": src, "dst": f"{self.target_kind}:{row['dst']}", "time": t}
        if self.edge_features:
            event["features"] = [float(row[f]) for f in self.edge_features]
        if self.edge_sets:
            event["edge_set"] = self.edge_sets[int(row["kind"])]
        return Outgoing(src.encode(), msgspec.json.encode(event), t)


STREAMS = {
    "wikipedia": DemoStream(
        name="wikipedia",
        title="a month of Wikipedia edits: which page will a user edit next?",
        source_kind="user",
        target_kind="page",
        edge_features=(),
        has_nodes=False,
        remark="Live state is most of the gain here: users often edit the same page again.",
    ),
    "taxi": DemoStream(
        name="taxi",
        title="a month of New York green taxi trips: where will a trip from this zone end?",
        source_kind="zone",
        target_kind="zone",
        edge_features=(
            "duration_s",
            "trip_distance",
            "passenger_count",
            "fare_amount",
            "extra",
            "mta_tax",
            "tolls_amount",
            "improvement_surcharge",
            "congestion_surcharge",
            "ratecode_id",
            "trip_type",
            "vendor_id",
            "store_and_fwd",
            "missing",
        ),
        has_nodes=True,
        has_own_shape=True,
        remark="Live gains little on this stream: zones change slowly, "
        "so a nightly model is nearly as good.",
    ),
    "mathoverflow": DemoStream(
        name="mathoverflow",
        title="a month of mathoverflow: whom will a user answer or comment on next?",
        source_kind="user",
        target_kind="user",
        edge_features=(),
        has_nodes=False,
        has_own_shape=True,
        edge_sets=posts.KINDS,
        window_seconds=6 * HOUR,
        remark="Three edge sets from three topics: answers, comments on questions, comments on "
        "answers. A user's events in one predict the others.",
    ),
}


def find_stream(name: str) -> DemoStream:
    """Look up a demo stream. Raises: DemoError if there is none with that name."""
    if name not in STREAMS:
        raise DemoError(f"There is no demo stream {name!r}.", f"pick one of {', '.join(STREAMS)}.")
    return STREAMS[name]


def _rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a file of the package."""
    with gzip.open(DATA / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
        yield from csv.DictReader(file)
