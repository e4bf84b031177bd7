"""The class of the settings tree's branches, and the types of checked values."""

import re
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo

from streamd.iso_times import iso_us

# Types of bounded numbers, and of durations.
Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


def _check_start(start: str) -> str:
    if start not in ("earliest", "latest"):
        try:
            iso_us(start)
        except ValueError:
            raise ValueError("it is earliest, latest or a time like 2026-01-31T00:00:00Z") from None
    return start


Start = Annotated[str, AfterValidator(_check_start)]
"""The position in a topic at which a new log begins."""


def check_not_blank(value: Any, field: FieldInfo) -> Any:
    """Check that a text or path is not blank, unless blank is the setting's default, which turns
    something off. Returns: the value. Raises: ValueError."""
    if not isinstance(value, str) or value.strip() or value == field.default:
        return value
    kinds = [field.annotation, *get_args(field.annotation)]
    if not any(kind in (str, Path, SecretStr) for kind in kinds):
        return value
    default = field.default or "nothing"
    raise ValueError(f"it is empty; set it, or leave it out for {default}")


def check_topic_name(name: str) -> str:
    """Check the name of a topic as Kafka does. Returns: the name. Raises: ValueError."""
    if not TOPIC.fullmatch(name) or name in (".", ".."):
        raise ValueError(
            f"{name!r} is no name of a topic: it has 1 to 249 of a-z, A-Z, 0-9, ., _ and -"
        )
    return name


TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class Branch(BaseModel):
    """A branch of the settings tree: frozen. An unknown key is an error, and so is blank text that
    is not the default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _is_not_blank(cls, value: Any, info: ValidationInfo) -> Any:
        return check_not_blank(value, cls.model_fields[str(info.field_name)])
