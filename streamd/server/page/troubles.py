"""The troubles of a machine for its operator: one line each, the most severe first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from streamd.number_texts import span
from streamd.roles import RANK, SCORE, TRIAL, server_names
from streamd.server.engine.lag import BROKER_SECONDS
from streamd.server.engine.status import NextVersion
from streamd.server.page.trend import RecentRefusals
from streamd.telemetry.heartbeat import (
    FAILING,
    HELD_STATE,
    REFUSED_STATE,
    STALLED_SECONDS,
    UNSEEN_SECONDS,
    Beat,
)
from streamd.telemetry.replica_metrics import FOLLOW_REASONS

START_SECONDS = 60.0
"""A role without a heartbeat this long after the server's start did not start."""
NO_PROGRESS_SECONDS = 180.0
"""A finished window is a trouble if it waits this long without any progress of the trainer. The
trainer reports each part of its work within seconds."""
REMOVED_SECONDS = 3600.0
"""A role or server that is not in the settings counts as removed this long after the last turn of
its loop."""
MANY_EVENTS = 10_000
"""Minimum backlog of events that is a trouble: a smaller one is read within two seconds."""
FEW_REFUSED = 0.01
"""Minimum share of refused records that is a trouble; the table of dead letters shows fewer."""
MOST_REFUSED = 0.5
"""Share of refused records from which on the settings do not fit the stream at all."""
AWAY = (
    "events wait there, and answers lack them; restore the broker or correct "
    "kafka.bootstrap_servers"
)
"""The effect of an unreachable broker, and the operator's action."""
UNLED = "events wait in Kafka, and answers lack them; start the leader, or let a standby lead"
"""The effect of a log without a leader, and the operator's action."""
FAILED = {
    "archive": "the store gets nothing",
    "models": "versions and moves are not exchanged with the other machines",
}
"""The effect of a failing task by its name; for others the task itself is named."""
FAILING_SECONDS = 10.0
"""A task that fails for less time may have met a short interruption."""
FOLLOWER_WAITS = tuple(f"waiting for {why}" for why in FOLLOW_REASONS)
"""States in which a follower applies nothing."""
WAITING_STATES = ("waiting for the clock", "asking for schemas", "schema registry away")
"""States in which ingest reads nothing for a reason other than Kafka."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trouble:
    """One trouble of the machine.

    text: one line. is_bad: True for a failure or refusal, False for a delay, which may end by
    itself. detail: the action or more context; may be empty.
    """

    text: str
    is_bad: bool = True
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFacts:
    """The facts of this machine from which troubles are found.

    now: wall time in seconds. up_seconds: since the server started. broker: addresses of Kafka.
    beats: name of a role or server -> its heartbeat, None if it never ran. version: the one that
    answers, as text. next_version: the one that loads or catches up, if any. memory_behind: number
    of events in the graph over which memory has not advanced; log_behind: number of events in the
    log that the graph does not have; both are 0 before the server is ready. no_progress_seconds:
    time that a finished window has waited without progress of the trainer, None if none waits.
    refusals: of the last ten minutes, if any.
    """

    now: float
    up_seconds: float
    broker: str
    beats: Mapping[str, Beat | None]
    version: str
    next_version: NextVersion | None
    memory_behind: int
    log_behind: int
    no_progress_seconds: float | None
    refusals: RecentRefusals | None


def _age(seconds: float) -> str:
    """An age in whole seconds, or a larger unit."""
    return span(round(seconds))


def is_expected(name: str, beat: Beat | None, roles: Sequence[str], workers: int) -> bool:
    """Whether it is a trouble if a role does not run: True for ranks, for roles in the settings,
    and for any other role that ran within REMOVED_SECONDS.

    name, beat: of the role. roles, workers: of this machine, by its settings.
    """
    expected = name in roles or name.startswith(RANK) or name in server_names(workers)
    return expected or (beat is not None and beat.age_seconds < REMOVED_SECONDS)


def find_troubles(facts: MachineFacts) -> list[Trouble]:
    """Find all troubles: failures and refusals first, then delays."""
    found = [
        *_of_roles(facts),
        *_of_reading(facts),
        *_of_learning(facts),
        *_of_refusals(facts),
        *_of_answering(facts),
    ]
    return sorted(found, key=lambda trouble: not trouble.is_bad)


def _of_roles(facts: MachineFacts) -> Iterator[Trouble]:
    """Yield a trouble for each role that never ran, ended, hangs, is stopped, or refused its
    data."""
    for name, beat in facts.beats.items():
        if beat is None:
            # Roles may take a while to start.
            if facts.up_seconds >= START_SECONDS:
                yield Trouble(text=f"{name} never ran")
            continue

        # Report only the most severe trouble of a role: the others follow from it.
        silent = max(0.0, facts.now - beat.heartbeat_ns / 1e9)
        doing = f"its last state was: {beat.state}"
        if beat.state == REFUSED_STATE:
            why = beat.detail.get("why", "see its log")
            yield Trouble(text=f"{name} refused its data {_age(beat.age_seconds)} ago: {why}")
        elif not beat.exists:
            text = f"{name} ended and is not back: its last heartbeat was {_age(silent)} ago"
            yield Trouble(text=text, detail=doing)
        elif silent >= UNSEEN_SECONDS:
            text = f"{name} has sent no heartbeat for {_age(silent)}"
            if silent < STALLED_SECONDS:
                text += f": after {span(STALLED_SECONDS)} it is killed and restarted"
            yield Trouble(text=text, detail=f"it is stopped or stuck; {doing}")
        elif not beat.alive:
            text = f"{name} hangs: its loop has not turned for {_age(beat.age_seconds)}"
            yield Trouble(text=text, detail=doing)


def _of_reading(facts: MachineFacts) -> Iterator[Trouble]:
    """Yield the reasons why no events arrive although the roles that read them are alive."""
    ingest, follow = facts.beats.get("ingest"), facts.beats.get("follow")
    if ingest is not None and ingest.alive:
        yield from find_kafka_troubles(facts.broker, ingest)
        yield from _of_ingest(ingest)
    for beat in facts.beats.values():
        if beat is not None and beat.alive:
            yield from _of_failing(facts.now, beat)
    for name in (SCORE, TRIAL):
        beat = facts.beats.get(name)
        if beat is not None and beat.alive and (why := beat.detail.get("topic_away")):
            away = _age(beat.detail["topic_away_seconds"] + beat.age_seconds)
            yield Trouble(text=f"{name} has waited for its topic for {away}", detail=why)
    for name, beat in (("follow", follow), ("ingest", ingest)):
        if beat is not None and beat.alive:
            yield from find_following_troubles(name, beat)


def _of_failing(now: float, beat: Beat) -> Iterator[Trouble]:
    """Tasks of a role that fail and are retried, once they have failed for some seconds."""
    for task, failure in beat.detail.get(FAILING, {}).items():
        lasted = now - failure["since"]
        if lasted >= FAILING_SECONDS:
            text = FAILED.get(task, f"{task} of {beat.name} fails")
            yield Trouble(text=f"{text}, for {_age(lasted)}: {failure['error']}")


def find_following_troubles(name: str, beat: Beat) -> Iterator[Trouble]:
    """Find the reason why a follower, or a standby's ingest, gets no commits. name: of the role."""
    if beat.state in FOLLOWER_WAITS:
        yield Trouble(text=f"{name} is {beat.state}: {beat.detail.get('why', 'see its log')}")
    elif (unheard := beat.detail.get("unheard_seconds")) is not None:
        # Brokers that do not answer are another state.
        unheard += beat.age_seconds
        if unheard > BROKER_SECONDS:
            text = f"no leader has sent a commit or heartbeat for {_age(unheard)}"
            yield Trouble(text=f"{text}: {UNLED}")


