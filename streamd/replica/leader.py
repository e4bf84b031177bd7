"""Makes a member of a log on many machines its leader: it brings the directory and the changelog to
one end, and publishes from there on."""

from collections.abc import Callable
from pathlib import Path

from streamd.errors import ChangelogError, FencedError
from streamd.replica.changelog import ChangelogProducer, ChangelogReader, OutOfRange
from streamd.replica.follower import Follower
from streamd.replica.publisher import TERM, ChangelogPublisher
from streamd.segments.changelog_position import ChangelogPosition
from streamd.segments.journal import LogState, decode_line, journal_files
from streamd.segments.take_back import lines_after
from streamd.storage import DISK, Disk

READ_SECONDS = 0.2


def lead(
    data_dir: Path,
    producer: ChangelogProducer,
    reader: ChangelogReader,
    disk: Disk = DISK,
    waiting: Callable[[], None] = lambda: None,
) -> ChangelogPublisher:
    """Bring a directory and the changelog to one end, so that every durable line is acknowledged.

    Args: reader: from here on the publisher's; waiting: called while something is awaited.
    Returns: the publisher of what follows. Raises: FencedError where another process leads,
    ChangelogError, KafkaError, and those of `LogApplier`.
    """

    def republish(agreed: ChangelogPosition) -> ChangelogPosition:
        _check_term(agreed.term)
        # From there on whatever others append is looked at.
        begin = ChangelogPosition(TERM, agreed.seq, agreed.offset)
        publisher = ChangelogPublisher(data_dir, producer, reader, begin, waiting)
        return _published_again(data_dir, publisher, agreed)

    try:
        follower = Follower(data_dir, reader, disk, republish)
        try:
            _, end = reader.bounds()
            while reader.position < end:
                follower.step(READ_SECONDS)
                waiting()
            follower.check_none_missing()
            _check_term(follower.term)
            position = follower.position
        finally:
            follower.close()
    except OutOfRange as error:
        raise ChangelogError(
            f"{data_dir} is older than the changelog: {error}.",
            "move its contents away and run `streamd restore` with log.store, then start it again.",
        ) from None
    start = ChangelogPosition(TERM, position.seq, end)
    return ChangelogPublisher(data_dir, producer, reader, start, waiting)


def _check_term(term: int) -> None:
    """Check that nobody leads in a higher term: followers would pass over all that came from here,
    without a word. Raises: FencedError."""
    if term > TERM:
        raise FencedError(
            f"The changelog is led in term {term}.", "set log.member to replica here."
        )


def _published_again(
    data_dir: Path, publisher: ChangelogPublisher, agreed: ChangelogPosition
) -> ChangelogPosition:
    """Publish the lines of the journal behind a commit, and wait until all are acknowledged."""
    state = None
    newest = agreed.seq
    for seq, line in lines_after(data_dir, agreed.seq):
        fields = decode_line(line)
        assert fields is not None, "lines are whole"
        state = state or _state_at(data_dir, seq - 1)
        publisher.publish(state, fields, line)
        state = state.after(fields)
        newest = seq
    while publisher.acknowledged().seq < newest:
        publisher.wait()
    return agreed if newest == agreed.seq else publisher.acknowledged()


def _state_at(data_dir: Path, seq: int) -> LogState:
    """The log's state after a commit that is in its newest journal files."""
    for path in reversed(journal_files(data_dir / "journal")):
        with path.open("rb") as file:
            checkpoint = decode_line(file.readline())
            if checkpoint is None or checkpoint["checkpoint"] > seq:
                continue
            state = LogState.restored(checkpoint)
            while state.seq < seq:
                fields = decode_line(file.readline())
                assert fields is not None, "lines up to the commit are whole"
                state = state.after(fields)
            return state
    raise AssertionError(f"no journal file begins before commit {seq + 1}")
