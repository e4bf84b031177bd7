"""The `streamd init` command: writes a first settings file, from answers to questions or from
options."""

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from streamd.cli.options import err, error_text, out, printable
from streamd.cli.sources import read_with_progress
from streamd.errors import KafkaError, SettingsError
from streamd.number_texts import count_noun
from streamd.settings.loading import Settings, load_settings

if TYPE_CHECKING:
    from streamd.exchange.chosen_fields import Chosen
    from streamd.exchange.guess import Guess
    from streamd.exchange.sample import Verdict

BROKER = "localhost:9092"
NONE = "none"
"""The answer that leaves out a field."""
NO_TIME = (
    "{file} has no time that could be read, and its rows have no Kafka timestamp: they cannot be "
    "imported until --time names a column of seconds, milliseconds or microseconds since 1970, or "
    "of ISO 8601 such as 2026-03-01 07:45:12"
)
SHOWN = 5
"""Number of refused records that are printed: the first few show the cause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Sample records from which the mapping is guessed.

    parts: by partition, in which their offsets are unique. words: their number and origin, as text.
    file: the file that holds them, "" for none.
    """

    parts: dict[int, list[Any]]
    words: str
    file: str = ""

    @property
    def records(self) -> list[Any]:
        """The records of all partitions."""
        return list(chain.from_iterable(self.parts.values()))


