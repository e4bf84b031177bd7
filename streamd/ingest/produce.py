"""Files to a topic: CSV, NDJSON or Parquet rows as JSON events, at a chosen speed."""

import csv
import gzip
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import msgspec

from streamd.errors import KafkaError, SettingsError
from streamd.events import MICROSECONDS
from streamd.ingest.client import make_producer
from streamd.settings import KafkaSettings

FLUSH_EVERY = 5_000


@dataclass(frozen=True)
class Columns:
    """Which columns of a table make an event; features in this order."""

    src: str = "src"
    dst: str = "dst"
    time: str = "time"
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outgoing:
    """A record to be sent. key: what Kafka partitions by; time: in the stream's unit, None where the event has none."""

    key: bytes
    value: bytes
    time: int | None


def read_events(path: Path, columns: Columns) -> Iterator[Outgoing]:
    """Events of a .csv, .ndjson/.jsonl or .parquet file, the first two also with .gz.

    Raises: SettingsError naming file, line and column where a row is not an event.
    """
    suffixes = [s for s in path.suffixes if s != ".gz"]
    kind = suffixes[-1] if suffixes else ""
    if not path.is_file():
        raise SettingsError(f"{path} is not a file.")
    if kind == ".csv":
        return _from_rows(path, _csv_rows(path), columns)
    if kind in (".ndjson", ".jsonl"):
        return _from_ndjson(path)
    if kind == ".parquet":
        return _from_rows(path, _parquet_rows(path), columns)
    raise SettingsError(f"{path} is neither .csv, .ndjson, .jsonl nor .parquet.")


def count_rows(path: Path) -> int:
    """About how many events a file for `read_events` has: its lines, or what Parquet says."""
    if path.suffix == ".parquet":
        return int(_parquet(path).metadata.num_rows)
    lines = 0
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while piece := file.read(1 << 20):
            lines += max(piece.count(b"\n"), piece.count(b"\r"))
    return max(1, lines - (".csv" in path.suffixes))


def send_events(
    kafka: KafkaSettings, topic: str, events: Iterator[Outgoing], time_unit: str, speed: float,
    progress: Callable[[int], None] = lambda _: None
) -> int:
    """Send events in order. speed: seconds of event time per second, 0 for as fast as it goes. Returns: events sent.

    Raises: KafkaError where an event was not acknowledged.
    """
    producer = make_producer(kafka, linger_ms=20, batch_size=262_144, compression_type="lz4")
    begun = time.monotonic()
    first: int | None = None
    pending: list[Any] = []
    sent = 0
    try:
        for event in events:
            if speed and event.time is not None:
                first = event.time if first is None else first
                due = begun + (event.time - first) * MICROSECONDS[time_unit] / 1e6 / speed
                if (wait := due - time.monotonic()) > 0:
                    producer.flush()
                    time.sleep(wait)
            pending.append(producer.send(topic, key=event.key, value=event.value))
            sent += 1
            if len(pending) >= FLUSH_EVERY:
                settle(producer, pending)
                progress(sent)
        settle(producer, pending)
        progress(sent)
    finally:
        producer.close()
    return sent


def settle(producer: Any, pending: list[Any]) -> None:
    """Wait for all that was sent, and forget it. Raises: KafkaError where one was not acknowledged."""
    producer.flush()
    for future in pending:
        try:
            future.get(timeout=60)
        except Exception as error:  # noqa: BLE001 - whatever the client raises, the event is not acknowledged
            raise KafkaError(f"An event was not acknowledged: {error}.", "check the broker and the topic.") from error
    pending.clear()


def _open(path: Path) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8", newline="")


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    with _open(path) as file:
        yield from csv.DictReader(file)


def _parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise SettingsError("Parquet needs pyarrow.", "pip install 'streamd[arrow]'.") from None
    return pyarrow.parquet.ParquetFile(path)


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    for batch in _parquet(path).iter_batches():
        yield from batch.to_pylist()


def _from_ndjson(path: Path) -> Iterator[Outgoing]:
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                event = json.loads(line)
            except ValueError as error:
                raise SettingsError(f"{path} line {number} is not JSON: {error}.") from None
            if not isinstance(event, dict):
                raise SettingsError(f"{path} line {number} is not an object.")
            key = event.get("src", event.get("id", event.get("node", "")))
            when = event.get("time")
            yield Outgoing(str(key).encode(), line.strip().encode(), when if isinstance(when, int) else None)


def _from_rows(path: Path, rows: Iterator[dict[str, Any]], columns: Columns) -> Iterator[Outgoing]:
    for number, row in enumerate(rows, 1):
        try:
            src, dst = _key(row[columns.src]), _key(row[columns.dst])
            when = int(row[columns.time])
            event: dict[str, Any] = {"src": src, "dst": dst, "time": when}
            if columns.features:
                event["features"] = [_finite(row[f]) for f in columns.features]
        except KeyError as error:
            raise SettingsError(f"{path} has no column {error}; it has {', '.join(map(str, row))}.",
                                "name the columns with --src, --dst, --time and --features.") from None
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{path} row {number}: {error}.") from None
        yield Outgoing(str(src).encode(), msgspec.json.encode(event), when)


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"a feature is {value}")
    return number


def _key(value: Any) -> int | str:
    """Integers stay integers, in a table of text too."""
    if isinstance(value, str) and value.lstrip("-").isdigit() and str(int(value)) == value:
        return int(value)
    return value if isinstance(value, int) else str(value)
