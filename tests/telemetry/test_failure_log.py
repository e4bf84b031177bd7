from structlog.testing import capture_logs

from streamd.telemetry.failure_log import REPEAT_SECONDS, LastingFailures
from tests.builders import ManualClock


def test_a_lasting_failure_is_due_once_then_at_the_interval_each_kind_by_itself():
    clock = ManualClock()
    failures = LastingFailures(clock.monotonic)
    due = []
    for second in range(int(2 * REPEAT_SECONDS) + 1):
        due += [second] if failures.is_due("store") else []
        clock.advance(1)
    assert due == [0, REPEAT_SECONDS, 2 * REPEAT_SECONDS]
    assert failures.is_due("broker") and not failures.is_due("broker")


def test_what_comes_after_all_was_well_is_new():
    failures = LastingFailures(ManualClock().monotonic)
    assert failures.is_due("store") and not failures.is_due("store")
    failures.over()
    assert failures.is_due("store")


def test_the_end_of_a_failure_is_logged_once_with_its_duration():
    clock = ManualClock()
    failures = LastingFailures(clock.monotonic)
    with capture_logs() as said:
        failures.end("it_is_back")
        for kind in ("store", "broker", "broker"):
            failures.is_due(kind)
            clock.advance(20)
        failures.over("broker")
        failures.end("it_is_back", store="s3")
        failures.end("it_is_back")
    assert [(line["event"], line["store"], line["failed_seconds"]) for line in said] == [("it_is_back", "s3", 60)]
