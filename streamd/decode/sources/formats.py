"""Formats of mapped records: decoders from the bytes of a value to plain Python objects.

JSON is read by `streamd.decode.sources.paths` without making objects of all fields; every other
format is a `Format`.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from streamd.decode.arrow_metadata import is_list, is_scalar, is_text, read_batches
from streamd.decode.notices import named
from streamd.decode.plain_values import batch_rows
from streamd.decode.sources.registry_framing import JSONValues, RegistryValues
from streamd.errors import BadEvent
from streamd.settings.loading import SchemaRegistrySettings
from streamd.settings.sources import REGISTRY_FORMATS, SourceSettings

MAX_VALUES = 2_000_000
"""Maximum values of an Arrow stream: as a Python object, each takes up to a hundred bytes."""
JSON_FORMATS = ("json", "ndjson")
"""Formats that a shape reads; `make_format` makes the others."""


class Format(Protocol):
    """Decodes values of one topic."""

    def value_of(self, record: Any) -> bytes:
        """The bytes to decode: a record's value, after the schema's id if a header has it."""

    def prepare(self, values: Iterable[bytes], waiting: Callable[[], None]) -> None:
        """Fetch everything that decoding these values needs.

        Args: waiting: called whenever this takes time. Raises: SchemaRegistryError.
        """

    def decode(self, value: bytes) -> list[dict[str, Any]]:
        """Decode the records in a value to objects of numbers, text, booleans, lists and objects.

        Raises: BadEvent if the value does not have this format; SchemaRegistryError if the schema
        is not known now, because the registry does not answer.
        """


def make_format(
    source: SourceSettings, registry: SchemaRegistrySettings, max_events: int
) -> Format | None:
    """Make the format of a source; None for one of `JSON_FORMATS`.

    max_events: maximum events of a record. Raises: SettingsError.
    """
    if source.format in JSON_FORMATS:
        return None
    if source.format in REGISTRY_FORMATS:
        return RegistryValues(source.format, registry)
    if source.format == "json-schema":
        return JSONValues()
    return ArrowRows(max_events)


class ArrowRows:
    """Rows of Arrow IPC streams with columns of any names. It has no state."""

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events

    def value_of(self, record: Any) -> bytes:
        """A record's value."""
        value: bytes = record.value
        return value

    def prepare(self, values: Iterable[bytes], waiting: Callable[[], None]) -> None:
        """Do nothing, because a stream contains its schema."""

    def decode(self, value: bytes) -> list[dict[str, Any]]:
        """Decode the rows of a stream. Raises: BadEvent."""
        rows: list[dict[str, Any]] = []
        for batch in read_batches(value, _check_types, self._check_count, is_nested=True):
            num_values = sum(map(_num_values, batch.schema.types))
            if (len(rows) + batch.num_rows) * num_values > MAX_VALUES:
                raise BadEvent(
                    "bad_arrow",
                    f"{batch.num_rows} rows of {num_values} values, at most {MAX_VALUES} in all",
                )
            # Python cannot represent years after 9999.
            try:
                rows += batch_rows(batch)
            except (ValueError, OverflowError, NotImplementedError) as error:
                what = f"not a valid Arrow stream: {str(error)[:300]}"
                raise BadEvent("bad_arrow", what) from None
        return rows

    def _check_count(self, count: int) -> None:
        if count > self._max_events:
            raise BadEvent("too_many_events", f"{count} rows, at most {self._max_events}")


def _check_types(schema: Any, pa: Any) -> None:
    """Refuse columns with values that could take far more memory than their bytes. Raises:
    BadEvent."""
    for column in schema:
        # An object has each name once.
        if schema.names.count(column.name) > 1:
            raise BadEvent("bad_arrow", f"two columns are named {named([column.name])}")
        if not _is_plain(column.type, pa):
            raise BadEvent(
                "bad_arrow",
                f"column {named([column.name])} is neither text, number, truth value or time, "
                "nor a list of text or numbers, nor a struct of those: cast it",
            )


def _is_plain(kind: Any, pa: Any) -> bool:
    """Whether values of a type take no more memory than their bytes."""
    if pa.types.is_struct(kind):
        inside = [kind.field(i).type for i in range(kind.num_fields)]
        return bool(inside) and all(_is_plain(inner, pa) for inner in inside)
    # A list of booleans or of structs would take far more memory than its bytes.
    if is_list(kind, pa):
        of = kind.value_type
        return bool(is_text(of, pa) or pa.types.is_integer(of) or pa.types.is_floating(of))
    return is_scalar(kind, pa)


def _num_values(kind: Any) -> int:
    """The number of values that a column of this type has in a row; a list counts as one."""
    if hasattr(kind, "value_type"):
        return 1
    return 1 + sum(_num_values(kind.field(at).type) for at in range(kind.num_fields))
