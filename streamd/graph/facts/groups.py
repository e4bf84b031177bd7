"""Groups of facts for explanations, and the facts of a row in words."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from streamd.events import Float32
from streamd.graph.facts.columns import FactColumn
from streamd.graph.facts.covisits import COVISIT_SCALE
from streamd.graph.facts.fact_arrays import RATES
from streamd.graph.facts.kernels import (
    FLOOR_LOG_SHARE,
    NEVER_LOG_EVENTS,
    NEVER_LOG_SECONDS,
    UNSEEN_PAIR,
    UNSEEN_SOURCE,
)
from streamd.number_texts import count_noun

C = FactColumn


@dataclass(frozen=True, slots=True)
class FactGroup:
    """Facts with the same kind of information: only the effect of removing all of them together has
    a meaning.

    words: their subject; "the source" and "the candidate" are the two nodes of the pair.
    """

    name: str
    words: str
    columns: tuple[FactColumn, ...]


GROUPS = (
    FactGroup(
        "frequency",
        "how often the two met",
        (
            C.MET,
            C.LOG_PAIR_SHARE,
            C.PAIR_WEIGHT_50,
            C.PAIR_WEIGHT_80,
            C.PAIR_WEIGHT_95,
            C.PAIR_WEIGHT_99,
            C.CANDIDATE_WEIGHT_50,
            C.CANDIDATE_WEIGHT_80,
            C.CANDIDATE_WEIGHT_95,
            C.CANDIDATE_WEIGHT_99,
        ),
    ),
    FactGroup(
        "recency",
        "how long ago the two met",
        (
            C.LOG_SECONDS_SINCE_SENT,
            C.LOG_SECONDS_SINCE_RECEIVED,
            C.LOG_EVENTS_SINCE_MET,
            C.LOG_CANDIDATE_EVENTS_SINCE_MET,
        ),
    ),
    FactGroup(
        "popularity",
        "how popular the candidate is",
        (
            C.LOG_SHARE_1,
            C.LOG_SHARE_2,
            C.LOG_SHARE_3,
            C.LOG_SHARE_4,
            C.LOG_SHARE_5,
            C.LOG_SECONDS_SINCE_DESTINATION,
        ),
    ),
    FactGroup(
        "source",
        "the source's activity with any candidate",
        (
            C.LOG_SECONDS_SINCE_SOURCE,
            C.LOG_SOURCE_EVENTS,
            C.LOG_SOURCE_PARTNERS,
            C.SOURCE_REPEATS,
            C.LOG_SOURCE_GAP,
        ),
    ),
    FactGroup(
        "candidate",
        "the candidate's activity with any source",
        (
            C.LOG_CANDIDATE_EVENTS,
            C.LOG_CANDIDATE_PARTNERS,
            C.CANDIDATE_REPEATS,
            C.LOG_CANDIDATE_GAP,
        ),
    ),
    FactGroup(
        "paths",
        "partners in common, and destinations that others went to as well",
        (
            C.LOG_COMMON_PARTNERS,
            C.LOG_THREE_HOP_PATHS,
            C.LOG_COVISITS,
            C.LOG_GREATEST_COVISITS,
        ),
    ),
    FactGroup(
        "sequence",
        "the usual successors of the source's last partner",
        (C.LOG_TRANSITION_SHARE, C.LOG_EVENTS_SINCE_TRANSITION),
    ),
    FactGroup(
        "hour",
        "the hour of the day",
        (C.LOG_PAIR_HOUR_SHARE, C.LOG_CANDIDATE_HOUR_SHARE),
    ),
)
"""Each fact is in one group. There are few groups, since an explanation takes 2 ** len(GROUPS)
scores."""

# Smaller differences are rounding errors of float32 logs.
TOLERANCE = 1e-3
UNITS = (("year", 31_557_600.0), ("day", 86_400.0), ("h", 3_600.0), ("min", 60.0))
HALF_LIVES = ("1st", "2nd", "3rd", "4th", "5th")


def fact_words(column: FactColumn, facts_F: Float32) -> str:
    """Describe a fact.

    facts_F: float32[NUM_FACTS], the whole row, since the words of one fact may depend on another.
    """
    return WORDS[column](float(facts_F[column]), facts_F)


def times_met(facts_F: Float32) -> int:
    """Number of a pair's events, computed from its share of the source's events; 0 for a pair that
    is no longer among the last `model.max_pairs`."""
    events = math.expm1(float(facts_F[C.LOG_SOURCE_EVENTS]))
    log_met = float(facts_F[C.LOG_PAIR_SHARE]) + math.log(events + UNSEEN_SOURCE)
    return max(0, round(math.exp(log_met) - UNSEEN_PAIR))


def group_words(name: str, facts_F: Float32) -> str:
    """Summarise a group's facts in one line. facts_F: as in `fact_words`."""
    return SUMMARIES[name](facts_F)


