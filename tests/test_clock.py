"""Times that settings and options give as text."""

import pytest

from streamd.clock import parse_time_us
from streamd.errors import SettingsError


def test_start_times_are_read_as_utc():
    assert parse_time_us("2026-01-31T00:00:00Z", "x") == parse_time_us("2026-01-31T01:00:00+01:00", "x") == 1_769_817_600_000_000
    assert parse_time_us("9999-02-01T00:00:59.111111Z", "x") == 253_373_443_259_111_111
    with pytest.raises(SettingsError, match="ingest.start is .yesterday., which is not an ISO 8601"):
        parse_time_us("yesterday", "ingest.start")
