"""Each role exports what it measures, and nothing of what the others do."""

import math

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from streamd.telemetry import metrics


def names(role):
    return {family.name for family in metrics.exported_by(role).collect()}


def test_a_role_exports_only_its_own_metrics_and_those_of_every_process():
    ingest, train, serve = map(names, ("ingest", "train", "serve"))
    assert "streamd_log_edges" in ingest - train - serve
    assert "streamd_trained_until_timestamp_seconds" in train - ingest - serve
    assert "streamd_served_edges" in serve - ingest - train
    assert "streamd_device_cuda" in (train & serve) - ingest
    assert "process_resident_memory_bytes" in ingest & train & serve


@pytest.mark.parametrize("labels", [(), ("role",)])
def test_a_gauge_is_absent_until_it_is_known_and_while_it_is_no_number(labels):
    registry = CollectorRegistry()
    gauge = metrics.Gauge("g", "text", labels, registry=registry)
    one = gauge.labels("x") if labels else gauge
    assert b"\ng" not in generate_latest(registry)
    one.set(0)
    assert b"\ng" in generate_latest(registry)
    one.set(math.nan)
    assert b"\ng" not in generate_latest(registry)
    one.set_function(lambda: 3)
    assert b" 3.0" in generate_latest(registry)