def find_kafka_troubles(broker: str, beat: Beat) -> Iterator[Trouble]:
    """Yield the trouble with Kafka, if there is one. broker: its addresses. beat: of ingest."""
    detail = beat.detail
    why = str(detail.get("why", ""))
    # The time before the first question of ingest does not count as silence of the broker.
    was_asked = detail.get("broker_asked", True)
    silent = detail.get("broker_age_seconds", 0.0) if was_asked else -beat.age_seconds
    away = detail.get("unanswered_seconds", silent) + beat.age_seconds

    # A broker that answers gives a reason; of an unreachable one only the silence is known.
    if topics := detail.get("missing_topics"):
        text = f"Kafka {broker} has no topic {', '.join(topics)}"
        if detail.get("was_read"):
            text += " (deleted?)"
        missing = detail.get("missing_seconds", 0.0) + beat.age_seconds
        yield Trouble(text=f"{text}, for {_age(missing)}", detail=why)
    elif detail.get("answers"):
        yield Trouble(text=f"Kafka {broker} does not serve ingest: {why}")
    elif why and "unanswered_seconds" in detail or away > BROKER_SECONDS:
        late = away > BROKER_SECONDS
        text = f"Kafka {broker} has not answered for {_age(away)}"
        yield Trouble(text=f"{text}: {AWAY}" if late else text, is_bad=late, detail=why)


