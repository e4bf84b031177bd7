"""A real Kafka that asks for credentials, and the files of the guide that give them."""

import json
import os
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
from streamd.telemetry.heartbeat import read_beat
from tests.ingest.secured import PASSWORD, USER, SecuredKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
FILES = Path(__file__).parents[2] / "deploy" / "kafka"


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


def example(name):
    return yaml.safe_load((FILES / f"{name}.yaml").read_text())


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


@pytest.mark.parametrize("title", ["scram", "plain", "mutual_tls"])
def test_an_example_lets_every_client_in(secured, tmp_path, title):
    kafka = settings_for(secured, tmp_path, example(title))
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


LOGIN = {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
PLAIN = {"sasl_mechanism": "PLAIN"} | LOGIN


@pytest.mark.parametrize(("title", "wrong", "says"), [
    ("scram", {"sasl_plain_password": "hush-wrong"}, "refuses the login by SASL SCRAM-SHA-512: .*check sasl_plain_username and sasl_plain_password in kafka.client"),
    ("plain", {"sasl_plain_password": "hush-wrong"}, "refuses the login by SASL PLAIN: .*check sasl_plain_username"),
    ("scram", {"ssl_cafile": None}, "The certificate of the broker at localhost:.* is not accepted: .*check ssl_cafile"),
    ("mutual_tls", {"ssl_certfile": None, "ssl_keyfile": None, "ssl_password": None}, "asks for a client certificate that it trusts.*ssl_certfile")])
def test_who_is_not_let_in_gets_an_error_without_the_password(secured, tmp_path, caplog, title, wrong, says):
    kafka = settings_for(secured, tmp_path, example(title), bootstrap_timeout_ms=1500)
    options = json.loads(kafka.client_file.read_text()) | wrong
    kafka.client_file.write_text(json.dumps({key: value for key, value in options.items() if value is not None}))
    caplog.set_level("WARNING")  # as in a role, whatever telemetry.log_level says
    with pytest.raises(KafkaError, match=rf"{says}.*kafka\.client_file") as caught:
        make_admin(kafka)
    assert "hush" not in str(caught.value) + caplog.text and "No broker answers" not in str(caught.value)


@pytest.mark.parametrize(("listener", "options", "says"), [
    ("bare", {}, r"asks for SASL \(PLAIN\), and security_protocol is not set, which is PLAINTEXT\..*set security_protocol: SASL_PLAINTEXT, sasl_mechanism and"),
    ("sasl", {}, r"speaks TLS and asks for SASL \(.*SCRAM-SHA-512.*\), and .*set security_protocol: SASL_SSL, sasl_mechanism and"),
    ("sasl", {"security_protocol": "SSL"}, r"asks for SASL \(.*\), and security_protocol is SSL\..*SASL_SSL"),
    ("sasl", {"security_protocol": "SASL_PLAINTEXT"} | PLAIN, r"speaks TLS, and security_protocol is SASL_PLAINTEXT\..*set security_protocol: SASL_SSL in"),
    ("bare", {"security_protocol": "SASL_SSL"} | PLAIN, r"speaks no TLS, and security_protocol is SASL_SSL\..*SASL_PLAINTEXT in"),
    ("bare", {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512"} | LOGIN, r"takes the SASL mechanisms PLAIN, not SCRAM-SHA-512.*set sasl_mechanism to one of PLAIN"),
    ("open", {"security_protocol": "SASL_PLAINTEXT"} | PLAIN, r"takes no SASL, and security_protocol is SASL_PLAINTEXT\..*set security_protocol: PLAINTEXT in"),
    ("open", {"security_protocol": "SSL"}, r"speaks no TLS, and security_protocol is SSL\..*PLAINTEXT in"),
    ("mutual", {}, r"asks for a client certificate that it trusts")])
@pytest.mark.parametrize("make", [make_admin, make_consumer, make_producer])
def test_a_client_that_speaks_otherwise_than_the_listener_hears_how(secured, listener, options, says, make):
    server = {"open": secured.bootstrap_servers, "bare": secured.bare, "sasl": secured.sasl, "mutual": secured.mutual}[listener]
    if "SSL" in options.get("security_protocol", ""):
        options = options | {"ssl_cafile": str(secured.certificates / "ca.pem")}
    with pytest.raises(KafkaError, match=says) as caught:
        make(KafkaSettings(bootstrap_servers=server, client=options | {"bootstrap_timeout_ms": 500}))
    assert server in str(caught.value) and PASSWORD not in str(caught.value)


def test_ingest_tells_in_its_heartbeat_why_it_is_not_let_in(secured, tmp_path):
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_plain_password": "hush-wrong"}
    env = environment(secured.bare, tmp_path / "d") | {"STREAMD_KAFKA__CLIENT": json.dumps(PLAIN | options)}
    with (tmp_path / "log").open("wb") as log:
        role = subprocess.Popen([sys.executable, "-m", "streamd", "run", "--role", "ingest"], env=env, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 60
        why = ""
        while "refuses the login by SASL" not in why:
            assert role.poll() is None and time.monotonic() < until, (tmp_path / "log").read_text()
            time.sleep(0.1)
            beat = read_beat(tmp_path / "d", "ingest")
            why = beat.detail.get("why", "") if beat is not None else ""
        assert beat.state == "connecting" and "hush" not in why
    finally:
        role.terminate()
        role.wait(30)
    assert "hush" not in (tmp_path / "log").read_text()


def environment(servers, data_dir):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")}
    return clean | {"COLUMNS": "200", "STREAMD_KAFKA__BOOTSTRAP_SERVERS": servers, "STREAMD_DATA_DIR": str(data_dir)}


@pytest.mark.parametrize(("password", "says", "status"), [(PASSWORD, "partitions {'events': 1}", 0), ("hush-wrong", "refuses the login by SASL", 1)])
def test_the_doctor_says_who_gets_in_and_prints_no_password(secured, tmp_path, password, says, status):
    kafka = settings_for(secured, tmp_path, example("scram"))
    kafka.client_file.write_text(json.dumps(json.loads(kafka.client_file.read_text()) | {"sasl_plain_password": password}))
    env = environment(kafka.bootstrap_servers, tmp_path / "d") | {"STREAMD_KAFKA__CLIENT_FILE": str(kafka.client_file)}
    done = subprocess.run([sys.executable, "-m", "streamd", "doctor"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == status and says in done.stdout
    assert "hush" not in done.stdout + done.stderr


def test_a_client_that_lives_connects_with_the_password_that_the_file_has_by_then(secured, tmp_path):
    kafka = settings_for(secured, tmp_path, example("scram"))
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
