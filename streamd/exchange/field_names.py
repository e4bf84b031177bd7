"""The words in the names of fields, and their meaning for a mapping.

`user_id`, `userId`, `user-id` and `user.id` are the words user and id. The tables hold common
English names of public data sets and event streams, and a few German ones; values decide between
fields of equal names.
"""

import re
from functools import lru_cache

from streamd.settings.sources import steps_of

WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
"""A word in camelCase, snake_case or any other case."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ACTORS = (
    _words("u who user uid customer member visitor person subscriber kunde kunden nutzer benutzer"),
    _words("username login author actor principal identity did distinct pseudo anonymous player"),
    _words("student patient profile buyer sender caller calling payer follower passenger rider"),
    _words("listener viewer reader reviewer employee editor owner creator contact account client"),
    _words(
        "guest requester cardholder borrower voter device cookie session card sensor vehicle driver"
    ),
    _words("ip remote host"),
)
"""Nouns for the source of an edge, the likeliest first."""
OBJECTS = (
    _words("v what item product goods article movie film song track book repo repository iid"),
    _words(
        "asin isbn sku ean upc merchant video show artist album podcast episode page post artikel "
        "produkt ware"
    ),
    _words("tweet subject business issue ticket listing channel thread subreddit room title"),
    _words("url uri link store shop restaurant hotel venue station location zone destination"),
    _words("recipient receiver payee callee peer target asset object document file recording"),
    _words("course lesson campaign ad banner app bucket endpoint topic game category service"),
    _words("resource record gateway content entity query keyword card token client assignee"),
    _words("group team community"),
)
"""Nouns for the destination of an edge, the likeliest first."""
DIRECTIONS = (
    *(("src", word) for word in _words("dst dest trg target tgt")),
    *(("source", word) for word in _words("destination target dest sink")),
    ("from", "to"),
    *(("orig", word) for word in _words("resp dest term")),
    *(("origin", word) for word in _words("destination dest")),
    ("originator", "responder"),
    *(("start", word) for word in _words("end stop")),
    *(("sender", word) for word in _words("receiver recipient addressee beneficiary")),
    ("send", "recv"),
    *(("caller", word) for word in _words("callee called receiver")),
    ("calling", "called"),
    *(("pickup", word) for word in _words("dropoff delivery")),
    ("pu", "do"),
    ("departure", "arrival"),
    ("dep", "arr"),
    ("white", "black"),
    ("home", "away"),
    ("winner", "loser"),
    ("payer", "payee"),
    ("debtor", "creditor"),
    ("debit", "credit"),
    ("remitter", "beneficiary"),
    ("buyer", "seller"),
    ("follower", "followee"),
    ("follower", "following"),
    ("initiator", "target"),
    ("actor", "target"),
    ("client", "server"),
    *((word, "peer") for word in _words("local resource service")),
    ("local", "remote"),
    ("subject", "object"),
    ("head", "tail"),
    ("a", "b"),
    ("1", "2"),
)
"""Pairs of words by which the names of an edge's two endpoints differ."""
SOURCES = frozenset(_words("src source from orig origin sender caller calling payer initiator"))
TARGETS = frozenset(
    _words("dst dest to destination target receiver recipient callee called payee reply mentioned")
)
"""Words that give a field a direction even if no other field is its counterpart."""
MEASURES = frozenset(
    _words(
        "bytes byte packets pkts count counts cnt num size length len duration seconds secs sec "
        "millis latency amount price total subtotal sum balance oldbalance newbalance qty quantity "
        "rating stars lat lon lng latitude longitude temperature humidity pressure speed age level "
        "percent ratio rate width height depth weight distance fee tax tip fare gas nonce position "
        "offset line version revision rev seq sequence port p status played elo interval elapsed "
        "ttl flags mtime volume voltage battery cpu load probability confidence lag step discount "
        "mileage passengers pos timezone tz preis menge anzahl betrag summe"
    )
)
"""Nouns for numbers that measure or count; such a field is no key."""
ATTRIBUTES = frozenset(
    _words(
        "country city region state language lang locale currency agent browser os platform carrier "
        "color colour gender brand method protocol proto scheme description comment message text "
        "summary body hash signature cid rkey etag"
    )
)
"""Nouns for attributes of an endpoint, or for text that never repeats."""
GENERIC = frozenset(
    _words(
        "id ids key code number no name uuid guid arn login email address addr h ip ref acct url "
        "uri path sub slug gid oid mbid n s fingerprint screen display nr nummer"
    )
)
"""Last words for the notation of an endpoint; the word before them names it."""
IDENTIFIERS = frozenset(
    _words("id key uuid guid arn uri url ip addr address h login code number nr nummer")
)
"""Words of GENERIC for values that are more likely unique than a name."""
KINDS = frozenset(_words("kind type event action op operation status"))
"""Nouns of fields that often contain the kind of a record."""
TIMES = frozenset(
    _words(
        "time timestamp ts date datetime at created occurred when day t tstamp epoch dt utc "
        "started dat dt nano us ms ns s millis unix zeit zeitpunkt datum uhrzeit"
    )
)
"""Nouns for times."""
OTHER_TIMES = frozenset(
    _words(
        "received processed sent updated modified end ended dropoff delivery expires expiry upload "
        "server sync synced ingest ingested last finish finished completed stop stopped arrival "
        "inserted retrieved saved birth dob stage transport load loaded deleted until closed "
        "cancelled release published etl current next"
    )
)
"""Words for times that are not the time of the event, or that are later than its start."""
TECHNICAL = re.compile(r"_[_a-z]|_?(fivetran|sdc|airbyte|dlt)_|METADATA\$|header__|(?i:etl_)")
"""Prefixes of names that belong to a tool that copied the data."""
TYPES = re.compile(r"\$(oid|numberLong|numberInt|numberDecimal|uuid|date|timestamp)")
"""Steps of MongoDB's JSON that give the type of a value."""
COMPOUND_ENDS = _words("id ids ip addr address name host port key code number time uri url path no")


