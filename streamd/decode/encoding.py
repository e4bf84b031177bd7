"""Converts values of a record to the fields of an event: times, keys and numbers.

Each kind of value is read in two ways that agree: a whole column at once, which only finds whether
all values are valid, and one value, which explains its error.
"""

import base64
import datetime
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from streamd.clock import time_us
from streamd.decode.encoded_decimals import decimal_hint
from streamd.decode.ngrams import ngram_features
from streamd.decode.plain_values import as_id, plain_scalar, plain_value
from streamd.decode.sources.paths import BYTES, FLOAT, NO_TEXT, kind_of
from streamd.decode.time_units import UNITS_NS
from streamd.errors import BadEvent
from streamd.events import Int64
from streamd.iso_times import iso_us
from streamd.settings.sets import FeatureSettings, text_of
from streamd.settings.sources import KeyType

Float64 = NDArray[np.float64]
INTEGER = re.compile(r"-?[0-9]{1,19}")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
YEAR = re.compile(r"[0-9]{4}")
MAX_NUMBER_TEXT = 64
"""Maximum length of text that is read as a number."""
MAX_TIME_TEXT = 64
"""Maximum length of text that is read as a time."""
MAX_US = 2**63 - 1
WRAPPERS = frozenset(("$oid", "$numberLong", "$numberInt", "$numberDecimal", "$uuid"))
"""Names in MongoDB's JSON that contain the value of a key."""
TRUTHS = {"true": 1.0, "t": 1.0, "1": 1.0, "false": 0.0, "f": 0.0, "0": 0.0}
"""Text of a boolean, in lower case, as Python, Excel and Postgres write it."""
MAX_LIST_TEXT = 64
"""Maximum length of text of a list, in characters for each of its numbers."""
ISO = "0000-00-00T00:00:00"
ZERO = np.uint8(ord("0"))
ISO_Z = {
    len(text): np.frombuffer(text.encode(), np.uint8)
    for text in (f"{ISO}Z", *(f"{ISO}.{'0' * digits}Z" for digits in range(1, 7)))
}
"""Times as most programs write them, with a zero for each digit, by their length."""


