"""The taxi stream with its own schema, like a dispatcher's topic, and its mapping.

It demonstrates `sources`: the daemon reads these records, not streamd's own events.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from streamd.clock import utc
from streamd.events import MICROSECONDS
from streamd.exchange.produce import Outgoing

ZONE = "zone:"
"""Prefix of zone ids, added by the mapping."""


def as_record(event: Outgoing, trip: Sequence[str], zone: Sequence[str]) -> Outgoing:
    """Convert an event in streamd's own schema to a record of the topic.

    trip, zone: names of the features of events and of nodes, in order.
    """
    own = msgspec.json.decode(event.value)
    record: dict[str, Any]
    if own.get("type") == "node":
        about = dict(zip(zone, own["features"], strict=True))
        record = {"record": "zone", "zone": _number(own["id"]), "about": about}
    else:
        record = {
            "record": "trip",
            "pickup": {"zone": _number(own["src"]), "at": utc(own["time"] * MICROSECONDS["s"])},
            "dropoff": {"zone": _number(own["dst"])},
            "meter": dict(zip(trip, own["features"], strict=True)),
        }
    return Outgoing(event.key, msgspec.json.encode(record), event.time)


def stream_settings(topic: str, trip: Sequence[str], zone: Sequence[str]) -> dict[str, Any]:
    """The settings that map the topic's records to the stream's events: the inverse of
    `as_record`."""
    source = {
        "topic": topic,
        "time": "iso8601",
        "where": {"record": "trip"},
        "fields": {
            "src": {"path": "pickup.zone", "prefix": ZONE},
            "dst": {"path": "dropoff.zone", "prefix": ZONE},
            "time": "pickup.at",
            "features": {name: f"meter.{name}" for name in trip},
        },
        "nodes": {
            "where": {"record": "zone"},
            "fields": {
                "id": {"path": "zone", "prefix": ZONE},
                "features": {name: f"about.{name}" for name in zone},
            },
        },
    }
    return {
        "sources": (source,),
        "graph.edge_sets": {"default": {"features": dict.fromkeys(trip, "number")}},
        "graph.node_sets": {"default": {"features": dict.fromkeys(zone, "number")}},
    }


def _number(key: str) -> int:
    return int(key.removeprefix(ZONE))
