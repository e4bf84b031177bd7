"""Shards: which partitions a reader takes."""

import pytest
from kafka import TopicPartition

from streamd.errors import SettingsError
from streamd.ingest.consumer import in_shard
from streamd.settings import load_settings


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