def init(
    file: Annotated[Path, typer.Argument(help="The settings file to write.")] = Path(
        "settings.yaml"
    ),
    broker: Annotated[
        str | None, typer.Option(help=f"Kafka's host:port; {BROKER} otherwise.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Topic of the events.")] = None,
    sample: Annotated[
        str | None,
        typer.Option(help="A file of records instead of the topic's, or - for stdin."),
    ] = None,
    src: Annotated[str | None, typer.Option(help="Field of the source node, as user.id.")] = None,
    dst: Annotated[
        str | None, typer.Option(help="Field of the destination node, which is predicted.")
    ] = None,
    time: Annotated[
        str | None, typer.Option(help="Field of the time; none: the Kafka timestamp.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Fields of features, comma separated, or none.")
    ] = None,
    records: Annotated[int, typer.Option(min=1, max=100_000, help="Records to read.")] = 100,
    ask: Annotated[
        bool | None,
        typer.Option("--ask/--no-ask", help="Ask for missing options; default in a terminal."),
    ] = None,
) -> None:
    """Write a settings file to start from, checked on a sample of records; it is never overwritten.

    The broker need not be there: give a file of records, or paste one.
    """
    from streamd.clock import SystemClock
    from streamd.exchange.first_settings import SampledTopic, settings_text

    _refuse_existing(file)
    asks = sys.stdin.isatty() if ask is None else ask
    clock = SystemClock()

    # Find the topic, and read a sample of its records.
    name = topic or (_ask("Topic", "events") if asks else "")
    if not name:
        raise SettingsError("There is no topic.", "give --topic.")
    broker = broker or (_ask("Kafka's host:port", BROKER) if asks else BROKER)
    found = _sample_of(broker, name, sample, records, asks, clock.now_us() // 1000)

    guessed = _guess_fields(name, found, clock.now_us(), _chosen(src, dst, time, features), asks)
    without_time = bool(found.file) and guessed.source["time"] == "record"
    if without_time:
        _doubt_file_without_time(guessed.doubts, found.file)

    # Before writing: check that the text loads, and print the events that it makes of the sample.
    text = settings_text(SampledTopic(broker=broker, topic=name, sample=found.words), guessed)
    settings = _load_text(text)
    verdict = _judge(settings, name, found)
    _write_new(file, text)
    _print_doubts(file, guessed.doubts)
    _print_next(file, name, found, verdict, without_time)
    raise typer.Exit(1 if verdict.refused or not verdict.num_taken else 0)


def _ask(question: str, offered: str) -> str:
    """Ask a question. Returns: the answer, `offered` if it is empty."""
    return str(typer.prompt(question, default=offered, err=True)).strip()


def _new_answer(question: str, offered: str) -> str:
    """Ask a question. Returns: the answer, "" if it is the offered one."""
    answer = _ask(question, offered)
    return "" if answer == offered else answer


def _guess_fields(topic: str, found: Found, now_us: int, chosen: "Chosen", asks: bool) -> "Guess":
    """Guess the mapping of records. asks: ask for each field, offering the first guess, until all
    answers name a field of the records."""
    from streamd.exchange.first_settings import listed, path_text
    from streamd.exchange.guess import guess

    # The first guess is final if no question may be asked, or if records have several kinds.
    first = guess(topic, found.records, now_us, chosen=chosen)
    if not asks or len(first.sources) > 1:
        return first
    out.print(f"{found.words} have: {listed(first.paths)}", markup=False, highlight=False)
    # Ask again if an answer names no field of the records.
    while True:
        fields = first.source["fields"]
        offered = ",".join(fields.get("features", {}).values()) or NONE
        # A field with the offered answer is guessed again.
        given = _chosen(
            _new_answer("Who acts (source)", path_text(fields["src"])),
            _new_answer("On what, which is predicted (destination)", fields["dst"]),
            _new_answer("When", fields.get("time", NONE)),
            _new_answer("Further fields of an event (features)", offered) or None,
        )
        try:
            return guess(topic, found.records, now_us, chosen=given)
        except SettingsError as error:
            err.print(error_text(error), markup=False, soft_wrap=True)


def _doubt_file_without_time(doubts: list[str], file: str) -> None:
    """Replace the doubt that the Kafka timestamp is taken: rows of a file have none."""
    from streamd.exchange.guess_times import NO_TIME as KAFKA_TIME

    doubts[:] = [doubt for doubt in doubts if doubt != KAFKA_TIME]
    doubts.append(NO_TIME.format(file=file))


def _chosen(src: str | None, dst: str | None, time: str | None, features: str | None) -> "Chosen":
    from streamd.exchange.chosen_fields import Chosen

    paths = None if features is None else tuple(f.strip() for f in features.split(",") if f.strip())
    return Chosen(
        src=src or "",
        dst=dst or "",
        time=time or "",
        features=() if features == NONE else paths,
    )


def _refuse_existing(file: Path) -> None:
    if file.exists() or file.is_symlink():
        raise SettingsError(f"{file} exists already.", "name another file, or remove it.")


def _sample_of(
    broker: str, topic: str, sample: str | None, count: int, asks: bool, now_ms: int
) -> Found:
    """Read records of a file, of stdin or of the topic; if the topic cannot be read, ask for a
    record or a file. Raises: SettingsError, KafkaError if nothing may be asked."""
    from streamd.exchange.first_settings import pasted_records

    settings, _ = load_settings(None, {"kafka.bootstrap_servers": broker})
    if sample == "-":
        return _read_stdin(settings, count, now_ms)
    name = topic if sample is None else sample
    if sample is not None and not Path(sample).exists():
        raise SettingsError(f"{sample} is not a file.", "check the path.")
    try:
        found = read_with_progress(settings, name, count)
        if len(found):
            # A pipe cannot be read again, so no later command is given its name.
            file = sample if sample and not Path(sample).is_fifo() else ""
            return Found(parts=found.records, words=_words(len(found), name), file=file)
        why = f"{name} is empty"
    except KafkaError as error:
        if not asks:
            raise
        why = str(error)

    # The broker may be unreachable, or the topic empty.
    if not asks:
        raise SettingsError(f"{why}.", "give --sample with a file of records.")
    err.print(f"{printable(why)}", markup=False, soft_wrap=True)
    text = _ask("Paste one record as JSON, or the path of a file of records", "")
    if Path(text).is_file():
        return _sample_of(broker, topic, text, count, asks, now_ms)
    return Found(parts={0: pasted_records(text, now_ms)}, words="a pasted record")


def _read_stdin(settings: Settings, count: int, now_ms: int) -> Found:
    """Read records of stdin: JSON, or a table as CSV. Raises: SettingsError."""
    from streamd.exchange.first_settings import pasted_records

    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"stdin is not UTF-8: {error}.", "save it as UTF-8; give Parquet or Arrow as a file."
        ) from None
    if text.lstrip()[:1] in ("{", "["):
        records = pasted_records(text, now_ms)
    else:
        with tempfile.TemporaryDirectory(prefix="streamd-init-") as folder:
            path = Path(folder) / "stdin.csv"
            path.write_text(text, encoding="utf-8", newline="")
            records = read_with_progress(settings, str(path), count).all
    if not records:
        raise SettingsError("stdin has no records.", "check the command before the pipe.")
    return Found(parts={0: records}, words=_words(len(records), "stdin"))


