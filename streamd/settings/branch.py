"""The class of the settings tree's branches, and the types of checked values."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

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


class Branch(BaseModel):
    """A branch of the settings tree: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