def _of_ingest(beat: Beat) -> Iterator[Trouble]:
    """Yield the reasons in ingest itself why no events arrive."""
    detail = beat.detail
    if beat.state == HELD_STATE:
        yield Trouble(text=f"ingest holds the first commit: {detail.get('held', 'see its log')}")
    elif beat.state in WAITING_STATES:
        yield Trouble(
            text=f"ingest is {beat.state}", is_bad=False, detail=str(detail.get("why", ""))
        )
    if detail.get("cannot_lead") and not detail.get("leading"):
        yield Trouble(text=f"this machine cannot lead: {detail['cannot_lead']}", is_bad=False)


def _of_learning(facts: MachineFacts) -> Iterator[Trouble]:
    train = facts.beats.get("train")
    waited = facts.no_progress_seconds
    if train is not None and waited is not None and waited >= NO_PROGRESS_SECONDS:
        doing = f"a finished window waits to be trained; the trainer is {train.state}; read its log"
        yield Trouble(text=f"no training progress for {_age(waited)}", detail=doing)


def _of_refusals(facts: MachineFacts) -> Iterator[Trouble]:
    """Yield a trouble if recent dead letters are at least FEW_REFUSED of the records."""
    refused = facts.refusals
    if refused is None or refused.num_dead < FEW_REFUSED * refused.num_records:
        return
    # One record may hold several events.
    unit = "records" if refused.num_dead <= refused.num_records else "events and records"
    yield Trouble(
        text=f"{refused.num_dead:,} of {refused.num_records:,} {unit} refused: {refused.error}",
        is_bad=refused.num_dead >= MOST_REFUSED * refused.num_records,
        detail="the last ten minutes; the table of dead letters has examples",
    )


def _of_answering(facts: MachineFacts) -> Iterator[Trouble]:
    """Yield a trouble if the next version catches up for long, or if graph or memory lack many
    events."""
    # The next version still catches up.
    coming = facts.next_version
    if coming is not None:
        name = "the rule" if coming.name is None else f"version {coming.name}"
        share = f"{int(100 * coming.share)} %"
        until = f"{facts.version} answers until then"
        yield Trouble(text=f"{name} catches up, {share}, {until}", is_bad=False)

    # Graph or memory lack events.
    if facts.log_behind >= MANY_EVENTS:
        text = f"answers are {facts.log_behind:,} events behind the log"
        yield Trouble(text=text, is_bad=False)
    if facts.memory_behind >= MANY_EVENTS:
        yield Trouble(text=f"memory is {facts.memory_behind:,} events behind", is_bad=False)
