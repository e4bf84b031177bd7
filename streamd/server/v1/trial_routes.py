"""The `/v1` route of trials."""

import asyncio

from fastapi import APIRouter, Depends, HTTPException
from pydantic import BaseModel, Field

from streamd.server.http.query_names import refuse_unknown_parameters
from streamd.server.state import State, require_key
from streamd.trials.figures import ArmFigures, look
from streamd.trials.trial_state import read_sums, state_path

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
    value: float = Field(description="sum of the values of the outcomes")
    difference: float | None = Field(
        description="value a unit minus that of the champion; null for the champion, and while it "
        "is too early"
    )
    radius: float | None = Field(description="half the width of the interval of the difference")


class TrialResponse(BaseModel):
    trial: str
    mismatch: bool = Field(
        description="whether the numbers of units contradict the shares; then the differences mean "
        "nothing"
    )
    arms: list[TrialArm] = Field(description="the champion first")
    uncounted: dict[str, int] = Field(description="reason -> records and events that do not count")


@router.get("/trials", tags=["trials"], responses={404: {}})
async def trials(state: State) -> TrialResponse:
    """The figures of the trial that runs."""
    settings = state.settings
    if not settings.trials.name:
        raise HTTPException(404, "no trial runs on this server: trials.name is not set")
    # SQLite reads files, so another thread waits for it.
    path = state_path(settings.data_dir, settings.trials.name)
    sums = await asyncio.to_thread(read_sums, path)
    if sums is None:
        raise HTTPException(404, "the role trial has written no figures on this machine yet")
    figures, _ = look(sums)
    return TrialResponse(
        trial=figures.name,
        mismatch=figures.mismatch,
        arms=[_arm(one) for one in figures.arms],
        uncounted=figures.reasons,
    )


def _arm(one: ArmFigures) -> TrialArm:
    difference = one.difference
    return TrialArm(
        arm=one.arm,
        share=one.share,
        units=one.units,
        takers=one.takers,
        answers=one.impressions,
        pending=one.pending,
        outcomes=one.outcomes,
        value=one.value,
        difference=None if difference is None else difference.mean,
        radius=None if difference is None else difference.radius,
    )