def duration(seconds: float) -> str:
    """A duration in its largest unit, as "2 h" or "3 days"."""
    for unit, length in UNITS:
        if seconds >= length:
            count = _round(seconds / length)
            return f"{count} {unit}{'s' if unit in ('day', 'year') and count != '1' else ''}"
    return f"{_round(seconds)} s"


def _round(value: float) -> str:
    """A number with one decimal below 10, unless that is 0, and none above."""
    return f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:.0f}"


def _share(log_share: float) -> str:
    """A share, given by its log, in per cent."""
    percent = 100 * math.exp(log_share)
    if percent >= 10:
        return f"{percent:.0f} %"
    return f"{percent:.2g} %" if percent >= 0.01 else "less than 0.01 %"


def _count(log_count: float, noun: str) -> str:
    return count_noun(round(math.expm1(log_count)), noun)


def _never(log_seconds: float) -> bool:
    return log_seconds > NEVER_LOG_SECONDS - TOLERANCE


Describe = Callable[[float, Float32], str]
"""(value of a fact, its whole row) -> the fact as text."""


def _weight(end: str, rate: float) -> Describe:
    def describe(value: float, _: Float32) -> str:
        if value < TOLERANCE:
            return f"none of the {end}'s last events was between the two"
        loss = f"{100 * (1 - rate):.0f} %"
        return (
            f"the recent events between the two count as {value:.2f}: each begins at 1 and loses "
            f"{loss} with every later event of the {end}"
        )

    return describe


def _since(when: str, never: str) -> Describe:
    def describe(value: float, _: Float32) -> str:
        return never if _never(value) else when.format(duration(math.exp(value)))

    return describe


def _since_met(end: str) -> Describe:
    def describe(value: float, row_F: Float32) -> str:
        had = f"the {end} had {_count(value, 'event')}"
        return f"{had}, and the two never met" if row_F[C.MET] < 0.5 else f"{had} since they met"

    return describe


def _popularity(nth: str) -> Describe:
    def describe(value: float, _: Float32) -> str:
        by = f"averaged with the {nth} half-life of model.half_lives_seconds"
        if value <= FLOOR_LOG_SHARE + TOLERANCE:
            return f"hardly any recent event went to the candidate ({by})"
        return f"{_share(value)} of recent events went to the candidate ({by})"

    return describe


def _events(end: str) -> Describe:
    return lambda value, _: f"the {end} had {_count(value, 'event')}"


def _repeats(end: str) -> Describe:
    return lambda value, _: (
        f"{100 * value:.0f} % of the {end}'s last events had the same partner as the event before"
    )


def _partners(end: str) -> Describe:
    return lambda value, _: f"the {end} had {_count(value, 'different partner')}"


def _gap(end: str) -> Describe:
    return _since(
        f"the {end}'s last two events were {{}} apart", f"the {end} had fewer than two events"
    )


NEVER_NEXT = "the candidate never came next after the source's last partner"


def _transitions(value: float, row_F: Float32) -> str:
    if row_F[C.LOG_EVENTS_SINCE_TRANSITION] >= NEVER_LOG_EVENTS - TOLERANCE:
        return NEVER_NEXT
    return f"the candidate came next after {_share(value)} of events with the source's last partner"


def _since_transition(value: float, _: Float32) -> str:
    if value >= NEVER_LOG_EVENTS - TOLERANCE:
        return NEVER_NEXT
    events = _count(value, "event")
    return f"the source's last partner had {events} since the candidate came next after it"


def _pair_hours(value: float, row_F: Float32) -> str:
    if not times_met(row_F):
        return "the two never met at any hour of the day"
    of_pair = f"about {_share(value)} of the events between the two"
    return f"{of_pair} went from the source to the candidate at this hour of the day"


def _candidate_hours(value: float, row_F: Float32) -> str:
    if row_F[C.LOG_CANDIDATE_EVENTS] < TOLERANCE:
        return "the candidate never had an event at any hour of the day"
    return f"about {_share(value)} of the candidate's events came at this hour of the day"


def _covisits(value: float, _: Float32) -> str:
    if value < TOLERANCE:
        return "no source went both to the candidate and to one of the source's last destinations"
    share = _share(math.log(math.expm1(value) / COVISIT_SCALE))
    return (
        f"the source's last destinations share {share} of their sources with the candidate, "
        "all added up"
    )


def _greatest_covisits(value: float, row_F: Float32) -> str:
    if value < TOLERANCE:
        return _covisits(value, row_F)
    share = _share(math.log(math.expm1(value) / COVISIT_SCALE))
    return f"one of the source's last destinations shares {share} of its sources with the candidate"


