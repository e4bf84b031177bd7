"""The columns of a row of facts about a (source, candidate) pair: their names, meanings and
order."""

from enum import IntEnum

from streamd.schema import Schema


class FactColumn(IntEnum):
    """Index of a fact in its row. words: its meaning; "the source" and "the candidate" are the two
    nodes of the pair.

    The order never changes, since the weights of every stored model depend on it; new facts are
    appended.
    """

    words: str

    def __new__(cls, place: int, words: str) -> "FactColumn":
        # The value is the integer alone, so that a column serves as an index.
        column = int.__new__(cls, place)
        column._value_ = place
        column.words = words
        return column

    PAIR_WEIGHT_50 = 0, "events of the pair, each weighing .5 per event of the source since"
    PAIR_WEIGHT_80 = 1, "the same at .8"
    PAIR_WEIGHT_95 = 2, "the same at .95"
    PAIR_WEIGHT_99 = 3, "the same at .99"
    MET = 4, "1 if the pair had an event before, else 0"
    LOG_EVENTS_SINCE_MET = (
        5,
        "log(1 + events of the source since their last one, or since its first if they never met)",
    )
    LOG_SECONDS_SINCE_SENT = 6, "log seconds since source -> candidate"
    LOG_SECONDS_SINCE_RECEIVED = 7, "log seconds since candidate -> source"
    LOG_SHARE_1 = (
        8,
        "log share of the candidate among destinations, decayed by the 1st of "
        "`model.half_lives_seconds`",
    )
    LOG_SHARE_2 = 9, "the same by the 2nd"
    LOG_SHARE_3 = 10, "the same by the 3rd"
    LOG_SHARE_4 = 11, "the same by the 4th"
    LOG_SHARE_5 = 12, "the same by the 5th"
    LOG_SECONDS_SINCE_DESTINATION = 13, "log seconds since the candidate was a destination"
    LOG_SECONDS_SINCE_SOURCE = 14, "log seconds since the source's last event"
    LOG_SOURCE_EVENTS = 15, "log(1 + events of the source)"
    LOG_CANDIDATE_EVENTS = 16, "log(1 + events of the candidate)"
    LOG_COMMON_PARTNERS = 17, "log(1 + equal entries among the last 16 partners of both)"
    LOG_THREE_HOP_PATHS = (
        18,
        "log(1 + paths of 3 hops from source to candidate over the last 8 partners a hop)",
    )
    CANDIDATE_WEIGHT_50 = (
        19,
        "events of the pair, each weighing .5 per event of the candidate since",
    )
    CANDIDATE_WEIGHT_80 = 20, "the same at .8"
    CANDIDATE_WEIGHT_95 = 21, "the same at .95"
    CANDIDATE_WEIGHT_99 = 22, "the same at .99"
    LOG_CANDIDATE_EVENTS_SINCE_MET = (
        23,
        "log(1 + events of the candidate since their last one, or since its first if they never "
        "met)",
    )
    SOURCE_REPEATS = (
        24,
        "share of the source's events with the partner of the event before, each weighing .8 per "
        "event since",
    )
    CANDIDATE_REPEATS = 25, "the same of the candidate"
    LOG_SOURCE_PARTNERS = 26, "log(1 + pairs that the source began)"
    LOG_CANDIDATE_PARTNERS = 27, "the same of the candidate"
    LOG_SOURCE_GAP = 28, "log seconds between the source's last two events"
    LOG_CANDIDATE_GAP = 29, "the same of the candidate"
    LOG_TRANSITION_SHARE = (
        30,
        "log share of events with the source's last partner after which its partner's next event "
        "was sent to the candidate",
    )
    LOG_EVENTS_SINCE_TRANSITION = (
        31,
        "log(1 + events of the source's last partner since one of those)",
    )
    LOG_PAIR_SHARE = 32, "log share of the pair's events among the source's"
    LOG_PAIR_HOUR_SHARE = (
        33,
        "log share, among the pair's events, of source -> candidate within an hour of this hour of "
        "the day (UTC)",
    )
    LOG_CANDIDATE_HOUR_SHARE = (
        34,
        "log share, among the candidate's events, of those that it received within an hour of this "
        "hour of the day",
    )
    LOG_COVISITS = (
        35,
        "log(1 + 100 x), x the sum, over the source's last 10 destinations, of the sources that "
        "went to it and to the candidate over the root of both numbers of sources",
    )
    LOG_GREATEST_COVISITS = 36, "the same with the greatest of them instead of the sum"


NUM_FACTS = len(FactColumn)
FACT_NAMES = tuple(column.name.lower() for column in FactColumn)
"""The names in manifests and docs."""

# Slices of columns of one kind, which are contiguous.
PAIR_WEIGHTS = slice(FactColumn.PAIR_WEIGHT_50, FactColumn.PAIR_WEIGHT_99 + 1)
CANDIDATE_WEIGHTS = slice(FactColumn.CANDIDATE_WEIGHT_50, FactColumn.CANDIDATE_WEIGHT_99 + 1)
LOG_SHARES = slice(FactColumn.LOG_SHARE_1, FactColumn.LOG_SHARE_5 + 1)
NUM_HALF_LIVES = LOG_SHARES.stop - LOG_SHARES.start


def num_facts(schema: Schema) -> int:
    """Number of columns of a row of facts. With several edge sets these are the facts in the
    query's set, the facts in all sets together, and a one-hot of the query's set."""
    sets = schema.num_edge_sets
    return NUM_FACTS if sets == 1 else 2 * NUM_FACTS + sets
