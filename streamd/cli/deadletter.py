"""The commands `streamd deadletter list` and `streamd deadletter replay`."""

import difflib
from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from streamd.cli.options import ConfigOption, DataOption, out, printable, settings_of
from streamd.cli.table_output import print_records
from streamd.clock import SystemClock, utc
from streamd.errors import SettingsError
from streamd.settings.loading import Settings

if TYPE_CHECKING:
    from streamd.ingest.dead_letters.outlook import Outlook

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

    # Read all letters once: count them, and keep the table's cells of the newest ones.
    settings = settings_of(config, data_dir)
    sent = read_sent_names(settings)
    counts: Counter[str] = Counter()
    num_sent = 0
    newest: deque[tuple[str, ...]] = deque(maxlen=limit)
    for stored in read_letters(settings):
        letter = stored.letter
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
                letter.value[:80].decode(errors="backslashreplace"),
            )
        )

    # Values come from outside, so control characters in them are escaped.
    head = ("partition", "offset", "index", "sent again", "reason", "error", "value")
    rows = [tuple(map(printable, row)) for row in newest]
    print_records(out, head, rows, num_long=2)
    summary = ", ".join(f"{printable(r)} {n:,}" for r, n in counts.most_common())
    if num_sent:
        summary += f"; {num_sent:,} sent again"
    out.print(summary or "no dead letters", markup=False)


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
    from streamd.eventlog.reader import LogReader
    from streamd.ingest.dead_letters.outlook import outlook
    from streamd.ingest.dead_letters.replay import plan, send

    # Ingest's handling of a letter depends on the log's watermark (microseconds).
    settings = settings_of(config, data_dir)
    chosen = plan(settings, reason or (), topic or (), again)
    log = LogReader.open(settings.data_dir, keep_keys=False)
    # Without a log it is unknown which letters are late.
    watermark_us = 0 if log is None else log.watermark
    found = outlook(settings, chosen.letters, watermark_us, SystemClock().now_us())
    for line in _outlook_lines(settings, found, len(chosen.letters), watermark_us, log is not None):
        out.print(line, soft_wrap=True, markup=False)

    # Late letters, and letters that will be refused, are sent only with the user's consent.
    doubtful = found.late | found.unknown
    asks = bool(found.refused or doubtful or (log is None and chosen.letters))
    if in_time:
        kept = [stored for i, stored in enumerate(chosen.letters) if i not in doubtful]
        chosen = replace(chosen, letters=kept)
        # The doubtful letters are not sent, so they need no consent.
        asks = bool(found.refused - doubtful)
    if asks and not yes:
        others = "" if in_time else ", --in-time leaves out late ones"
        typer.confirm(f"Send them? (--yes sends without asking{others})", abort=True)
    send(settings, chosen)

    # Each letter is in exactly one of these counts, so that none is dropped silently.
    behind = f"{len(doubtful):,} are late or may be, " if in_time else ""
    out.print(
        f"{len(chosen.letters):,} sent, {behind}{chosen.before:,} were sent before, "
        f"{chosen.broken:,} cannot be sent (cut off, or not the event itself), {chosen.foreign:,} "
        f"name a topic that is not in kafka.topics ({', '.join(settings.kafka.topics)})",
        soft_wrap=True,
        markup=False,
    )


def _outlook_lines(
    settings: Settings, found: "Outlook", count: int, watermark_us: int, has_log: bool
) -> list[str]:
    """Describe in lines of text how ingest will handle the letters. count: number of letters to
    send."""
    lines = []
    if found.late:
        fate = (
            "gets that time instead of its own; a window of mostly such events is not learned"
            if settings.ingest.late_policy == "clamp"
            else "becomes a dead letter again (late)"
        )
        lines.append(
            f"{len(found.late):,} of {count:,} are late: up to {found.behind_us / 3.6e9:,.4g} h "
            f"before {utc(watermark_us)}, the time that the log has reached. With "
            f"ingest.late_policy: {settings.ingest.late_policy} a late event {fate}."
        )
    if found.unknown:
        lines.append(
            f"{len(found.unknown):,} of {count:,} may be late: the schema registry does not answer."
        )
    if count and not has_log:
        lines.append(f"{settings.data_dir} holds no log, so it is unknown which are late.")
    if found.refused:
        lines.append(f"{len(found.refused):,} of {count:,} will be refused again.")
    return lines
