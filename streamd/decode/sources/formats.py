"""Formats of mapped records: what turns the bytes of a value into plain Python objects.

JSON is read by `streamd.decode.sources.paths` without making objects of all of it; every other
format is a `Format`.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from streamd.decode.arrow_metadata import check_batches, check_head
from streamd.decode.notices import named
from streamd.decode.sources.registry_framing import JSONValues, RegistryValues
from streamd.errors import BadEvent
from streamd.settings.loading import SchemaRegistrySettings
from streamd.settings.sources import REGISTRY_FORMATS, SourceSettings

MAX_VALUES = 2_000_000
"""Most values of an Arrow stream: as Python objects each takes up to a hundred bytes."""
JSON_FORMATS = ("json", "ndjson")
"""Formats that a shape reads; the others are made by `make_format`."""


class Format(Protocol):
    """Decodes values of one topic."""

    def value_of(self, record: Any) -> bytes:
        """The bytes to decode: a record's value, with the schema's id if a header has it."""

    def prepare(self, values: Iterable[bytes], waiting: Callable[[], None]) -> None:
        """Get ready to decode these values.

        Args: waiting: called where it takes time. Raises: SchemaRegistryError.
        """

    def decode(self, value: bytes) -> list[dict[str, Any]]:
        """The records in a value, as objects of numbers, text, truth values, lists and objects.

        Raises: BadEvent where the value is none of this format; SchemaRegistryError where that
        is not known now, since the registry does not answer.
        """


def make_format(
    source: SourceSettings, registry: SchemaRegistrySettings, max_events: int
) -> Format | None:
    """The format of a source; None for one of `JSON_FORMATS`.

    max_events: most of them in a record. Raises: SettingsError.
    """
    if source.format in JSON_FORMATS:
        return None
    if source.format in REGISTRY_FORMATS:
        return RegistryValues(source.format, registry)
    if source.format == "json-schema":
        return JSONValues()
    return ArrowRows(max_events)


class ArrowRows:
    """Rows of Arrow IPC streams, whose columns may have any name. It has no state."""

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events

    def value_of(self, record: Any) -> bytes:
        """A record's value."""
        value: bytes = record.value
        return value

    def prepare(self, values: Iterable[bytes], waiting: Callable[[], None]) -> None:
        """Do nothing: a stream has its schema with it."""

    def decode(self, value: bytes) -> list[dict[str, Any]]:
        """The rows of a stream. Raises: BadEvent."""
        try:
            import pyarrow as pa
            import pyarrow.compute
        except ImportError:
            raise BadEvent(
                "unknown_content_type", "Arrow needs pyarrow: pip install 'streamd[arrow]'"
            ) from None
        rows: list[dict[str, Any]] = []
        try:
            # Judge the schema before pyarrow reads a batch, and each batch before its values.
            check_head(value, pa, is_nested=True)
            reader = pa.ipc.open_stream(value)
            _check_types(reader.schema, pa)
            num_values = sum(_num_values(kind, pa) for kind in reader.schema.types)
            check_batches(value, pa)
            num_rows = 0
            size = 0
            for batch in reader:
                num_rows += batch.num_rows
                if num_rows > self._max_events:
                    raise BadEvent(
                        "too_many_events", f"{num_rows} rows, at most {self._max_events}"
                    )
                if num_rows * num_values > MAX_VALUES:
                    raise BadEvent(
                        "bad_arrow", f"{num_rows} rows of {num_values} values are too many"
                    )
                batch.validate(full=True)
                # Columns that share bytes could make much memory of few.
                size += batch.nbytes
                if size > len(value):
                    raise BadEvent("bad_arrow", "its columns share their bytes")
                rows += _in_microseconds(batch, pa).to_pylist()
        # Python has no dates beyond the year 9999.
        except (
            pa.ArrowException,
            OSError,
            struct.error,
            IndexError,
            ValueError,
            OverflowError,
        ) as error:
            raise BadEvent("bad_arrow", f"not a valid Arrow stream: {str(error)[:300]}") from None
        return rows


def _check_types(schema: Any, pa: Any) -> None:
    """Refuse columns whose values could take far more memory than their bytes. Raises: BadEvent."""
    for column in schema:
        if schema.names.count(column.name) > 1:
            raise BadEvent("bad_arrow", f"two columns are named {named([column.name])}")
        if not _is_plain(column.type, pa):
            raise BadEvent(
                "bad_arrow",
                f"column {named([column.name])} is neither text, number, truth value or time, "
                "nor a list of text or numbers, nor a struct of those: cast it",
            )


def _is_plain(kind: Any, pa: Any) -> bool:
    """Whether a type is one of those that take no more memory than their bytes."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return False
    if types.is_struct(kind):
        inside = [kind.field(i).type for i in range(kind.num_fields)]
        return bool(inside) and all(_is_plain(inner, pa) for inner in inside)
    # A list of truth values or of structs would take far more memory than its bytes.
    if types.is_list(kind) or types.is_large_list(kind):
        return _is_flat(kind.value_type, pa)
    return _is_flat(kind, pa) or types.is_timestamp(kind) or types.is_boolean(kind)


def _is_flat(kind: Any, pa: Any) -> bool:
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind)
    return bool(is_text or types.is_integer(kind) or types.is_floating(kind))


def _num_values(kind: Any, pa: Any) -> int:
    """How many values a row has of a column of this type, a list counted as one."""
    if not pa.types.is_struct(kind):
        return 1
    return 1 + sum(_num_values(kind.field(i).type, pa) for i in range(kind.num_fields))


def _in_microseconds(batch: Any, pa: Any) -> Any:
    """A batch with its timestamps in microseconds and UTC: Python's dates have no finer ones.

    Raises: ArrowInvalid where one does not fit.
    """
    for at, column in enumerate(batch.schema):
        kind = _kind_in_microseconds(column.type, pa)
        if kind != column.type:
            options = pa.compute.CastOptions(target_type=kind, allow_time_truncate=True)
            batch = batch.set_column(at, column.name, batch.column(at).cast(options=options))
    return batch


def _kind_in_microseconds(kind: Any, pa: Any) -> Any:
    """A type with its timestamps, those inside structs too, in microseconds without a zone."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us")
    if not pa.types.is_struct(kind):
        return kind
    fields = [kind.field(i) for i in range(kind.num_fields)]
    return pa.struct([f.with_type(_kind_in_microseconds(f.type, pa)) for f in fields])
