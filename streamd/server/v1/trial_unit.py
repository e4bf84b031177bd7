"""The part of a request that takes part in a trial."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class TrialUnit(BaseModel):
    """The unit of a request in a trial, for example a user: the same unit always gets the same
    arm."""

    model_config = ConfigDict(extra="forbid")

    unit: str = Field(min_length=1, max_length=256, description="the unit", examples=["user:74"])


Trial = Annotated[
    TrialUnit | None, Field(description="let the arm of a unit in the present trial answer")
]
