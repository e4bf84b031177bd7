"""Shards, start times and client settings: what is decided before the first record."""

import pytest
from kafka import TopicPartition

from streamd.clock import parse_time_us
from streamd.errors import SettingsError
from streamd.ingest.client import client_settings, read_options
from streamd.ingest.consumer import in_shard
from streamd.settings import KafkaSettings, load_settings


def test_shards_share_out_all_partitions_and_none_moves_when_partitions_are_added():
    parts = [TopicPartition(t, p) for t in ("a", "b", "c") for p in range(12)]
    shards = [{tp for tp in parts if in_shard(tp, f"{k}/4")} for k in range(1, 5)]
    assert sum(map(len, shards)) == len(parts) and set().union(*shards) == set(parts)
    assert all(len(s) == 9 for s in shards)
    assert all(in_shard(tp, None) for tp in parts)


@pytest.mark.parametrize("shard", ["0/4", "5/4", "1", "a/b", "1/0"])
def test_a_shard_that_does_not_exist_is_refused(shard):
    with pytest.raises(SettingsError, match="shard"):
        load_settings(None, {"ingest.shard": shard}, environ={})


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
    from streamd.settings import effective

    s, _ = load_settings(None, {"kafka.client": {"sasl_plain_password": "hush", "security_protocol": "SASL_SSL"}}, environ={})
    assert "hush" not in str(effective(s)) and "SASL_SSL" in str(effective(s))


def test_start_times_are_read_as_utc():
    assert parse_time_us("2026-01-31T00:00:00Z", "x") == parse_time_us("2026-01-31T01:00:00+01:00", "x") == 1_769_817_600_000_000
    with pytest.raises(SettingsError, match="ingest.start is .yesterday., which is not an ISO 8601"):
        parse_time_us("yesterday", "ingest.start")
