"""The `/v1` route of trials."""

import asyncio
import sqlite3

from fastapi import APIRouter, Depends, HTTPException
from pydantic import BaseModel, Field

from streamd.server.http.query_names import refuse_unknown_parameters
from streamd.server.state import State, require_key
from streamd.trials.report import arm_fields, read_figures

router = APIRouter(
    prefix="/v1", dependencies=[Depends(require_key), Depends(refuse_unknown_parameters)]
)


class TrialArm(BaseModel):
    """The figures of an arm, over the answers that are older than the horizon."""

    arm: str
    share: float = Field(description="of the units")
    units: int
    takers: int = Field(description="units with an outcome")
    answers: int
    pending: int = Field(description="newer answers, which count nowhere yet")
    outcomes: int
    outcomes_a_unit: float
    value: float = Field(description="sum of the values of the outcomes")
    value_a_unit: float
    difference: float | None = Field(
        description="value a unit minus that of the champion; null for the champion, and while it "
        "is too early"
    )
    radius: float | None = Field(description="half the width of the interval of the difference")
    is_sure: bool = Field(description="whether that interval excludes 0")


class TrialResponse(BaseModel):
    trial: str
    mismatch: bool = Field(
        description="whether the numbers of units contradict the shares; then the differences mean "
        "nothing"
    )
    arms: list[TrialArm] = Field(description="the champion first")
    uncounted: dict[str, int] = Field(description="reason -> records and events that do not count")


@router.get("/trials", tags=["trials"], responses={404: {}, 503: {}})
async def trials(state: State) -> TrialResponse:
    """The figures of the trial that runs."""
    settings = state.settings
    if not settings.trials.name:
        raise HTTPException(404, "no trial runs on this server: trials.name is not set")
    # SQLite reads files, so another thread waits for it.
    try:
        figures = await asyncio.to_thread(read_figures, settings.data_dir, settings.trials.name)
    except sqlite3.DatabaseError as error:
        raise HTTPException(503, f"the state of the trial cannot be read: {error}") from None
    if figures is None:
        raise HTTPException(404, "the role trial has written no figures on this machine yet")
    return TrialResponse(
        trial=figures.name,
        mismatch=figures.mismatch,
        arms=[TrialArm(**arm_fields(one)) for one in figures.arms],
        uncounted=figures.reasons,
    )