WORDS: Mapping[FactColumn, Describe] = {
    **{
        column: _weight(end, rate)
        for end, first in (("source", C.PAIR_WEIGHT_50), ("candidate", C.CANDIDATE_WEIGHT_50))
        for column, rate in zip(list(C)[first : first + len(RATES)], RATES, strict=True)
    },
    C.MET: lambda value, _: "the two met before" if value > 0.5 else "the two never met",
    C.LOG_PAIR_SHARE: lambda value, row: (
        f"{times_met(row):,} of the source's {_count(float(row[C.LOG_SOURCE_EVENTS]), 'event')} "
        "were with the candidate"
    ),
    C.LOG_SECONDS_SINCE_SENT: _since(
        "the source last sent to the candidate {} ago", "the source never sent to the candidate"
    ),
    C.LOG_SECONDS_SINCE_RECEIVED: _since(
        "the candidate last sent to the source {} ago", "the candidate never sent to the source"
    ),
    C.LOG_EVENTS_SINCE_MET: _since_met("source"),
    C.LOG_CANDIDATE_EVENTS_SINCE_MET: _since_met("candidate"),
    **{
        column: _popularity(nth)
        for column, nth in zip(list(C)[C.LOG_SHARE_1 : C.LOG_SHARE_5 + 1], HALF_LIVES, strict=True)
    },
    C.LOG_SECONDS_SINCE_DESTINATION: _since(
        "the candidate was last a destination {} ago", "the candidate was never a destination"
    ),
    C.LOG_SECONDS_SINCE_SOURCE: _since(
        "the source's last event was {} ago", "the source never had an event"
    ),
    C.LOG_SOURCE_EVENTS: _events("source"),
    C.LOG_CANDIDATE_EVENTS: _events("candidate"),
    C.LOG_SOURCE_PARTNERS: _partners("source"),
    C.LOG_CANDIDATE_PARTNERS: _partners("candidate"),
    C.SOURCE_REPEATS: _repeats("source"),
    C.CANDIDATE_REPEATS: _repeats("candidate"),
    C.LOG_SOURCE_GAP: _gap("source"),
    C.LOG_CANDIDATE_GAP: _gap("candidate"),
    C.LOG_COMMON_PARTNERS: lambda value, _: (
        f"the two have {_count(value, 'partner')} in common among their last ones"
    ),
    C.LOG_THREE_HOP_PATHS: lambda value, _: (
        f"there are {_count(value, 'path')} of three hops between the two"
    ),
    C.LOG_COVISITS: _covisits,
    C.LOG_GREATEST_COVISITS: _greatest_covisits,
    C.LOG_TRANSITION_SHARE: _transitions,
    C.LOG_EVENTS_SINCE_TRANSITION: _since_transition,
    C.LOG_PAIR_HOUR_SHARE: _pair_hours,
    C.LOG_CANDIDATE_HOUR_SHARE: _candidate_hours,
}
"""Fact -> the function that describes it."""


def _frequency(row_F: Float32) -> str:
    times = times_met(row_F)
    if not times and row_F[C.MET] < 0.5:
        return "the two never met"
    return f"they met {'once' if times == 1 else f'{max(times, 1):,} times'}"


def _recency(row_F: Float32) -> str:
    sent = float(row_F[C.LOG_SECONDS_SINCE_SENT])
    received = float(row_F[C.LOG_SECONDS_SINCE_RECEIVED])
    if _never(min(sent, received)):
        return "the two never met"
    return f"they met last {duration(math.exp(min(sent, received)))} ago"


def _paths(row_F: Float32) -> str:
    # In a bipartite stream source and candidate have no partners in common, so use co-visits.
    common = row_F[C.LOG_COMMON_PARTNERS] >= TOLERANCE or row_F[C.LOG_COVISITS] < TOLERANCE
    return fact_words(C.LOG_COMMON_PARTNERS if common else C.LOG_GREATEST_COVISITS, row_F)


def _fact_words(column: FactColumn) -> Callable[[Float32], str]:
    return lambda row_F: fact_words(column, row_F)


SUMMARIES: Mapping[str, Callable[[Float32], str]] = {
    "frequency": _frequency,
    "recency": _recency,
    "popularity": _fact_words(C.LOG_SHARE_3),
    "source": _fact_words(C.LOG_SECONDS_SINCE_SOURCE),
    "candidate": _fact_words(C.LOG_CANDIDATE_EVENTS),
    "paths": _paths,
    "sequence": _fact_words(C.LOG_TRANSITION_SHARE),
    "hour": _fact_words(C.LOG_PAIR_HOUR_SHARE),
}
