"""Joins topics to a history that was imported, without an event twice or a gap."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamd.clock import parse_time_us, utc
from streamd.decode.decoder import make_decoder
from streamd.errors import SettingsError, StreamdError
from streamd.eventlog.reader import LogReader
from streamd.events import Position, Progress, empty_batch
from streamd.exchange.warm_start.import_mark import ImportMark
from streamd.exchange.warm_start.seam import Seam, SeamReader
from streamd.exchange.warm_start.seam_records import SeamTopics, Zone, read_offsets_file
from streamd.ingest.event_log import Log
from streamd.number_texts import count_noun
from streamd.settings.loading import Settings

GAP_HINT = (
    "add these events to the history and import it into a new data_dir, name an earlier --at, or "
    "accept the gap: --accept-gap."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Then:
    """The topics after a history.

    at: a file of offsets, or a time as text up to which the history has the events; "" for the time
    of its newest event. seam_seconds: before and after that time in which each event is compared.
    accept_gap: whether events may be missing.
    """

    topics: tuple[str, ...]
    at: str = ""
    seam_seconds: float = 3600.0
    accept_gap: bool = False

    def check(self, settings: Settings) -> None:
        """Check all that can be checked without a log. Raises: SettingsError, KafkaError."""
        # Ingest reads only the topics of the settings.
        unread = sorted(set(self.topics) - set(settings.kafka.topics))
        if unread:
            raise SettingsError(
                f"Ingest would not read {unread[0]}.", "add it to kafka.topics or sources."
            )
        if settings.ingest.shard:
            raise SettingsError("Shards cannot continue one history.", "unset ingest.shard.")
        if self.is_file:
            read_offsets_file(Path(self.at))
        elif self.at:
            parse_time_us(self.at, "--at")
        # The broker must know the topics.
        with SeamTopics(settings.kafka, self.topics):
            pass

    @property
    def is_file(self) -> bool:
        """Whether offsets are given."""
        return self.at.endswith(".json")


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinedTopics:
    """The outcome of a comparison. num_events: those that were compared one by one; num_in_history:
    how many of them the history has. doubts: sentences on late events and accepted gaps."""

    num_events: int
    num_in_history: int
    positions: dict[str, dict[int, Position]]
    doubts: tuple[str, ...]

    @property
    def words(self) -> str:
        parts = ", ".join(
            f"{topic}-{number} from offset {position.offset}"
            for topic, parts in self.positions.items()
            for number, position in sorted(parts.items())
        )
        return (
            f"{count_noun(self.num_in_history, 'event')} of {self.num_events:,} at the seam are in "
            f"the history; {parts}"
        )


def check_new(log: Log, then: Then) -> None:
    """Check that a log reads none of the topics yet. Raises: SettingsError."""
    for topic in then.topics:
        if log.progress.positions.get(topic):
            raise SettingsError(
                f"The log has events of {topic} already.", "import into a new data_dir."
            )


def join_topics(
    settings: Settings,
    log: Log,
    mark: ImportMark,
    then: Then,
    now_us: int,
    progress: Callable[[int], None] = lambda _: None,
) -> JoinedTopics:
    """Find the positions at which topics continue a log, and commit them:

    1. Determine the zone of each partition in which the history may end.
    2. Compare the zone's events one by one with the log, and some records around it.
    3. Refuse gaps, and overlaps that may be longer than the zone.
    4. Commit the positions. Events in the zone that the log has are skipped by ingest.

    A kill before step 4 leaves the log without positions; the same command repeats all steps.

    Args: progress: called with the number of events compared so far. Raises: StreamdError.
    """
    # 1. The zones.
    with SeamTopics(settings.kafka, then.topics) as topics:
        zones = _zones(topics, then, log.watermark)

        # 2. Compare.
        reader = LogReader.open(settings.data_dir, keep_keys=False)
        assert reader is not None
        decoder = make_decoder(settings, log.schema)
        compare = SeamReader(log, reader, decoder, topics.partitions, now_us)
        seams = [Seam(zone) for zone in zones]
        for number, seam in enumerate(seams):
            for records in topics.read(seam.zone):
                compare.compare(number, seam, records)
                progress(sum(one.num_events for one in seams))

        # 3. Refuse.
        _refuse_overlaps(seams, then)
        gaps = [*_find_gaps(seams, log.watermark), *_lost_begins(seams, then)]
        if gaps and not then.accept_gap:
            raise StreamdError(gaps[0], GAP_HINT)

        # 4. Commit.
        positions: dict[str, dict[int, Position]] = {}
        for seam in seams:
            tp = seam.zone.partition
            positions.setdefault(tp.topic, {})[tp.partition] = seam.position()
        joined = Progress(topics.cluster_id, dict(topics.topic_ids), positions)
    log.commit(empty_batch(log.schema), mark.end(joined), log.watermark)
    return JoinedTopics(
        num_events=sum(seam.num_events for seam in seams),
        num_in_history=sum(seam.num_in_history for seam in seams),
        positions=positions,
        doubts=(*gaps, *_late(seams)),
    )


def _zones(topics: SeamTopics, then: Then, newest_us: int) -> list[Zone]:
    """The zones around the end of the history. newest_us: time of its newest event. Raises:
    SettingsError, KafkaError."""
    if then.is_file:
        return topics.zones_of(read_offsets_file(Path(then.at)))
    at = parse_time_us(then.at, "--at") if then.at else newest_us
    return topics.zones_at(at, then.seam_seconds)


def _refuse_overlaps(seams: Sequence[Seam], then: Then) -> None:
    """Raises: StreamdError if the history continues after the zones."""
    num = sum(seam.num_overlaps for seam in seams)
    if not num:
        return
    # The user's next step depends on the kind of seam.
    first = next(seam.examples["overlap"] for seam in seams if seam.num_overlaps)
    if then.is_file:
        text = f"{count_noun(num, 'event')} at or after the offsets would be in the log twice"
        action = "correct them, or name a time instead: then each event around it is compared."
    else:
        text = f"{count_noun(num, 'event')} after the seam would be in the log twice"
        action = f"compare more events: --seam-seconds above {then.seam_seconds:g}."
    raise StreamdError(f"{text}, such as {first}.", f"{action} No row is imported again.")


def _find_gaps(seams: Sequence[Seam], newest_us: int) -> list[str]:
    """Sentences on events that the history lacks before the zones, and on topics of which it has
    none at all."""
    out = []
    if num := sum(seam.num_gaps for seam in seams):
        first = next(seam.examples["gap"] for seam in seams if seam.num_gaps)
        out.append(
            f"The history lacks {count_noun(num, 'event')} before the seam, such as {first}."
        )
    late = sum(seam.num_late for seam in seams)
    if late and not any(seam.num_in_history for seam in seams):
        first = next(seam.examples["late"] for seam in seams if seam.num_late)
        out.append(
            f"The history until {utc(newest_us)} has none of {count_noun(late, 'earlier event')} "
            f"in the topics, such as {first}: keys, times or topics differ."
        )
    return out


def _lost_begins(seams: Sequence[Seam], then: Then) -> list[str]:
    """Sentences on partitions that begin after the end of the history."""
    out = []
    for seam in seams:
        zone = seam.zone
        # Given offsets name the first record that is needed. Around a time, a partition begins
        # within the history if its first events are known.
        if then.is_file:
            is_dropped = zone.wanted < zone.oldest
        else:
            is_joined = seam.num_in_history or seam.num_before > seam.num_gaps
            is_dropped = zone.oldest > 0 and zone.first == zone.oldest and not is_joined
        if is_dropped:
            out.append(
                f"{zone.name} begins at offset {zone.oldest}, so that records after the history "
                "may have been dropped before they were read."
            )
    return out


def _late(seams: Sequence[Seam]) -> list[str]:
    """A sentence on late events, if there are any."""
    num = sum(seam.num_late for seam in seams)
    # Without any known event, they are a gap.
    if not num or not any(seam.num_in_history for seam in seams):
        return []
    first = next(seam.examples["late"] for seam in seams if seam.num_late)
    return [
        f"{count_noun(num, 'event')} of the topics are older than the history's end but not in it, "
        f"such as {first}: ingest reads them as late events"
    ]
