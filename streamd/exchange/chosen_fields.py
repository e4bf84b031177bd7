"""The fields that a user names for a mapping, by their paths in records or in settings."""

from dataclasses import dataclass

from streamd.errors import SettingsError
from streamd.exchange.field_values import Fields
from streamd.settings.sets import nearest_of

RECORD_TIME = "none"
"""As the chosen field of times, it means the timestamp of records."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The fields that the user named, by their paths; an empty path is guessed.

    time: RECORD_TIME means the timestamp of records. features: None is guessed; () means none.
    """

    src: str = ""
    dst: str = ""
    time: str = ""
    features: tuple[str, ...] | None = None


def inside(path: str, each: str) -> str:
    """Convert a path into the first element of a list to one into any element."""
    first = f"{each}.0"
    if not each or not (path == first or path.startswith(f"{first}.")):
        return path
    return each + path.removeprefix(first)


def with_first_elements(chosen: Chosen, fields: Fields) -> Chosen:
    """The chosen fields by their paths in records: a path as settings have it, such as lines.sku,
    leads to the first element of the list."""
    # Written as settings have them, a list's elements have no index.
    lists = ((path, fields.list_of(path)) for path in fields.scalars)
    known = {inside(path, found[0]): path for path, found in lists if found is not None}

    def in_records(path: str) -> str:
        if path in fields.scalars:
            return path
        # A name with a dot in it has a backslash before the dot in paths.
        whole = path.replace(".", "\\.")
        return whole if whole in fields.scalars else known.get(path, path)

    features = chosen.features
    return Chosen(
        src=in_records(chosen.src),
        dst=in_records(chosen.dst),
        time=in_records(chosen.time),
        features=None if features is None else tuple(map(in_records, features)),
    )


def check_chosen(chosen: Chosen, fields: Fields) -> None:
    """Check that some record has each chosen path. Raises: SettingsError."""
    # The Kafka timestamp is no field.
    time = "" if chosen.time == RECORD_TIME else chosen.time
    for path in (chosen.src, chosen.dst, time, *(chosen.features or ())):
        if path and path not in fields.scalars:
            raise SettingsError(
                f"No record has a field {path}{nearest_of(path, fields.scalars)}.",
                "give one of them.",
            )
