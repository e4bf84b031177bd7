"""Proves that erased keys are gone: searches key tables and dead letters for typed keys, and
everything that streamd writes for their bytes."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path

from streamd.cli.options import err
from streamd.clock import utc
from streamd.errors import StoreError
from streamd.eventlog.layout import KEYS
from streamd.eventlog.upkeep.holds import read_compacted
from streamd.eventlog.upkeep.snapshot_leases import read_leases
from streamd.events import Key
from streamd.ingest.dead_letters.purge import FOLDER as LETTERS
from streamd.number_texts import count_noun, times
from streamd.settings.loading import Settings
from streamd.store.changelog import changelog_topic, models_topic
from streamd.store.deleted_keys import DeletedSearch, Found, KafkaTopic
from streamd.store.erasure import schema_of_log
from streamd.store.erasure_requests import FOLDER as ERASURES
from streamd.store.objects import Store
from streamd.store.search import SHORT_BYTES, is_found_by_chance
from streamd.store.typed_search import TypedSearch
from streamd.table.export.registered import FOLDER, Registered, read_registered
from streamd.telemetry.progress import ProgressLine

REMEDIES: tuple[tuple[Callable[[str], bool], str], ...] = (
    (
        lambda where: where.split(" ")[0] == KEYS,
        "The key table: a node came back with new events, or was never deleted; `streamd erase` "
        "deletes it",
    ),
    (lambda where: where.startswith(f"{LETTERS}/"), "Dead letters: `streamd erase` removes them"),
    (
        lambda where: where.startswith(f"{ERASURES}/"),
        "A request for erasure: it drops its keys when it ends",
    ),
    (
        lambda where: "in the table exported to" in where,
        "An exported table: remove the files with its rows, or replace them under their names",
    ),
    (
        lambda where: True,
        "Other files, objects and records: run `streamd compact`, which waits until they are free "
        "of deleted keys; remove a file that is not streamd's",
    ),
)
"""Whether a location is of a kind, and how to remove a key from there; the first that fits."""


def prove_erasure(
    settings: Settings,
    texts: Sequence[str],
    keys: Sequence[Sequence[Key]],
    line: ProgressLine,
    on_found: Callable[[Found], None],
    skip: str = "",
) -> tuple[int, str]:
    """Look for keys in the data directory, in `log.store`, and in the topics of `log.name`.

    Args: texts: the keys as given; keys: for each text, the typed keys that it may name; on_found:
    called once for each key and file, object, record or table that has it; skip: a folder of the
    data directory that is not searched.
    Returns: the number of findings, and a summary with the remedies. Raises: StoreError,
    KafkaError.
    """
    numbers = {key: number for number, some in enumerate(keys) for key in some}
    prefixes = frozenset(p for source in settings.sources for p in source.prefixes())
    typed = TypedSearch(numbers, prefixes)
    # Any file may contain digits and short texts by chance, so those are searched by type only.
    long = [number for number, text in enumerate(texts) if not is_found_by_chance(text)]
    by_bytes = DeletedSearch([texts[number] for number in long], line.of)

    # A file may have a key many times, and the bytes of a key that was found there by type.
    found: set[tuple[str, int]] = set()
    line.begin("looking keys up by type", "keys")
    exports = read_registered(settings.data_dir)
    for one in chain(
        _find_by_type(settings, typed, numbers),
        _find_in_exports(settings.data_dir, exports, numbers, line),
        (
            one._replace(key=long[one.key])
            for one in (_find_bytes(settings, by_bytes, skip) if long else ())
        ),
    ):
        if (one.where, one.key) not in found:
            found.add((one.where, one.key))
            on_found(one)

    done = by_bytes.searched
    summary = (
        f"{count_noun(len(texts), 'key')} looked up in {count_noun(typed.nodes, 'row')} of the key "
        f"table, {count_noun(typed.letters, 'dead letter')} and "
        f"{count_noun(typed.tables, 'key table')} of the store"
    )
    if exports:
        summary += f", and in {count_noun(len(exports), 'exported table')}"
    if long:
        summary += (
            f", and the bytes of {len(long):,} in {count_noun(done.files, 'file')}, "
            f"{count_noun(done.objects, 'object')} and {count_noun(done.records, 'record')}, "
            f"{count_noun(done.num_bytes, 'byte')}"
        )
    summary += f": found {times(len(found))}"
    return len(found), summary + _remedies({where for where, _ in found})


def bytes_not_searched(texts: Sequence[str]) -> str:
    """The keys of which no bytes are searched, for a list of copies; "" if there are none."""
    count = sum(map(is_found_by_chance, texts))
    if not count:
        return ""
    return (
        f"; the bytes of {count_noun(count, 'key')} in other files, objects and records, since any "
        "of them may contain a number by chance, or a text of fewer than "
        f"{count_noun(SHORT_BYTES, 'byte')}"
    )


def _remedies(found: Collection[str]) -> str:
    """Sentences on how to remove keys that were found; "" without any. found: their locations."""
    left = set(found)
    sentences = ""
    for is_one, remedy in REMEDIES:
        # The last kind is that of all others.
        some = set(filter(is_one, left))
        left -= some
        if some:
            sentences += f". {remedy}"
    return sentences


def _find_by_type(
    settings: Settings, search: TypedSearch, numbers: dict[Key, int]
) -> Iterator[Found]:
    yield from search.in_directory(settings.data_dir)
    if settings.log.store:
        yield from search.in_store(Store(settings.log.store))
    if settings.log.name:
        from streamd.replica.changelog.key_rows import find_in_changelog

        topic = KafkaTopic(settings.kafka, changelog_topic(settings.log.name))
        yield from find_in_changelog(topic.records(), topic.name, numbers)


def _find_in_exports(
    data_dir: Path, exports: Sequence[Registered], numbers: dict[Key, int], line: ProgressLine
) -> Iterator[Found]:
    """Search the tables that `streamd export` wrote. Raises: StreamdError, StoreError."""
    if not exports:
        return
    from streamd.table.export.exported_keys import find_in_export

    schema = schema_of_log(data_dir)
    for one in exports:
        line.begin(f"searching the table exported to {one.to}", "files")
        try:
            yield from find_in_export(one, schema, numbers)
        except StoreError as error:
            raise StoreError(
                error.problem,
                f"make it readable here, or search it yourself and remove its note in "
                f"{data_dir / FOLDER}.",
            ) from None


def _find_bytes(settings: Settings, search: DeletedSearch, skip: str) -> Iterator[Found]:
    log = settings.log
    places = [search.in_files(settings.data_dir, skip)]
    if log.store:
        places.append(search.in_store(Store(log.store)))
    for name in (changelog_topic, models_topic) if log.name else ():
        places.append(search.in_topic(KafkaTopic(settings.kafka, name(log.name))))
    yield from chain.from_iterable(places)


def snapshots_before_compaction(data_dir: Path) -> list[str]:
    """A line for each open snapshot (`streamd.open_log`) that has files as they were before the
    newest compaction."""
    done = read_compacted(data_dir)
    if done is None:
        return []
    return [
        f"found: a snapshot of commit {lease.seq:,} keeps the files from before the compaction at "
        f"commit {done.seq:,} until it is closed, or {utc(int(lease.until * 1e6))}: process "
        f"{lease.process}"
        for lease in read_leases(data_dir, time.time())
        if lease.seq < done.seq
    ]


def print_snapshots(data_dir: Path) -> str:
    """Print the snapshots of other programs that have files from before the newest compaction: such
    files stay on the disk while a program has them mapped. Returns: their number for a summary, ""
    if there are none."""
    lines = snapshots_before_compaction(data_dir)
    for text in lines:
        err.print(text, markup=False, highlight=False, soft_wrap=True)
    kept = "keeps" if len(lines) == 1 else "keep"
    return f"; {count_noun(len(lines), 'snapshot')} {kept} older files" if lines else ""


def print_finding(line: ProgressLine, found: Found) -> None:
    """Print a finding without the key, which must not stay in a terminal's log."""
    line.leave()
    text = f"found: key {found.key + 1} in {found.where}"
    # A table has no bytes to look at.
    if found.at >= 0:
        text += f", byte {found.at:,}"
    err.print(text, markup=False, soft_wrap=True)
