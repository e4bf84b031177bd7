"""Whatever happens to the role and its topic, each event is in the topic with its one rank, or was counted as passed over."""

import contextlib
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as given_settings
from hypothesis import strategies as st

from streamd.graph.ranking import ranks
from tests.builders import settings, stream, write_log
from tests.scoring.test_scorer import prequential
from tests.scoring.world import Feed, Scoring, Topic
from tests.server.world import SCHEMA, World

STEPS = st.one_of(
    st.tuples(st.just("commit"), st.integers(1, 40)), st.tuples(st.just("turn"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["kill", "fail over", "hold", "release", "away", "back", "late"]), st.just(0)))


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A directory with a version, the whole log that it will have, and the ranks of that version."""
    folder = tmp_path_factory.mktemp("learned")
    src, dst, time_E = stream(700, hours=6)
    time_E[400:430] = time_E[400]
    write_log(folder / "whole", src, dst, time_E, SCHEMA)
    write_log(folder / "data", src[:260], dst[:260], time_E[:260], SCHEMA)
    world = World(folder / "data", registry__keep=1)
    world.train()
    logits, _ = prequential(world.settings, world.registry.load(world.registry.champion()), folder / "whole")
    return folder, {event: ranks(rows[None])[0] for event, rows in logits.items()}


def play(learned, steps):
    folder, wanted = learned
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamd.scoring.outbox.RETRY_SECONDS", 0.0)
        path = Path(scratch) / "data"
        shutil.copytree(folder / "data", path)
        chosen, topic = settings(path, stream__edge_feature_dim=2, registry__keep=1), Topic()
        feed = Feed(path, folder / "whole", SCHEMA, 260)
        stack.callback(feed.close)
        lives = [Scoring(chosen, topic).ready()]
        standby = Scoring(chosen, topic, leads=False)
        for step, number in steps:
            scoring = lives[-1]
            if step == "commit":
                feed.commit(min(feed.at + number, 700)) if feed.at < 700 else None
            elif step == "turn":
                for _ in range(number):
                    scoring.loop._turn(scoring.scorer, scoring.arrivals)
                    standby.loop._turn(standby.scorer, standby.arrivals)
            elif step == "kill":
                # What was sent and not acknowledged is in one partition only.
                topic.unsent = [one for one in topic.unsent if sum(one[1]) % 2]
                topic.release()
                topic.away = False
                lives.append(Scoring(chosen, topic))
            elif step == "fail over":
                topic.away = False
                scoring.leads, standby.leads = False, True
                for one in (scoring, standby):
                    one.check_lead()
                    one.loop._turn(one.scorer, one.arrivals)
                lives.append(standby)
                standby = scoring
            elif step == "late":
                scoring.grow_old()
            else:
                topic.held, topic.away = step == "hold" or topic.held and step != "release", step == "away" or topic.away and step != "back"
                if step == "release":
                    topic.release()
        topic.release()
        topic.away = False
        lives[-1].ready()
        lives[-1].turn()
        records = topic.records
        counted = sum(sum(one.skipped.values()) for one in dict.fromkeys(lives))
        assert all(r.rank == wanted[r.event] for r in records)
        assert len({r.event for r in records}) + counted >= feed.at - 260, "none is lost without being counted"
        if not {"late"} & {step for step, _ in steps}:
            assert [r.event for r in records] == list(range(260, feed.at)), [one.skipped for one in lives]
        return len(records)


@given(st.lists(STEPS, max_size=25))
@given_settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_is_lost_without_being_counted(learned, steps):
    play(learned, steps)


@pytest.mark.slow
@given(st.lists(STEPS, max_size=60))
@given_settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_is_lost_without_being_counted_at_length(learned, steps):
    play(learned, steps)


def test_a_day_of_all_of_it(learned):
    rng = np.random.default_rng(0)
    steps = [("commit", 30), ("turn", 2), ("hold", 0), ("commit", 20), ("turn", 2), ("kill", 0), ("commit", 30), ("turn", 1), ("fail over", 0),
             ("commit", 25), ("away", 0), ("turn", 3), ("back", 0), ("turn", 2), ("kill", 0)]
    assert play(learned, steps + [("commit", int(n)) for n in rng.integers(1, 40, 9)]) > 200
