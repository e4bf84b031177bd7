"""A real Kafka that asks for credentials, and the files of the guide that give them."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from streamd.errors import KafkaError
from streamd.ingest.kafka.client import make_admin, make_consumer, make_producer
from streamd.settings.loading import KafkaSettings
from tests.ingest.secured import PASSWORD, USER, SecuredKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
GUIDE = (Path(__file__).parents[2] / "docs/operations.md").read_text()


@pytest.fixture(scope="module")
def secured(kafka_home, tmp_path_factory):
    broker = SecuredKafka(kafka_home, tmp_path_factory.mktemp("secured"))
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(USER, ScramMechanism.SCRAM_SHA_512, PASSWORD.encode(), iterations=4096)])
    admin.close()
    broker.create_topic("events", 1)
    yield broker
    broker.close()


def file_of_guide(title):
    found, = re.findall(rf"^```yaml\n# client.yaml: {title}\n(.*?)^```", GUIDE, re.M | re.S)
    return yaml.safe_load(found)


def settings_for(broker, tmp_path, options, **client):
    """Settings with such a file: its certificates are the broker's, its user and password are known there."""
    here = {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD, "ssl_password": PASSWORD}
    for key, value in options.items():
        if key in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
            here[key] = str(broker.certificates / Path(value).name)
    path = tmp_path / "client.yaml"
    path.write_text(json.dumps({key: here.get(key, value) for key, value in options.items()}))
    server = broker.mutual if options["security_protocol"] == "SSL" else broker.sasl
    return KafkaSettings(bootstrap_servers=server, client_file=path, client=client)


@pytest.mark.parametrize("title", ["SCRAM over TLS", "PLAIN over TLS", "a client certificate"])
def test_a_file_of_the_guide_lets_every_client_in(secured, tmp_path, title):
    kafka = settings_for(secured, tmp_path, file_of_guide(title))
    producer = make_producer(kafka)
    sent = producer.send("events", title.encode()).get(30)
    producer.close()
    consumer = make_consumer(kafka)
    consumer.assign([TopicPartition("events", 0)])
    consumer.seek(TopicPartition("events", 0), sent.offset)
    polled = consumer.poll(timeout_ms=20_000)
    consumer.close(autocommit=False)
    assert [record.value for records in polled.values() for record in records] == [title.encode()]
    admin = make_admin(kafka)
    assert admin.describe_cluster()["cluster_id"]
    admin.close()


@pytest.mark.parametrize(("title", "wrong"), [
    ("SCRAM over TLS", {"sasl_plain_password": "hush-wrong"}), ("PLAIN over TLS", {"sasl_plain_password": "hush-wrong"}),
    ("SCRAM over TLS", {"ssl_cafile": None}), ("a client certificate", {"ssl_certfile": None, "ssl_keyfile": None, "ssl_password": None})])
def test_who_is_not_let_in_gets_an_error_without_the_password(secured, tmp_path, caplog, title, wrong):
    kafka = settings_for(secured, tmp_path, file_of_guide(title), bootstrap_timeout_ms=1500)
    options = json.loads(kafka.client_file.read_text()) | wrong
    kafka.client_file.write_text(json.dumps({key: value for key, value in options.items() if value is not None}))
    caplog.set_level("WARNING")  # as in a role, whatever telemetry.log_level says
    with pytest.raises(KafkaError, match=r"No broker answers .*kafka\.client_file") as caught:
        make_admin(kafka)
    assert "hush" not in str(caught.value) + caplog.text


def test_the_doctor_gets_in_and_prints_no_password(secured, tmp_path):
    kafka = settings_for(secured, tmp_path, file_of_guide("SCRAM over TLS"))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")}
    env = clean | {"STREAMD_KAFKA__CLIENT_FILE": str(kafka.client_file), "COLUMNS": "200",
                   "STREAMD_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "STREAMD_DATA_DIR": str(tmp_path / "d")}
    done = subprocess.run([sys.executable, "-m", "streamd", "doctor"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "partitions {'events': 1}" in done.stdout
    assert "hush" not in done.stdout + done.stderr


def test_a_client_that_lives_connects_with_the_password_that_the_file_has_by_then(secured, tmp_path):
    kafka = settings_for(secured, tmp_path, file_of_guide("SCRAM over TLS"))
    producer = make_producer(kafka, connections_max_idle_ms=3000)
    producer.send("events", b"before").get(30)
    admin = KafkaAdminClient(bootstrap_servers=secured.bootstrap_servers)
    for password in ("another", PASSWORD):
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(USER, ScramMechanism.SCRAM_SHA_512, password.encode(), iterations=4096)])
        options = json.loads(kafka.client_file.read_text())
        kafka.client_file.write_text(json.dumps(options | {"sasl_plain_password": password}))
        # The connection of before is closed because it is idle.
        time.sleep(8)
        producer.send("events", b"after").get(30)
    admin.close()
    producer.close()
