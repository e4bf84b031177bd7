"""The commands `streamd deadletter list` and `streamd deadletter replay`."""

import difflib
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from streamd.cli.options import ConfigOption, DataOption, out, printable, settings_of
from streamd.cli.table_output import print_records
from streamd.clock import SystemClock, utc
from streamd.errors import SettingsError
from streamd.number_texts import count_noun, span
from streamd.settings.loading import Settings

if TYPE_CHECKING:
    from streamd.ingest.dead_letters.outlook import LogView, Outlook
    from streamd.ingest.dead_letters.replay import Plan

letters_app = typer.Typer(help="Dead letters: list, replay.", no_args_is_help=True)


def _check_reasons(reasons: list[str] | None) -> list[str] | None:
    """Check reasons given by the user. Raises: SettingsError for an unknown one, listing those
    known."""
    from streamd.ingest.dead_letters.sinks import REASONS

    for reason in reasons or ():
        if reason not in REASONS:
            close = difflib.get_close_matches(reason, REASONS, 1, 0.5)
            near = f"; did you mean {close[0]!r}?" if close else "."
            known = ", ".join(REASONS)
            raise SettingsError(
                f"No dead letter has the reason {reason!r}{near}", f"give one of {known}."
            )
    return reasons


ReasonOption = Annotated[
    list[str] | None,
    typer.Option(help="Only of this reason; may be given several times.", callback=_check_reasons),
]
TopicOption = Annotated[
    list[str] | None, typer.Option(help="Only of this topic; may be given several times.")
]


