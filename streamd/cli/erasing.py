"""Erases nodes for a command: deletes them, makes the deletes physical, and proves it."""

import time
from collections.abc import Collection, Sequence
from functools import partial

from streamd.cli.compaction import compact_log, reason_to_wait
from streamd.cli.proof import bytes_not_searched, print_finding, print_snapshots, prove_erasure
from streamd.errors import SettingsError, StreamdError
from streamd.eventlog.upkeep.holds import asked_to_compact
from streamd.events import Key
from streamd.ingest.dead_letters.sinks import make_purge
from streamd.ingest.delete_events import SentDelete, send_deletes, topic_for_deletes
from streamd.number_texts import count_noun
from streamd.schema import Schema
from streamd.settings.loading import Settings
from streamd.store.compaction_waits import has_store_to_clean, store_wait_reason
from streamd.store.deleted_keys import read_keys
from streamd.store.erasure import (
    KEY_TYPES,
    Erasure,
    candidates,
    choose_key,
    key_text,
    log_role_of,
    schema_of_log,
)
from streamd.store.erasure_requests import ErasureRequests
from streamd.telemetry.heartbeat import read_beat
from streamd.telemetry.progress import ProgressLine

POLL_SECONDS = 0.1
"""Pause between two reads of the log while it lacks deletes."""
PURGE_WAITS = "dead letters may still hold a key: waiting for another process that removes some"


def erase_nodes(
    settings: Settings,
    given: Sequence[str],
    node_set: str | None,
    key_type: str | None,
    topic: str,
    wait_seconds: float,
    line: ProgressLine,
) -> tuple[bool, str]:
    """Erase nodes. A call after one that failed or timed out continues.

    1. Delete: send a delete of each live node, and wait until the log has all of them. Compaction
       removes only the deletes that the log has when it is requested.
    2. Compact: make the deletes physical, also in store and changelog. Before that, the proof would
       still find the keys.
    3. Remove the local dead letters that contain the keys. Compaction removes only those of keys
       that the log still holds; an event with an erased key may have been refused since.
    4. Prove: search for the keys. This also finds a key that came back with new events.

    Args: given: keys as text, or @FILE; node_set, key_type: narrow the keys that a text names;
    topic: for the deletes, "" for the first of streamd's own events; wait_seconds: for the waits of
    steps 1 and 2.
    Returns: whether nothing is left, and a text for the user. Raises: StreamdError.
    """
    if key_type is not None and key_type not in KEY_TYPES:
        raise SettingsError(f"--key-type is {key_type!r}.", f"use {' or '.join(KEY_TYPES)}.")
    schema = schema_of_log(settings.data_dir)
    texts = read_keys(given)
    of_text = [candidates(text, schema, node_set, key_type) for text in texts]
    deadline = time.monotonic() + wait_seconds

    # 1. Delete. A node that is deleted already needs only compaction.
    erasure = Erasure.open(settings.data_dir, [key for some in of_text for key in some])
    of_text = _resolve(settings, texts, of_text, erasure, schema, line)
    _delete(settings, erasure, schema, topic, deadline, line)

    # 2. Make the deletes physical, also in store and changelog.
    done, text = compact_log(settings, deadline, line)
    if not done:
        return False, f"{text}. Run the same command again to wait for it and prove it."

    # 3. Remove dead letters.
    num_letters = purge_letters(settings, {key for some in of_text for key in some}, deadline)
    if num_letters is None:
        return False, f"{text}; {PURGE_WAITS}. Run the same command again."
    if num_letters:
        text += f"; removed {count_noun(num_letters, 'dead letter')}"

    # 4. Prove it. This also finds a key that came back with new events.
    found, summary = prove_erasure(settings, texts, of_text, line, partial(print_finding, line))
    held = print_snapshots(settings.data_dir)
    text = f"{text}; {summary}{held}"
    is_gone = not found and not held
    return is_gone, f"{text}. {copies_elsewhere(settings, texts)}" if is_gone else text


def purge_letters(settings: Settings, keys: Collection[Key], deadline: float) -> int | None:
    """Remove the local dead letters that contain a key. Returns: their number; None if another
    process is still removing some at the deadline, in monotonic seconds. Raises: DiskError."""
    # Ingest may run: it continues in the files that replace its own.
    purge = make_purge(settings)
    for _ in purge.remove(keys):
        if purge.is_waiting:
            if time.monotonic() >= deadline:
                return None
            time.sleep(POLL_SECONDS)
    return purge.num_removed


def _resolve(
    settings: Settings,
    texts: Sequence[str],
    of_text: Sequence[Sequence[Key]],
    erasure: Erasure,
    schema: Schema,
    line: ProgressLine,
) -> list[list[Key]]:
    """Find the key of each text, or all keys that it may name if the log holds none of them.
    Raises: SettingsError if the log holds several of them."""
    resolved = []
    for text, some in zip(texts, of_text, strict=True):
        rows = [row for row in erasure.rows if row.key in set(some)]
        key = choose_key(text, rows, schema)
        if key is None:
            line.note(f"The log holds no key {text}: {_absence_reason(settings)}.")
        resolved.append(list(some) if key is None else [key])
    return resolved


