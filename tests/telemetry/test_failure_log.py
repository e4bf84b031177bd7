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