def _words(count: int, name: str) -> str:
    return f"{count_noun(count, 'record')} of {name}"


def _load_text(text: str) -> Settings:
    """Load settings from the text of a settings file. Raises: SettingsError."""
    with tempfile.TemporaryDirectory(prefix="streamd-init-") as folder:
        path = Path(folder) / "settings.yaml"
        path.write_text(text, encoding="utf-8")
        return load_settings(path)[0]


def _judge(settings: Settings, topic: str, found: Found) -> "Verdict":
    """Print the first refused records, the first event, a summary and doubts about keys, by the
    same judgement as `streamd sources check`."""
    from streamd.clock import SystemClock
    from streamd.exchange.sample import NOW, Sample, judge

    verdict = judge(settings, Sample(topic, found.parts), SystemClock())
    for judged in [j for j in verdict.judged if not j.event][:SHOWN]:
        err.print(Text(printable(f"record {judged.offset}: {judged.what}: {judged.error}")))
    first = next((j.event for j in verdict.judged if j.event), None)
    if first:
        out.print(Text(printable(f"first event: {first}")), soft_wrap=True)
    out.print(verdict.words, soft_wrap=True, markup=False, highlight=False)
    of_file = (
        [NOW.format(file=found.file)] if found.file and settings.sources[0].time == "record" else []
    )
    for sentence in verdict.sentences(of_file):
        err.print(printable(sentence), soft_wrap=True, markup=False, highlight=False)
    return verdict


def _write_new(file: Path, text: str) -> None:
    """Write a file that must not exist yet, whole or not at all."""
    # In the same folder, because links cannot cross file systems.
    with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".init-", delete=False) as made:
        made.write(text)
        made.flush()
        os.fsync(made.fileno())
    try:
        # A link fails if the name is taken; a rename would replace the file.
        Path(made.name).chmod(0o644)
        os.link(made.name, file)
    except FileExistsError:
        _refuse_existing(file)
    finally:
        Path(made.name).unlink()


def _print_doubts(file: Path, doubts: Sequence[str]) -> None:
    """Print the first doubt about a mapping, and the number of all, which are comments of the
    file."""
    if doubts:
        text = f"{count_noun(len(doubts), 'doubt')} in the comments of {file}; first: {doubts[0]}"
        err.print(printable(text), soft_wrap=True, markup=False, highlight=False)


def _print_next(
    file: Path, topic: str, found: Found, verdict: "Verdict", without_time: bool
) -> None:
    """Print the next commands. without_time: whether the sample's file cannot be imported."""
    if not verdict.num_taken:
        # A run would learn nothing.
        name = found.file or topic
        lines = [
            f"written: {file}, by which no record of {name} is an event: {verdict.reason_for_none}",
            f"correct the source in {file} until these show events:",
            f"  export STREAMD_CONFIG={file}",
            f"  streamd sources check {name}",
            f"or remove {file}, and name the fields: streamd init --src FIELD --dst FIELD ...",
        ]
    else:
        lines = [f"written: {file}", f"  export STREAMD_CONFIG={file}"]
        # These commands need no broker; a refused row would stop them.
        if found.file and not without_time:
            if verdict.refused:
                lines.append(f"once {found.file} has no refused rows, which stop a backtest:")
            lines += [f"  streamd backtest {found.file} --source {topic}", "with a broker:"]
        lines += [f"  streamd sources check {topic}", "  streamd doctor && streamd run"]
    for line in lines:
        out.print(printable(line), soft_wrap=True, markup=False, highlight=False)