def _absence_reason(settings: Settings) -> str:
    """Why the log may not hold a key that is to be erased."""
    is_open = asked_to_compact(settings.data_dir) is not None or (
        has_store_to_clean(settings.data_dir, settings.log) and store_wait_reason(settings.data_dir)
    )
    if is_open:
        # The keys go first; segments and the files of roles follow.
        return "it never did, or an erasure that is still open has removed it; this continues it"
    return "it never did, or the key is erased already"


def _delete(
    settings: Settings,
    erasure: Erasure,
    schema: Schema,
    topic: str,
    deadline: float,
    line: ProgressLine,
) -> None:
    """Send the deletes of nodes that are live in the log, and wait until the log has the deletes.

    deadline: monotonic seconds. Raises: SettingsError, KafkaError; StreamdError if a delete is not
    in the log at the deadline, or ingest refused it.
    """
    live = erasure.live()
    if not live:
        return
    role = log_role_of(settings.log.member, settings.log.name)
    target = topic_for_deletes(settings.kafka, settings.sources, topic)
    # Without a running role, a delete would only wait in Kafka.
    beat = read_beat(settings.data_dir, role)
    if beat is None or not beat.alive:
        raise StreamdError(
            f"No {role} runs on {settings.data_dir}, so a delete would not reach the log.",
            "start `streamd run` on it, or set --data-dir; then run this command again.",
        )
    line.note(f"deletes go to topic {target.name}: {', '.join(key_text(k, schema) for k in live)}")
    sent = send_deletes(settings.kafka, target, live, schema.node_set_names)
    _wait_for_deletes(erasure, sent, role, deadline, line)


def _wait_for_deletes(
    erasure: Erasure, sent: Sequence[SentDelete], role: str, deadline: float, line: ProgressLine
) -> None:
    """Wait until all deletes are in the log. Raises: StreamdError."""
    what = f"waiting for {role} to take the deletes"
    while live := set(erasure.live()):
        missing = [one for one in sent if one.key in live]
        # Check again after the position was read: the delete may have arrived in between.
        is_refused = any(map(erasure.is_read, missing)) and live == set(erasure.live())
        if is_refused or time.monotonic() >= deadline:
            raise StreamdError(
                f"The log lacks {len(live):,} of {count_noun(len(sent), 'delete')}: "
                f"{erasure.wait_reason(missing, role)}.",
                "correct that, then run this command again; before, it would send a second delete.",
            )
        done = len(sent) - len(live)
        line.of(what, done, len(sent), "deletes")
        time.sleep(POLL_SECONDS)
    line.of(what, len(sent), len(sent), "deletes")


def open_erasures(settings: Settings) -> list[str]:
    """A sentence on each reason why data that was deleted may still be in files here, although no
    key is found any more: keys go first, segments and the files of roles follow. Raises:
    CorruptionError."""
    reasons = []
    if (request := asked_to_compact(settings.data_dir)) is not None:
        wait = reason_to_wait(settings, request)
        reasons.append(f"an erasure is still open, so not all deleted data is gone yet: {wait}")
    has_store = has_store_to_clean(settings.data_dir, settings.log)
    if has_store and (reason := store_wait_reason(settings.data_dir)):
        reasons.append(f"store and changelog may still hold deleted data: waiting for {reason}")
    if num_open := ErasureRequests(settings.data_dir).num_open:
        has = "has" if num_open == 1 else "have"
        requests = f"{count_noun(num_open, 'request')} of POST /v1/erase"
        reasons.append(f"{requests} {has} not ended yet")
    return reasons


def copies_elsewhere(settings: Settings, texts: Sequence[str]) -> str:
    """Name the copies of events that streamd does not manage, which the operator must erase, and
    the files that a proof did not search for some keys. texts: the keys."""
    # Letters in a topic have a remedy of their own.
    server = settings.server
    own = (server.score_topic, server.alarm_topic, settings.trials.topic)
    topics = [*settings.kafka.topics, *filter(None, own)]
    return (
        f"Not searched: records in Kafka ({', '.join(topics)}), which their retention "
        f"removes;{_letters_elsewhere(settings)} backups and snapshots elsewhere; other machines' "
        "directories, where the same command looks for the keys"
        f"{bytes_not_searched(texts)}."
    )


def _letters_elsewhere(settings: Settings) -> str:
    """Name the topic of dead letters and the commands that remove its records; "" without one."""
    topic = settings.ingest.dead_letter_topic
    if not topic:
        return ""
    broker = f"--bootstrap-server {settings.kafka.bootstrap_servers}"
    return (
        f" dead letters in topic {topic}, from which Kafka removes the oldest records only, by "
        f"`kafka-delete-records.sh {broker} --offset-json-file FILE` or by their age, "
        f"`kafka-configs.sh {broker} --alter --topic {topic} --add-config retention.ms=MS`;"
    )
