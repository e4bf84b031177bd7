"""Options of the Kafka client, from settings and from a file: taken, refused by name, never shown."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from kafka import KafkaConsumer
from kafka.errors import SaslAuthenticationFailedError, UnknownBrokerIdError
from kafka.net.sasl import SASL_MECHANISMS
from kafka.net.selector import NetworkSelector
from structlog.testing import capture_logs

from streamd.errors import SettingsError
from streamd.ingest.kafka.client import MECHANISMS, client_settings, read_options
from streamd.ingest.kafka.fresh_secrets import FreshSecrets
from streamd.settings.loading import KafkaSettings, as_environment, effective, load_settings
from tests.ingest.secured import PASSWORD, make_certificates

SCRAM = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512",
         "sasl_plain_username": "me", "sasl_plain_password": PASSWORD}
HUSH = "hush-it-is-secret"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls") / "certificates"
    make_certificates(folder)
    return folder


def given(tmp_path, text, **client):
    """Settings whose client_file holds a text, or a mapping as JSON."""
    path = tmp_path / "client.yaml"
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return KafkaSettings(client=client, client_file=path)


def test_options_of_the_file_join_those_of_the_settings(tmp_path):
    made = client_settings(given(tmp_path, SCRAM, fetch_max_bytes=7), KafkaConsumer.DEFAULT_CONFIG)
    assert made.items() >= (SCRAM | {"fetch_max_bytes": 7}).items()
    lines = "security_protocol: SSL\nssl_check_hostname: false\n"
    assert read_options(given(tmp_path, lines)) == {"security_protocol": "SSL", "ssl_check_hostname": False}


def test_the_file_is_read_anew_for_each_client(tmp_path):
    kafka = given(tmp_path, SCRAM)
    kafka.client_file.write_text(json.dumps(SCRAM | {"sasl_plain_password": "another"}))
    assert read_options(kafka)["sasl_plain_password"] == "another"


@pytest.mark.parametrize(("text", "client", "says"), [
    ({"sasl_plain_pasword": HUSH}, {}, "sasl_plain_pasword.*did you mean 'sasl_plain_password'"),
    ({"bootstrap_servers": HUSH}, {}, "bootstrap_servers is decided by streamd"),
    ({"group_id": HUSH}, {}, "group_id is decided by streamd"),
    ({"value_deserializer": HUSH}, {}, "value_deserializer is decided by streamd"),
    (SCRAM, {"sasl_plain_password": HUSH}, "sasl_plain_password is set in kafka.client and in"),
    (f"sasl_plain_password: *{HUSH}\n", {}, "not YAML at line 1"),
    (f"security_protocol: SSL\nssl_password: a: {HUSH}\n", {}, "not YAML at line 2"),
    (f"security.protocol=SASL_SSL\npassword={HUSH}\n", {}, "mapping"),
    ("", {}, "mapping"),
    ({**SCRAM, "sasl_plain_password": 8243729}, {}, "sasl_plain_password is of type int, not str"),
    ({"security_protocol": "SSL", "ssl_check_hostname": "false"}, {}, "ssl_check_hostname is of type str"),
    ({**SCRAM, "security_protocol": "SASL-SSL"}, {}, "security_protocol does not exist"),
    ({**SCRAM, "security_protocol": "SSL"}, {}, "sasl_mechanism has no effect without SASL"),
    ({"ssl_cafile": HUSH}, {}, "ssl_cafile has no effect without SSL"),
    ({**SCRAM, "security_protocol": "SASL_PLAINTEXT", "ssl_password": HUSH}, {}, "ssl_password has no effect"),
    ({"security_protocol": "SASL_SSL"}, {}, "SASL_SSL needs a sasl_mechanism"),
    ({**SCRAM, "sasl_mechanism": "SCRAM"}, {}, "needs a sasl_mechanism that exists"),
    ({**SCRAM, "sasl_plain_password": ""}, {}, "SCRAM-SHA-512 needs sasl_plain_password"),
    ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "AWS_MSK_IAM"}, {}, "needs security_protocol SASL_SSL"),
    ({**SCRAM, "ssl_cafile": "/no/ca.pem"}, {}, "cannot load ssl_cafile /no/ca.pem: No such file"),
    ({"security_protocol": "SSL", "ssl_keyfile": "/no/key"}, {}, "ssl_keyfile needs ssl_certfile")])
def test_what_cannot_be_is_one_line_that_names_the_option_and_not_its_value(tmp_path, text, client, says):
    with pytest.raises(SettingsError, match=says) as caught:
        read_options(given(tmp_path, text, **client))
    said = str(caught.value)
    assert "\n" not in said and HUSH not in said and "8243729" not in said and PASSWORD not in said


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path):
    with pytest.raises(SettingsError, match="client_file .*absent.yaml cannot be read: No such file"):
        read_options(KafkaSettings(client_file=tmp_path / "absent.yaml"))
    (tmp_path / "client.yaml").write_bytes(b"sasl_plain_password: \xff\xfe\n")
    with pytest.raises(SettingsError, match="not YAML"):
        read_options(KafkaSettings(client_file=tmp_path / "client.yaml"))


def test_a_key_with_the_wrong_password_or_of_another_certificate_is_told_before_a_broker_is_asked(tmp_path, certificates):
    at = {name: str(certificates / name) for name in ("ca.pem", "client.pem", "client.key", "server.plain")}
    good = {"security_protocol": "SSL", "ssl_cafile": at["ca.pem"], "ssl_certfile": at["client.pem"],
            "ssl_keyfile": at["client.key"], "ssl_password": PASSWORD}
    assert read_options(given(tmp_path, good)) == good
    without = {key: value for key, value in good.items() if key != "ssl_password"}
    for bad in (good | {"ssl_password": HUSH}, without, good | {"ssl_keyfile": at["server.plain"]},
                good | {"ssl_certfile": str(tmp_path)}):
        with pytest.raises(SettingsError, match=r"cannot load ssl_certfile ") as caught:
            read_options(given(tmp_path, bad))
        assert HUSH not in str(caught.value)


def test_the_mechanisms_are_those_of_kafka_python():
    assert set(MECHANISMS) == set(SASL_MECHANISMS)


def test_nothing_of_the_file_is_in_the_settings_that_roles_and_readers_get(tmp_path):
    kafka = given(tmp_path, SCRAM)
    s, _ = load_settings(None, {"kafka.client_file": kafka.client_file}, {})
    assert as_environment(s)["STREAMD_KAFKA__CLIENT_FILE"] == str(kafka.client_file)
    assert load_settings(environ=as_environment(s))[0] == s
    assert PASSWORD not in repr(s) + str(effective(s)) + str(as_environment(s))


@pytest.mark.parametrize("command", ["config", "doctor"])
def test_no_command_shows_a_value_of_the_file(tmp_path, command):
    kafka = given(tmp_path, SCRAM)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")}
    env = clean | {"STREAMD_KAFKA__CLIENT_FILE": str(kafka.client_file), "COLUMNS": "200",
                   "STREAMD_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "STREAMD_DATA_DIR": str(tmp_path / "d"),
                   "STREAMD_KAFKA__CLIENT": '{"bootstrap_timeout_ms": 100}'}
    # Of the doctor only the question to the broker: the other checks compile kernels.
    code = ("import sys; from streamd.cli.doctor_checks import CHECKS; CHECKS['device'] = CHECKS['kernels'] = lambda s: ''; sys.argv[0] = 'streamd'; "
            "from streamd.cli.main import main; main()")
    done = subprocess.run([sys.executable, "-c", code, command], env=env, capture_output=True, text=True, check=False)
    assert PASSWORD not in done.stdout + done.stderr and "Traceback" not in done.stderr
    assert str(kafka.client_file) in done.stdout if command == "config" else "No broker answers" in done.stdout


def test_a_proxy_is_masked_as_its_address_may_hold_a_password():
    s, _ = load_settings(None, {"kafka.client": {"proxy_url": f"socks5://me:{HUSH}@proxy:1080"}}, {})
    assert HUSH not in str(effective(s))


MSK = {"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM"}


def test_msk_signs_with_the_credentials_and_the_region_of_the_environment(tmp_path, monkeypatch):
    pytest.importorskip("botocore", reason="botocore is not installed")
    for name, value in (("ACCESS_KEY_ID", "AKIDEXAMPLE"), ("SECRET_ACCESS_KEY", HUSH), ("DEFAULT_REGION", "eu-west-1"),
                        ("CONFIG_FILE", str(tmp_path / "none")), ("SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))):
        monkeypatch.setenv(f"AWS_{name}", value)
    made = client_settings(given(tmp_path, MSK), KafkaConsumer.DEFAULT_CONFIG)
    asked = SASL_MECHANISMS[made["sasl_mechanism"]](host="b-1.example", **made).auth_bytes()
    assert json.loads(asked)["x-amz-credential"].startswith("AKIDEXAMPLE/")
    assert "/eu-west-1/kafka-cluster/" in json.loads(asked)["x-amz-credential"] and HUSH.encode() not in asked


def test_msk_without_its_package_says_which(tmp_path, monkeypatch):
    monkeypatch.setattr("streamd.ingest.kafka.client.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"botocore.*streamd-gnn\[msk\]"):
        read_options(given(tmp_path, MSK))


def test_debug_logs_are_ours_alone_as_kafka_python_logs_its_password_there():
    code = ("import logging; from streamd.telemetry.logs import configure_logs; configure_logs('debug', 'json', 'x'); "
            "print(logging.getLogger('kafka.admin.client').isEnabledFor(logging.INFO))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_options_that_cannot_be_are_named_together(tmp_path):
    kafka = given(tmp_path, {"sasl_plain_pasword": HUSH, "acks": 1, "ssl_check_hostname": "no"}, group_id="x", acks=1)
    with pytest.raises(SettingsError, match="have 4 errors") as caught:
        read_options(kafka)
    assert HUSH not in str(caught.value)
    for says in ("group_id is decided", "did you mean 'sasl_plain_password'", "ssl_check_hostname is of type str", "acks is set in kafka.client and in"):
        assert says in str(caught.value)


@pytest.mark.parametrize(("key", "says"), [("sasl_mecanism", "sasl_mechanism"), ("auto_offset_reset", "decided by streamd"),
                                           ("value_deserializer", "decided by streamd")])
def test_client_settings_that_cannot_be_are_refused_with_the_nearest_name(key, says):
    with pytest.raises(SettingsError, match=says):
        read_options(KafkaSettings(client={key: "x"}))


OAUTH = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}


class Tokens:
    def token(self):
        return "t"


def test_client_settings_are_passed_through_and_a_token_provider_is_made_by_name():
    kafka = KafkaSettings(client=OAUTH | {"sasl_oauth_token_provider": f"{__name__}:Tokens"})
    made = client_settings(kafka, {"security_protocol": "", "sasl_oauth_token_provider": None})
    assert made["security_protocol"] == "SASL_SSL" and isinstance(made["sasl_oauth_token_provider"], Tokens)
    with pytest.raises(SettingsError, match=r"package.module:Class"):
        client_settings(KafkaSettings(client=OAUTH | {"sasl_oauth_token_provider": "no.such:Thing"}), {"sasl_oauth_token_provider": None})


def test_secrets_of_the_client_are_not_shown():
    s, _ = load_settings(None, {"kafka.client": {"sasl_plain_password": "hush", "security_protocol": "SASL_SSL"}}, environ={})
    assert "hush" not in str(effective(s)) and "SASL_SSL" in str(effective(s))


def test_a_client_reads_its_secrets_again_for_a_new_connection(tmp_path):
    kafka = given(tmp_path, SCRAM)
    made = FreshSecrets(NetworkSelector(), kafka.client_file, lambda: read_options(kafka), **SCRAM)

    def connect():
        with pytest.raises(UnknownBrokerIdError):
            made.get_connection(7)
        return made.config["sasl_plain_password"]

    assert connect() == PASSWORD
    kafka.client_file.write_text(json.dumps(SCRAM | {"sasl_plain_password": "another"}))
    made._auth_failures[7] = SaslAuthenticationFailedError("refused")
    assert connect() == "another", "and a node that refused is asked again"
    kafka.client_file.write_text("{")
    with capture_logs() as said:
        assert connect() == "another"
    assert [s["event"] for s in said] == ["kafka_secrets_not_read"] and "another" not in str(said)
