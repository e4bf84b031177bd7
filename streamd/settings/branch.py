"""The class of the settings tree's branches, and the types of bounded numbers."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# Types of bounded numbers, and of durations.
Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


class Branch(BaseModel):
    """A branch of the settings tree: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
