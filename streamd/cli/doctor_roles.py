"""The checks of `streamd doctor` about the roles of this machine and their positions in Kafka."""

import re
import time
from collections.abc import Collection, Sequence

from streamd.cli.doctor_log import Doubts
from streamd.errors import DataLossError, KafkaError, StreamdError
from streamd.number_texts import span
from streamd.roles import RANK, rank_names
from streamd.settings.loading import Settings, schema_of
from streamd.settings.paths import roles_here
from streamd.telemetry.heartbeat import (
    REFUSED_STATE,
    STALLED_SECONDS,
    UNSEEN_SECONDS,
    Beat,
    read_beats,
)

NUMBERS = re.compile(r"\d+")


def positions(settings: Settings) -> str:
    """Check that Kafka still has the records that ingest reads next, in the topics that it read
    before. Returns: `Doubts` if ingest skips lost records."""
    from streamd.eventlog.recovery import last_state
    from streamd.ingest.kafka.client import asking_about_topics
    from streamd.ingest.kafka.consumer import KafkaSource, new_topics
    from streamd.ingest.kafka.topic_watch import describe

    if "ingest" not in roles_here(settings):
        return "another machine reads Kafka"
    if not (settings.data_dir / "journal").is_dir():
        return "there is no log yet"
    stored = last_state(settings.data_dir, schema_of(settings)).progress
    if not stored.positions:
        return "the log has no record of Kafka yet"
    try:
        with asking_about_topics(settings.kafka) as admin:
            topics = describe(admin, settings.kafka.topics)
    except KafkaError:
        return "not compared: Kafka does not answer"
    if topics.missing:
        return f"not compared: Kafka has no topic {', '.join(topics.missing)}"

    # Another cluster is an error in any case; lost records are one unless ingest skips them.
    new_topics(topics, stored)
    source = KafkaSource(
        settings.kafka, settings.ingest.model_copy(update={"on_data_loss": "fail"})
    )
    try:
        source.discover()
        source.begin(stored)
    except DataLossError as error:
        if settings.ingest.on_data_loss == "fail":
            raise
        return Doubts(f"{error.problem} Ingest skips the lost records.")
    finally:
        source.close()
    return "Kafka has the records after those of the log"


def topics_read(settings: Settings) -> Collection[str]:
    """The topics with records in the log; none if the log cannot be read."""
    from streamd.eventlog.recovery import last_state

    if not (settings.data_dir / "journal").is_dir():
        return ()
    try:
        return last_state(settings.data_dir, schema_of(settings)).progress.positions
    except StreamdError:
        return ()


def roles(settings: Settings) -> str:
    """List all roles that ever wrote here, with the part of the log that each one holds. Raises:
    StreamdError for a process that is stopped or stuck."""
    from streamd.eventlog.upkeep.holds import read_holds

    holds, lines = read_holds(settings.data_dir), []
    beats = {beat.name: beat for beat in read_beats(settings.data_dir)}
    for newest in beats.values():
        silent = time.time() - newest.heartbeat_ns / 1e9
        if newest.exists and (silent >= UNSEEN_SECONDS or not newest.alive):
            raise StreamdError(
                f"{newest.name} is stopped or stuck: its last heartbeat is {span(silent)} old.",
                f"read its log; `streamd run` kills and restarts it after {span(STALLED_SECONDS)}.",
            )
    for name in sorted({*holds, *beats}):
        beat = beats.get(name)
        runs = beat.state if beat is not None and _shows_state(beat) else "does not run"
        holding = f", holds the log from event {holds[name].edge:,}" if name in holds else ""
        lines.append(f"{name}: {runs}{holding}")
    text = "; ".join(lines) or "none has run here"
    # The check of troubles has the reason of a refusal.
    return Doubts(text) if any(b.state == REFUSED_STATE for b in beats.values()) else text


def _shows_state(beat: Beat) -> bool:
    return beat.alive or beat.state == REFUSED_STATE


def troubles(settings: Settings) -> str:
    """Check that the status page of this machine shows no trouble. Returns: `Doubts` if all of them
    may end by themselves. Raises: StreamdError for one that is red on the page."""
    beats = read_beats(settings.data_dir)
    is_running = any(beat.alive for beat in beats)
    found = _of_servers(beats) or _of_heartbeats(settings, beats)
    if not found:
        return "none" if is_running else "none; no role runs here"
    seen = "; ".join(text.rstrip(".") for text, _ in found)

    # The next start reads other settings, or a topic that was mended: `positions` checks them.
    if is_running and any(is_bad for _, is_bad in found):
        raise StreamdError(seen)
    return Doubts(seen)


def _of_servers(beats: Sequence[Beat]) -> list[tuple[str, bool]]:
    """The troubles on the pages of the servers that run: text, and whether it is red."""
    found: dict[str, tuple[str, bool]] = {}
    for beat in beats:
        for one in beat.detail.get("troubles", ()) if beat.alive else ():
            # Two servers measure the same durations at other moments.
            found.setdefault(NUMBERS.sub("", one["text"]), (one["text"], one["is_bad"]))
    return sorted(found.values(), key=lambda one: not one[1])


def _of_heartbeats(settings: Settings, beats: Sequence[Beat]) -> list[tuple[str, bool]]:
    """The troubles that a page would show, as far as heartbeats have them: text, and whether it is
    red. Without a role that runs, these are the refusals alone."""
    from streamd.server.page.troubles import MachineFacts, find_troubles, is_expected

    here, workers = roles_here(settings), settings.server.workers
    # Roles that were stopped together are no trouble.
    if not any(beat.alive for beat in beats):
        beats = [beat for beat in beats if beat.state == REFUSED_STATE]
    # Ranks of an earlier, larger group are none either.
    num_ranks = max((int(b.detail.get("ranks", 0)) for b in beats if b.name == "train"), default=0)
    ranks = rank_names(num_ranks or settings.training.ranks)
    facts = MachineFacts(
        now=time.time(),
        up_seconds=0.0,
        broker=settings.kafka.bootstrap_servers,
        beats={
            beat.name: beat
            for beat in beats
            if (beat.name in ranks or not beat.name.startswith(RANK))
            and is_expected(beat.name, beat, here, workers)
        },
        version="",
        next_version=None,
        memory_behind=0,
        log_behind=0,
        no_progress_seconds=None,
        refusals=None,
    )
    return [(one.text, one.is_bad) for one in find_troubles(facts)]