@letters_app.command("list")
def deadletter_list(
    reason: ReasonOption = None,
    topic: TopicOption = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Number of dead letters to show, the newest.")
    ] = 20,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Show the newest dead letters, mark those that were sent again, and count all by reason."""
    from streamd.ingest.dead_letters.replay import read_letters, read_sent_names
    from streamd.ingest.dead_letters.value_texts import value_text

    # Read all letters once: count them, and keep the table's cells of the newest ones.
    settings = settings_of(config, data_dir)
    sent = read_sent_names(settings)
    counts: Counter[str] = Counter()
    found: set[str] = set()
    num_sent = 0
    newest: deque[tuple[str, ...]] = deque(maxlen=limit)
    for stored in read_letters(settings):
        letter = stored.letter
        found.add(letter.topic)
        if (reason and letter.reason not in reason) or (topic and letter.topic not in topic):
            continue
        is_sent = stored.name in sent
        num_sent += is_sent
        counts[letter.reason] += 1
        newest.append(
            (
                f"{letter.topic}/{letter.partition}",
                f"{letter.offset}",
                f"{letter.index}",
                "yes" if is_sent else "",
                letter.reason,
                letter.error,
                value_text(letter.value, letter.reason, letter.content_type, 80),
            )
        )

    # Values come from outside, so control characters in them are escaped.
    head = ("partition", "offset", "index", "sent again", "reason", "error", "value")
    rows = [tuple(map(printable, row)) for row in newest]
    if rows:
        print_records(out, head, rows, num_long=2)
    summary = ", ".join(f"{printable(r)} {n:,}" for r, n in counts.most_common())
    if num_sent:
        summary += f"; {num_sent:,} sent again"
    absent = [name for name in topic or () if name not in found]
    if summary or not absent:
        out.print(summary or "no dead letters", markup=False)
    _print_absent_topics(topic, found)


@letters_app.command("replay")
def deadletter_replay(
    reason: ReasonOption = None,
    topic: TopicOption = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also send letters that were sent again before.")
    ] = False,
    in_time: Annotated[
        bool, typer.Option("--in-time", help="Only send letters that are not late.")
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Send without asking, also letters that are late or will be refused again.",
        ),
    ] = False,
    config: ConfigOption = None,
    data_dir: DataOption = None,
) -> None:
    """Send dead letters to the topics they came from, each once, after the cause is fixed. If some
    are late or will be refused again, explain how ingest will handle them, and ask."""
    from streamd.ingest.dead_letters.outlook import outlook
    from streamd.ingest.dead_letters.replay import plan, send

    # Ingest's handling of a letter depends on the log.
    settings = settings_of(config, data_dir)
    chosen = plan(settings, reason or (), topic or (), again)
    log = _view_log(settings)
    found = outlook(settings, chosen.letters, log, SystemClock().now_us())
    watermark_us = 0 if log is None else log.watermark_us
    for line in _late_lines(settings, found, len(chosen.letters), watermark_us):
        out.print(line, soft_wrap=True, markup=False)

    # The lines and the question that follow are about the letters that are sent.
    sent = set(range(len(chosen.letters)))
    doubtful = found.late | found.unknown
    if in_time:
        sent -= doubtful
        if doubtful:
            out.print(f"--in-time leaves out {_letters(len(doubtful))}.", markup=False)
        kept = [stored for i, stored in enumerate(chosen.letters) if i in sent]
        chosen = replace(chosen, letters=kept)
    if sent:
        doubts = _doubts(settings, len(found.refused & sent), len(sent), log is not None)
        for line in doubts:
            out.print(line, soft_wrap=True, markup=False)
        # Late letters, and letters that will be refused, are sent only with the user's consent.
        if (doubts or doubtful & sent) and not yes:
            others = "" if in_time else ", --in-time leaves out late ones"
            question = f"Send {_letters(len(sent))}? (--yes sends without asking{others})"
            typer.confirm(question, abort=True)
    send(settings, chosen)

    left_out = f"{len(doubtful):,} left out as late or perhaps late, " if in_time else ""
    _print_counts(settings, chosen, left_out)
    _print_absent_topics(topic, chosen.topics)


def _print_counts(settings: Settings, chosen: "Plan", left_out: str) -> None:
    """Print how many letters were sent, and why others were not. Each letter is in exactly one of
    these counts, so that none is dropped silently."""
    out.print(
        f"{len(chosen.letters):,} sent, {left_out}{chosen.before:,} were sent before, "
        f"{chosen.broken:,} cannot be sent (cut off, or not the event itself), {chosen.foreign:,} "
        f"name a topic that is not in kafka.topics ({', '.join(settings.kafka.topics)})",
        soft_wrap=True,
        markup=False,
    )


def _view_log(settings: Settings) -> "LogView | None":
    """The state of the log that decides which letters ingest accepts; None without a log."""
    import numpy as np

    from streamd.eventlog.lookup import EdgeLookup
    from streamd.eventlog.reader import DeletesReader
    from streamd.events import Int64, Key
    from streamd.ingest.dead_letters.outlook import LogView
    from streamd.store.erasure import rows_of

    log = DeletesReader.open(settings.data_dir, keep_keys=False)
    if log is None:
        return None
    edges = EdgeLookup(settings.data_dir)

    # Only the keys of the letters are looked up: the log may have millions.
    def ids_of(keys: Collection[Key]) -> dict[Key, int]:
        rows = rows_of(log, keys)
        gone_R = log.deletions.is_gone(np.array([row.node for row in rows], np.int64))
        return {row.key: row.node for row, gone in zip(rows, gone_R, strict=True) if not gone}

    def count_edges(src_X: Int64, dst_X: Int64, time_X: Int64, set_X: Int64) -> Int64:
        return edges.count(log.state, src_X, dst_X, time_X, set_X)

    return LogView(
        watermark_us=log.watermark,
        num_nodes=log.num_nodes,
        ids_of=ids_of,
        count_edges=count_edges,
    )


def _doubts(settings: Settings, num_refused: int, num_sent: int, has_log: bool) -> list[str]:
    """Describe in lines of text why letters that are sent may not get into the log, apart from late
    ones."""
    lines = []
    if num_refused:
        lines.append(f"{num_refused:,} of {_letters(num_sent)} to send will be refused again.")
    if not has_log:
        lines.append(f"{settings.data_dir} holds no log, so it is unknown which are late.")
    return lines


def _letters(number: int) -> str:
    return count_noun(number, "dead letter")


def _print_absent_topics(asked: Collection[str] | None, found: Collection[str]) -> None:
    """Name the topics on the command line without letters, which may be mistyped, and those with
    letters."""
    absent = [topic for topic in asked or () if topic not in found]
    # It is no error: a topic without faults has no letters.
    if absent:
        others = f"there are some of {', '.join(sorted(found))}" if found else "there are none"
        out.print(
            printable(f"no dead letters of topic {', '.join(absent)}; {others}"),
            soft_wrap=True,
            markup=False,
        )


def _late_lines(settings: Settings, found: "Outlook", count: int, watermark_us: int) -> list[str]:
    """Describe in lines of text how ingest will handle late letters. count: number of letters."""
    lines = []
    if found.late:
        fate = (
            "gets that time instead of its own; a window of mostly such events is not learned"
            if settings.ingest.late_policy == "clamp"
            else "becomes a dead letter again (late)"
        )
        lines.append(
            f"{len(found.late):,} of {_letters(count)} {'is' if len(found.late) == 1 else 'are'} "
            f"late: up to {span(found.behind_us / 1e6)} before {utc(watermark_us)}, the time "
            f"that the log has reached. With ingest.late_policy: {settings.ingest.late_policy} a "
            f"late event {fate}."
        )
    if found.unknown:
        lines.append(
            f"{len(found.unknown):,} of {_letters(count)} may be late: the schema registry does "
            "not answer."
        )
    return lines
