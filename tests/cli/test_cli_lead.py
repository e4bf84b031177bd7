"""`streamd lead` asks the ingest of a standby, and says what came of it."""

import threading
import time

import pytest
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.replica.leader.leading import is_asked_to_lead, led_term, note_led
from streamd.settings.loading import as_environment
from streamd.telemetry.heartbeat import Heartbeat
from tests.builders import settings
from tests.crash.daemons import wait


def run(path, *words, member="standby", **values):
    chosen = settings(path, **{"log__name": "t", "log__store": f"file://{path}/store", "log__member": member, **values})
    return CliRunner().invoke(app, ["lead", *words], env=as_environment(chosen))


@pytest.mark.parametrize(("values", "says"), [
    ({"log__name": "", "log__store": "", "member": "leader"}, "always leads"), ({"member": "leader"}, "leads whenever it runs"),
    ({"member": "replica"}, "never leads")])
def test_machines_that_cannot_take_the_lead_are_refused(tmp_path, values, says):
    done = run(tmp_path, **values)
    assert done.exit_code != 0 and says in str(done.exception)


def test_without_ingest_nobody_is_asked(tmp_path):
    done = run(tmp_path)
    assert "No ingest runs" in str(done.exception) and not is_asked_to_lead(tmp_path)


def test_one_that_leads_already_says_so_at_once(tmp_path):
    beat = Heartbeat(tmp_path, "ingest")
    beat.note(leading=True, term=7)
    beat.touch("leading")
    done = run(tmp_path)
    assert done.exit_code == 0 and done.output.startswith("leads in term 7 after 0.0 s")


def test_it_waits_until_the_standby_leads(tmp_path):
    beat = Heartbeat(tmp_path, "ingest")
    beat.touch("following", lag_records=3)

    def ingest():
        wait(lambda: is_asked_to_lead(tmp_path), "it is asked")
        note_led(tmp_path, 8)
        beat.note(leading=True, term=8)
        beat.touch("leading")
    thread = threading.Thread(target=ingest)
    thread.start()
    done = run(tmp_path)
    thread.join()
    assert done.exit_code == 0 and "leads in term 8" in done.output
    assert led_term(tmp_path) == 8 and not is_asked_to_lead(tmp_path)


@pytest.mark.parametrize(("state", "detail"), [("waiting for broker", {"why": "nobody answers"}),
                                               ("following", {"lag_records": 0, "cannot_lead": "The disk is full."})])
def test_a_request_that_is_not_met_in_time_is_withdrawn(tmp_path, state, detail):
    Heartbeat(tmp_path, "ingest").touch(state, **detail)
    begun = time.monotonic()
    done = run(tmp_path, "--wait", "1")
    assert done.exit_code == 1 and time.monotonic() - begun < 20
    why = list(detail.values())[-1]
    assert f"does not lead after 1 s: ingest is {state} ({why})" in " ".join(done.output.split())
    assert not is_asked_to_lead(tmp_path)
