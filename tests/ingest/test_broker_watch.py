"""The watch of the broker warns if two of its turns in a row fail, not of one."""

import time
from types import SimpleNamespace

import pytest
from kafka.errors import CoordinatorNotAvailableError
from structlog.testing import capture_logs

from streamd.ingest.kafka import topic_watch
from streamd.ingest.kafka.topic_watch import BrokerWatch, Topics
from tests.builders import settings

KNOWN = Topics("c", {"t": ""}, ())


def answer(name):
    return {"name": name, "error_code": 0, "partitions": [{"partition_index": 0, "leader_id": 1}]}


@pytest.mark.parametrize(("num_failures", "warnings"), [(0, 0), (1, 0), (2, 1), (5, 1)])
def test_a_new_broker_whose_group_has_no_coordinator_yet_is_no_warning(tmp_path, monkeypatch, num_failures, warnings):
    turns = []

    def commit(*_):
        turns.append(1)
        if len(turns) <= num_failures:
            raise CoordinatorNotAvailableError("not yet")
        return {}

    admin = SimpleNamespace(alter_group_offsets=commit, describe_cluster=dict, describe_topics=lambda names: list(map(answer, names)), close=lambda: None)
    monkeypatch.setattr(topic_watch, "make_admin", lambda kafka: admin)
    monkeypatch.setattr(topic_watch, "INTERVAL_SECONDS", 0.01)
    with capture_logs() as logged:
        watch = BrokerWatch(settings(tmp_path, kafka__topics=("t",)).kafka, KNOWN)
        watch.publish({("t", 0): 5})
        deadline = time.monotonic() + 10
        while len(turns) <= num_failures and time.monotonic() < deadline:
            time.sleep(0.01)
        watch.close()
    assert len(turns) > num_failures and watch.changed.is_set()
    assert sum(line["event"] == "broker_watch_failed" for line in logged) == warnings
