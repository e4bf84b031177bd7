"""A member answers a compaction once no role of its machine holds what was deleted, and not before."""

import dataclasses
import os
from contextlib import closing

import numpy as np
import pytest

from streamd.eventlog.recovery import lock_directory
from streamd.eventlog.upkeep.holds import Hold, asked_to_compact, write_hold
from streamd.eventlog.writer import LogWriter
from streamd.events import DELETION, Progress, Schema, empty_batch
from streamd.replica.members import Member
from streamd.replica.models import records
from streamd.replica.models.state import ModelsState
from streamd.roles import HANDOVER, LOCK, make_folder
from tests.builders import stream, write_log

EVENT = 300


@pytest.fixture
def told(tmp_path):
    """A machine with a log of 600 events and a request to compact before event 300; what its member appends."""
    write_log(tmp_path, *stream(600))
    state, sent = ModelsState(), []
    state.take([records.encode(records.Request(term=0, id="c" * 32, action="compact", who="operator", why="", member="m", at=1.0, event=EVENT))])

    def append(record):
        sent.append(record)
        state.take([records.encode(record)])
    member = Member(tmp_path, 3600.0, append)

    def answers():
        member.step(state)
        return [one.event for one in sent if isinstance(one, records.Answer)]
    return answers


@pytest.mark.parametrize("late", [Hold(EVENT - 1, EVENT), Hold(EVENT, EVENT - 1), Hold(0, 0)], ids=["replays events", "has files with what was deleted", "both"])
@pytest.mark.parametrize("role", ["serve", "train", "score"])
def test_a_member_whose_role_still_holds_events_does_not_answer(tmp_path, told, role, late):
    write_hold(tmp_path, "serve-2", Hold(EVENT + 50, EVENT + 50))
    write_hold(tmp_path, role, late)
    assert told() == told() == [] and asked_to_compact(tmp_path) == EVENT, "its roles are asked to store newer state"
    write_hold(tmp_path, role, Hold(EVENT, EVENT))
    assert told() == told() == [EVENT] and asked_to_compact(tmp_path) is None, "it answers once"


def test_a_second_delete_without_an_event_between_waits_for_the_log_and_for_the_roles_here(tmp_path):
    write_log(tmp_path, *stream(600))
    state, sent = ModelsState(), []

    def append(record):
        sent.append(record)
        state.take([records.encode(record)])
    member = Member(tmp_path, 3600.0, append)
    for number in range(2):
        with closing(LogWriter(tmp_path, Schema(), 600)) as writer:
            seq = writer.state.seq + 1
            asked = records.Request(term=0, id=str(number) * 32, action="compact", who="operator", why="", member="m", at=1.0, event=600, seq=seq)
            state.take([records.encode(asked)])
            member.step(state)
            assert len(sent) == 1 + number, "the log here lacks the delete"
            rows = np.zeros(1, DELETION)
            rows["src"], rows["dst"], rows["time"] = 3 + number, -1, -1
            writer.commit(dataclasses.replace(empty_batch(Schema()), deletions_X=rows), Progress(), writer.watermark)
        if number:
            member.step(state)
            assert len(sent) == 2 and asked_to_compact(tmp_path) == 600, "the server here is past the event, and knows one delete"
        write_hold(tmp_path, "serve", Hold(600, 600, seq))
        member.step(state)
        assert isinstance(sent[-1], records.Answer) and sent[-1].event == 600 and asked_to_compact(tmp_path) is None
        state.take([records.encode(records.Released(term=1, number=2 * number + 1, request=asked.id, event=600, left=[]))])


def test_a_role_that_runs_is_waited_for_whatever_its_lease_says(tmp_path, told):
    write_hold(tmp_path, "serve", Hold(0, 0))
    os.utime(tmp_path / "roles/serve/hold", (1, 1))
    lock = lock_directory(make_folder(tmp_path, "serve") / LOCK)
    assert told() == []
    os.close(lock)
    assert told() == [EVENT], "one that is gone is not"


def test_the_hold_of_a_stored_checkpoint_keeps_no_answer_waiting(tmp_path, told):
    write_hold(tmp_path, HANDOVER, Hold(0, 0))
    assert told() == [EVENT]
