"""What the archive and `streamd verify --deleted` ask of a real Kafka."""

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from streamd.store.changelog import KafkaChangelog, changelog_topic
from streamd.store.deleted_keys import DeletedSearch, KafkaTopic
from tests.builders import settings

pytestmark = pytest.mark.kafka
KEY = "user:dave@example.org"


def test_the_changelogs_begin_is_deleted_and_a_key_is_found_until_then(kafka, tmp_path):
    s = settings(tmp_path, kafka__bootstrap_servers=kafka.bootstrap_servers)
    name = changelog_topic(f"graph{tmp_path.name.replace('_', '-')}")
    assert list(KafkaTopic(s.kafka, name).records()) == []
    assert KafkaChangelog(s.kafka, name).bounds() == (0, 0)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, compression_type="lz4")
    try:
        admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        for i in range(2000):
            parts = [(b" " * 200 + KEY[:9].encode(), 0), (KEY[9:].encode(), 1)] if i == 500 else [(b"%d" % i * 50, 0)]
            for value, part in parts:
                producer.send(name, value, headers=[("part", b"%d" % part)], partition=0)
        producer.flush()
        changelog = KafkaChangelog(s.kafka, name)
        assert changelog.bounds() == (0, 2001)
        search = DeletedSearch([KEY])
        found, = search.in_topic(KafkaTopic(s.kafka, name))
        assert found.where == f"{name} at offset 501" and search.searched.records == 2001
        changelog.delete_before(1000)
        assert changelog.bounds() == (1000, 2001)
        search = DeletedSearch([KEY])
        assert list(search.in_topic(KafkaTopic(s.kafka, name))) == [] and search.searched.records == 1001
    finally:
        producer.close()
        admin.delete_topics([name])
        admin.close()
