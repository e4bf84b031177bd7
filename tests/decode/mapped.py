"""Mapped topics for tests: settings from YAML, records, and what a decoder makes of them."""

import json

import yaml

from streamd.decode.decoder import make_decoder
from streamd.settings.loading import load_settings, schema_of
from tests.builders import Record, spell

NOW = 1_795_400_000_000_000
TOPIC = "clicks"
CLICKS = """
graph:
  edge_sets:
    default:
      features: {seconds: number, how: {categories: [card, cash], missing: none}}
sources:
  - topic: clicks
    time: iso8601
    fields:
      src: {path: user_id, prefix: "user:"}
      dst: item.id
      time: ts
      features: {seconds: dwell.s, how: pay}
    where: {kind: [view, preview]}
"""


def click(**changes):
    """A record that the mapping of `CLICKS` takes as user:8 -> b41."""
    return {"user_id": 8, "item": {"id": "b41"}, "ts": "2026-11-22T10:00:00Z", "kind": "view", "dwell": {"s": 3.5}, "pay": "card"} | changes


def settings_of(text, tmp_path, **values):
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    small = {"data_dir": tmp_path, "telemetry.ingest_port": 0, "telemetry.train_port": 0}
    return load_settings(file, small | {k.replace("__", "."): v for k, v in values.items()}, environ={})[0]


def source(body, **values):
    """Settings of one topic, `body` being its source as YAML without the topic, or several with --- between them. values: further branches."""
    return yaml.safe_dump({"sources": [{"topic": TOPIC} | one for one in yaml.safe_load_all(body)], **values})


def record(value, offset=0, **more):
    return Record(value if isinstance(value, bytes) or value is None else json.dumps(value).encode(), offset,
                  **{"timestamp": NOW // 1000 - 1000, **more})


class Topic:
    """A mapped topic and its decoder; `decode` gives its events spelled out, and what was rejected."""

    def __init__(self, text, tmp_path, **values):
        self.settings = settings_of(text, tmp_path, **values)
        self.decoder = make_decoder(self.settings, schema_of(self.settings))

    def of(self, records, partition=0):
        block, rejected = self.decoder.decode(records, partition, NOW, TOPIC)
        return spell(block, self.decoder.keys.keys), rejected

    def decode(self, *values, **more):
        return self.of([record(v, i, **more) for i, v in enumerate(values)])

    def one(self, value, **more):
        """The only event of a record."""
        (event,), rejected = self.decode(value, **more)
        assert not rejected, rejected
        return event

    def refused(self, value, **more):
        """(reason, error) of a record that is refused."""
        events, (bad,) = self.decode(value, **more)
        assert not events, events
        return bad.reason, bad.error