@lru_cache(4096)
def words_of(path: str) -> tuple[tuple[str, ...], ...]:
    """The words of each step of a path, in lower case; indexes of list elements are left out."""
    steps = [s for s in steps_of(path) if not (s.isdecimal() or TYPES.fullmatch(s))]
    return tuple(
        tuple(part for word in WORD.findall(step) for part in _parts(word.lower()))
        for step in steps
    )


def last_words(path: str) -> tuple[str, ...]:
    """The words of a path's last step."""
    steps = words_of(path)
    return steps[-1] if steps else ()


def all_words(path: str) -> tuple[str, ...]:
    """The words of all steps of a path."""
    return tuple(word for step in words_of(path) for word in step)


def _parts(word: str) -> tuple[str, ...]:
    """Split a word that joins a known noun and a generic word, such as userid, into these two."""
    if word in _NOUNS:
        return (word,)
    for end in COMPOUND_ENDS:
        if word.endswith(end) and word[: -len(end)] in _NOUNS:
            return word[: -len(end)], end
    return (word,)


_NOUNS = frozenset(
    word
    for table in (*ACTORS, *OBJECTS, *DIRECTIONS, SOURCES, TARGETS, MEASURES, ("category",))
    for word in table
    if len(word) > 1
)


def head_of(path: str) -> tuple[str, tuple[str, ...]]:
    """The noun of a path, "" if it has none, and the words of the step that contains it.

    It is the last word that is not generic, of the last two steps.
    """
    for step in reversed(words_of(path)[-2:]):
        if "ip" in step:
            return "ip", step
        for word in reversed(step):
            if word not in GENERIC:
                return word, step
    return "", last_words(path)


def rank_in(tables: tuple[tuple[str, ...], ...], word: str) -> float:
    """Rank a noun by the first of the tables that contains it: 10 for the first table, one less for
    each later one, 0 if none does."""
    for at, table in enumerate(tables):
        if word in table or (word.endswith("s") and word[:-1] in table):
            return 10.0 - at
    return 0.0


def is_technical(path: str) -> bool:
    """Whether a field belongs to the tool that copied the data."""
    last = steps_of(path)[-1]
    return TECHNICAL.match(last) is not None and last != "_id" and not TYPES.fullmatch(last)


def is_measure(path: str) -> bool:
    """Whether the name of a field means a measure or a count: bytes, an amount, a port."""
    steps = words_of(path)
    if not steps or not steps[-1]:
        return False
    last = [word for word in steps[-1] if word not in ("in", "out", "ms", "s", "usd", "min", "max")]
    return bool(last) and (last[-1] in MEASURES or last[0] in ("num", "count", "total"))


def names_time(path: str) -> bool:
    """Whether the name of a field means a time."""
    return any(word in TIMES for word in last_words(path))