class Times:
    """Reads times of one form as int64 microseconds. form: days, s, ms, us, ns or iso8601.

    Digits below a microsecond are cut from integers of ns. As iso8601, integers are dates in
    digits: 2026, 20260131, 2026013109, 202601310930 or 20260131093000. The form `record` reads no
    times, and writes them as iso8601 does.
    """

    def __init__(self, form: str) -> None:
        # The unit is _scale / _parts microseconds.
        self._scale, self._parts = UNITS_NS.get(form, 0) // 1_000, 1
        if form == "ns":
            self._scale, self._parts = 1, 1_000
        self._form = form

    def column(self, values: Sequence[Any]) -> Int64 | None:
        """Read a column, int64[n] microseconds; None if a value is not valid."""
        try:
            column = self._usual(values)
        except (TypeError, ValueError, OverflowError):
            column = None
        if column is not None:
            return column
        # Some value has another type, blanks around it, or is no time.
        try:
            return np.array([self.one(v, "") for v in values], np.int64)
        except (BadEvent, OverflowError):
            return None

    def _usual(self, values: Sequence[Any]) -> Int64 | None:
        """Read a column of only integers, or only text with or without a zone; None for other
        types."""
        kinds = set(map(type, values))
        if self._scale and kinds == {int}:
            return self.to_microseconds(np.fromiter(values, np.int64, len(values)))
        if self._scale or kinds != {str} or max(map(len, values)) > MAX_TIME_TEXT:
            return None
        usual = _iso_column(values)
        if usual is not None:
            return usual
        return np.array([iso_us(v) for v in values], np.int64)

    def to_microseconds(self, number_N: Int64) -> Int64 | None:
        """Convert integers of the form's unit to microseconds, int64[n]; None if one is beyond
        int64."""
        # Compare before scaling, which could overflow.
        if max(int(number_N.max()), -int(number_N.min())) > MAX_US // self._scale:
            return None
        time_N: Int64 = number_N * self._scale // self._parts
        return time_N

    def one(self, value: Any, name: str) -> int:
        """Read one time, microseconds, which may be beyond int64. name: of the field, for the
        error.

        Raises: BadEvent.
        """
        value = plain_scalar(value)
        if value is None:
            raise BadEvent("missing_field", f"{name} is missing")
        # Decoders of typed formats already return datetimes.
        if isinstance(value, datetime.datetime):
            return time_us(value)
        if isinstance(value, str):
            value = value.strip()
        if self._scale:
            number = number_of(value)
            # An integer is exact; a float is as exact as its bits allow.
            if type(number) is int:
                return number * self._scale // self._parts
            if number is None:
                what = f"{name} is {kind_of(value)}, not a number of {self._form}"
                hint = "; it is ISO 8601: set time: iso8601" if _is_iso(value) else ""
                raise BadEvent("bad_time", what + hint + decimal_hint(value))
            scaled = number * self._scale / self._parts
            if not math.isfinite(scaled):
                raise BadEvent("bad_time", f"{name} is out of range")
            return round(scaled)
        # Dates in digits have at most 14 digits.
        text = str(value) if type(value) is int and 0 <= value < 10**14 else value
        if isinstance(text, str) and len(text) <= MAX_TIME_TEXT:
            # A year is its first day, as in graphs of papers and of trade.
            text = f"{text}-01-01" if YEAR.fullmatch(text) else text
            try:
                return iso_us(text)
            except (ValueError, OverflowError):
                pass
        hint = "" if number_of(value) is None else "; numbers need a unit: set time: s, or another"
        raise BadEvent("bad_time", f"{name} is {kind_of(value)} that is not ISO 8601{hint}")

    def as_json(self, row: Any) -> bytes:
        """Write a row as JSON that decodes to the same values, with times in this form. A value
        that JSON lacks becomes an object, which no field accepts."""
        return msgspec.json.encode(self._for_json(plain_value(row)))

    def _for_json(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._for_json(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._for_json(inner) for inner in value]
        if isinstance(value, datetime.datetime) and self._scale:
            whole, rest = divmod(time_us(value) * self._parts, self._scale)
            return whole + rest / self._scale if rest else whole
        # `kind_of` recognizes such an object by its one name.
        if isinstance(value, bytes):
            return {BYTES: base64.b64encode(value).decode()}
        if isinstance(value, float) and not math.isfinite(value):
            return {FLOAT: str(value)}
        return value


def _is_iso(value: Any) -> bool:
    """Whether a value is text in ISO 8601."""
    try:
        return isinstance(value, str) and len(value) <= MAX_TIME_TEXT and iso_us(value) is not None
    except (ValueError, OverflowError):
        return False


def _iso_column(values: Sequence[str]) -> Int64 | None:
    """Read text of one length in the form of `ISO_Z`, int64[n] microseconds; None for other text.

    Raises: ValueError if one is no time.
    """
    width = len(values[0])
    pattern = ISO_Z.get(width)
    text = "".join(values)
    if pattern is None or not text.isascii() or set(map(len, values)) != {width}:
        return None
    # Numpy would also read words such as "now", so check every character first.
    bytes_NW = np.frombuffer(text.encode(), np.uint8).reshape(-1, width)
    is_digit = pattern == ZERO
    if (bytes_NW[:, ~is_digit] != pattern[~is_digit]).any():
        return None
    if ((bytes_NW[:, is_digit] - ZERO) > 9).any():
        return None
    without_zone = np.ascontiguousarray(bytes_NW[:, :-1]).view(f"S{width - 1}").ravel()
    return without_zone.astype("M8[us]").astype(np.int64)


def number_of(value: Any) -> int | float | None:
    """Convert a plain value or the text of a number to a number; None for others, and for
    booleans."""
    if type(value) is int or type(value) is float:
        return value
    if type(value) is str and len(value) <= MAX_NUMBER_TEXT and NUMBER.fullmatch(value):
        return int(value) if INTEGER.fullmatch(value) else float(value)
    return None


class Feature:
    """Reads the values of one declared feature as `width` numbers. name: in the declaration."""

    def __init__(self, name: str, declared: FeatureSettings) -> None:
        self.name = name
        self.width = declared.width
        self._declared = declared
        self._missing = declared.missing
        places = [text_of(c) for c in declared.categories or ()]
        self._place = {text: place for place, text in enumerate(places)}
        self._others = len(places)
        # In CSV an empty cell is a missing value, unless it is a category.
        self._empty_is_missing = declared.missing is not None and "" not in self._place

    @property
    def json_type(self) -> tuple[Any, ...]:
        """The type for msgspec, with the default if a value may be missing. A value of another type
        may still be valid: `one` decides."""
        kind = {"number": float, "bool": bool}.get(self._declared.type or "", Any)
        return (kind,) if self._missing is None else (kind | None, None)

    @property
    def example(self) -> str:
        """An example of a value, as JSON."""
        declared = self._declared
        if declared.vector is not None:
            return f"[{declared.vector} numbers]"
        if declared.type is not None:
            return "0.5" if declared.type == "number" else "true"
        return msgspec.json.encode((declared.categories or ("text",))[0]).decode()

    def column(self, values: Sequence[Any]) -> Float64 | None:
        """Read a column, float64[n, width]; None if a value is not valid, or if a vector is not a
        list of numbers."""
        if None in values:
            if self._missing is None:
                return None
            values = [self._missing if v is None else v for v in values]
        if self._empty_is_missing and "" in values:
            values = [self._missing if v == "" else v for v in values]
        declared = self._declared
        if declared.vector is not None:
            return self._vectors(values, declared.vector)
        kinds = set(map(type, values))
        if declared.type is not None:
            if not kinds <= ({bool} if declared.type == "bool" else {int, float}):
                return self._rows(values)
            try:
                numbers = np.fromiter(values, np.float64, len(values)).reshape(-1, 1)
            except OverflowError:
                return None
            return self._without_nan(numbers) if float in kinds else numbers

        if kinds != {str}:
            return self._rows(values)
        if declared.text is not None:
            return ngram_features(values, declared.text)

        # Categories and hashes are one-hot.
        get = self._place.get
        if declared.hash is not None:
            places = [crc32c(v.encode(errors="replace")) % declared.hash for v in values]
        else:
            places = [get(v, self._others) for v in values]
        out = np.zeros((len(values), self.width))
        out[np.arange(len(values)), places] = 1
        return out

    def _without_nan(self, numbers: Float64) -> Float64 | None:
        """Replace NaN by the value for a missing one; None if there is NaN and no such value."""
        # NaN fails every comparison, so it would be refused as out of range.
        is_nan = np.isnan(numbers)
        if is_nan.any():
            if self._missing is None:
                return None
            numbers[is_nan] = self._missing
        return numbers

    def _vectors(self, values: Sequence[Any], width: int) -> Float64 | None:
        if set(map(type, values)) != {list} or set(map(len, values)) != {width}:
            return None
        flat = list(itertools.chain.from_iterable(values))
        if not set(map(type, flat)) <= {int, float}:
            return None
        try:
            return np.fromiter(flat, np.float64, len(flat)).reshape(-1, width)
        except OverflowError:
            return None

    def _rows(self, values: Sequence[Any]) -> Float64 | None:
        try:
            return np.array([self.one(v, "") for v in values], np.float64)
        except BadEvent:
            return None

    def one(self, value: Any, path: str) -> list[float]:
        """Read one value. path: of the field, for the error. Raises: BadEvent."""
        value = plain_scalar(value)
        if value is None or (self._empty_is_missing and type(value) is str and not value):
            value = self._missing
            if value is None:
                where = f" ({path})" if path else ""
                raise BadEvent(
                    "missing_field",
                    f"feature {self.name}{where} is missing, and `missing` is not set",
                )
        # Each kind of feature also accepts other types with the same meaning.
        declared = self._declared
        if declared.vector is not None:
            found = _list_of(value, declared.vector)
            if type(found) is list and len(found) == declared.vector:
                numbers = [float_of(plain_scalar(v)) for v in found]
                if None not in numbers:
                    return [n for n in numbers if n is not None]
        elif declared.type == "number":
            number = float_of(value)
            if number is not None:
                return [number]
        elif declared.type == "bool":
            truth = _truth(value)
            if truth is not None:
                return [truth]
        else:
            text = _category(value)
            if text is not None and declared.text is not None:
                numbers_of_text: list[float] = ngram_features([text], declared.text)[0].tolist()
                return numbers_of_text
            if text is not None:
                out = [0.0] * self.width
                if declared.hash is not None:
                    out[crc32c(text.encode(errors="replace")) % declared.hash] = 1.0
                else:
                    out[self._place.get(text, self._others)] = 1.0
                return out
        where = f" ({path})" if path else ""
        what = f"feature {self.name}{where} is {kind_of(value)}, not {declared.words}"
        raise BadEvent("bad_features", what + decimal_hint(value))


def as_key(value: Any, kind: KeyType | None) -> Any:
    """Convert a value to a key: whole floats become integers. kind: text or integer; a value that
    cannot become that is unchanged, as are other values."""
    # Whole floats come from languages without integers, and from columns with missing values.
    value = as_id(plain_scalar(value))
    if kind == "text" and type(value) is int:
        return str(value)
    if kind == "integer" and type(value) is str and INTEGER.fullmatch(value):
        return int(value)
    return value


def key_hint(value: Any) -> str:
    """The remedy for an object or a number as a key, as the end of an error; "" for other
    values."""
    # MongoDB's JSON wraps a value in an object that names its type.
    if type(value) is dict and len(value) == 1 and (wrapped := WRAPPERS & value.keys()):
        return f"; MongoDB's value is inside it: add .{min(wrapped)} to the path"
    if kind_of(value) == NO_TEXT:
        return "; write them as text, such as hexadecimal"
    return "; write such ids as text" if type(value) is float else decimal_hint(value)


def _category(value: Any) -> str | None:
    """The text of a category; None if a value cannot be one."""
    value = as_id(value)
    if type(value) in (str, bool) or (type(value) is int and abs(value) <= MAX_US):
        return text_of(value)
    return None


def _truth(value: Any) -> float | None:
    """A boolean as 0 or 1; None if a value is none."""
    if type(value) is bool:
        return float(value)
    if type(value) is str:
        return TRUTHS.get(value.lower())
    value = as_id(value)
    return float(value) if type(value) is int and value in (0, 1) else None


def _list_of(value: Any, width: int) -> Any:
    """Parse text of a JSON list, which is the only way to write a list in CSV; other values are
    unchanged."""
    if type(value) is str and value[:1] == "[" and len(value) <= MAX_LIST_TEXT * width:
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return value
    return value


def float_of(value: Any) -> float | None:
    """Convert a plain value to a float as `number_of` does; None also if it is too large for a
    float."""
    number = number_of(value)
    try:
        return None if number is None else float(number)
    except OverflowError:
        return None
