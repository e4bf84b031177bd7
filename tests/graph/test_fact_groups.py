"""Facts in words: each is in one group, and what is said is what happened."""

import re

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.graph import NUM_FACTS, FactColumn, PairFacts
from streamd.graph.facts.groups import GROUPS, WORDS, duration, fact_words, group_words, times_met

C = FactColumn
SECOND, HOUR = 1_000_000, 3_600_000_000
HALF_LIVES = (10, 100, 1000, 10_000, 100_000)


def facts_after(events, src, dst, now):
    facts = PairFacts(HALF_LIVES, 1000)
    src_E, dst_E, time_E = (np.array(x, np.int64) for x in zip(*events, strict=True))
    facts.advance(src_E, dst_E, time_E)
    return facts.compute(np.array([src]), np.array([now]), np.array([[dst]]))[0, 0]


def test_every_fact_is_in_one_group_and_has_words():
    grouped = [column for group in GROUPS for column in group.columns]
    assert sorted(grouped) == list(C) and set(WORDS) == set(C) and len(GROUPS) == 8


def test_what_happened_is_said():
    """0 -> 5 at 0 h and 1 h, 5 -> 0 at 2 h, 0 -> 6 at 3 h; asked at 5 h."""
    row = facts_after([(0, 5, 0), (0, 5, HOUR), (5, 0, 2 * HOUR), (0, 6, 3 * HOUR)], 0, 5, 5 * HOUR)
    assert [group_words(name, row) for name in ("frequency", "recency", "source", "candidate")] == [
        "they met 3 times", "they met last 3 h ago", "the source's last event was 2 h ago", "the candidate had 3 events"]
    said = {column: fact_words(column, row) for column in C}
    assert said[C.MET] == "the two met before"
    assert said[C.LOG_PAIR_SHARE] == "3 of the source's 4 events were with the candidate"
    assert said[C.PAIR_WEIGHT_50] == "the recent events between the two count as 0.88: each begins at 1 and loses 50 % with every later event of the source"
    assert said[C.LOG_SECONDS_SINCE_SENT] == "the source last sent to the candidate 4 h ago"
    assert said[C.LOG_SECONDS_SINCE_RECEIVED] == "the candidate last sent to the source 3 h ago"
    assert said[C.LOG_EVENTS_SINCE_MET] == "the source had 1 event since they met"
    assert said[C.LOG_CANDIDATE_EVENTS_SINCE_MET] == "the candidate had 0 events since they met"
    assert said[C.LOG_SOURCE_PARTNERS] == "the source had 2 different partners"
    assert said[C.LOG_CANDIDATE_GAP] == "the candidate's last two events were 1 h apart"
    assert said[C.SOURCE_REPEATS].startswith("29 % of the source's last events")


def test_what_never_happened_is_said_so():
    row = facts_after([(0, 5, 0), (1, 6, SECOND)], 0, 6, HOUR)
    said = {column: fact_words(column, row) for column in C}
    assert group_words("frequency", row) == group_words("recency", row) == said[C.MET] == "the two never met"
    assert said[C.LOG_EVENTS_SINCE_MET] == "the source had 1 event, and the two never met"
    assert said[C.LOG_SECONDS_SINCE_SENT] == "the source never sent to the candidate"
    assert said[C.LOG_SOURCE_GAP] == "the source had fewer than two events"
    assert said[C.LOG_TRANSITION_SHARE] == "the candidate never came next after the source's last partner"
    assert said[C.LOG_PAIR_HOUR_SHARE] == "the two never met at any hour of the day"
    strange = facts_after([(0, 5, 0)], -1, 99, HOUR)
    assert fact_words(C.LOG_SECONDS_SINCE_SOURCE, strange) == "the source never had an event"
    assert fact_words(C.LOG_SHARE_3, strange) == "hardly any recent event went to the candidate (averaged with the 3rd half-life of model.half_lives_seconds)"


@hypothesis.settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 90)), min_size=1, max_size=60))
def test_times_met_is_the_number_of_events_between_the_two(drawn):
    events = sorted(((u, v, t * 86_400 * SECOND) for u, v, t in drawn), key=lambda e: e[2])
    row = facts_after(events, 0, 1, 100 * 86_400 * SECOND)
    assert times_met(row) == sum({u, v} == {0, 1} for u, v, _ in events)


@pytest.mark.parametrize("count", [999, 20_000])
def test_many_meetings_are_counted_too(count):
    events = [(0, 1, i * SECOND) for i in range(count)]
    assert times_met(facts_after(events, 0, 1, count * SECOND)) == pytest.approx(count, rel=1e-4)


@given(st.lists(st.floats(-20, 30), min_size=NUM_FACTS, max_size=NUM_FACTS))
def test_any_row_can_be_said(values):
    row = np.array(values, np.float32)
    said = [fact_words(c, row) for c in C] + [group_words(group.name, row) for group in GROUPS]
    assert all(words and "nan" not in words for words in said)
    # A sentence: it begins with its subject and has a verb.
    for words in said[:len(C)]:
        assert re.match(r"(the|there|none|no|hardly|about|less|[\d.,e-]+|one) ", words), words
        assert re.search(r"\b(had|has|have|was|were|are|went|came|met|sent|share|shares|count)\b", words), words


@pytest.mark.parametrize(("seconds", "words"), [
    (0.4, "0.4 s"), (1, "1 s"), (59, "59 s"), (90, "1.5 min"), (7200, "2 h"), (86_400, "1 day"), (200_000, "2.3 days"),
    (31_557_600 * 3, "3 years"), (31_557_600, "1 year")])
def test_a_length_of_time_is_said_in_its_largest_unit(seconds, words):
    assert duration(seconds) == words
