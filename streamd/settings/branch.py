"""What every branch of the settings tree is made of: its class, and numbers with a bound."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# Types of numbers with a bound, and of lengths of time.
Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


class Branch(BaseModel):
    """A branch of the settings tree: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
