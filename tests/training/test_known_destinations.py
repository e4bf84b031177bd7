"""Versions compare over events whose destination was known: of others their rates of new ones would be compared."""

import numpy as np
import pytest

from streamd.events import Schema
from tests.builders import HOUR, write_log
from tests.models.test_new_destinations import growing
from tests.training.test_trainer import make, process_all


def test_the_contest_and_the_nightly_baseline_count_known_destinations_alone(tmp_path):
    src, dst, time = growing(1200)
    write_log(tmp_path, src, dst, np.sort(time * 6), Schema(2, 0, 0), watermark=100 * HOUR)
    trainer, _, _ = make(tmp_path, registry__gate_events=10**6)
    records = process_all(trainer)
    both = [r for r in records if "shadow" in r.scores and r.num_known]
    assert len(both) > 5 and sum(r.num_scored for r in both) > sum(r.num_known for r in both)
    compared = trainer.contest.compared
    assert compared.num_events == sum(r.num_known for r in both)
    gaps = [r.num_known * (r.scores["live"]["mrr_known"] - r.scores["shadow"]["mrr_known"]) for r in both]
    assert compared.sum == pytest.approx(sum(gaps))

    # The baseline has no rate of new destinations, so over all events it is behind for that alone.
    nights = [r for r in records if "mrr_live_known" in r.scores.get("nightly", {})]
    assert len(nights) > 5
    for record in nights:
        nightly = record.scores["nightly"]
        assert nightly["events"] == record.num_scored and nightly["events_known"] == record.num_known
        assert nightly["mrr_live_known"] == pytest.approx(record.scores["live"]["mrr_known"])
        assert nightly["mrr_live"] == pytest.approx(record.scores["live"]["mrr"]) and 0 < nightly["mrr_known"] <= 1
