"""Answers in a trial: the unit's arm decides whether the champion or a rule answers, and each
answer is sent as an impression."""

import secrets
from itertools import count
from typing import Any

from fastapi import HTTPException

from streamd.serving.requests import Answer, Recommend, Score
from streamd.settings.trials import CHAMPION, TrialSettings
from streamd.trials.arms import Arms
from streamd.trials.impression_sender import ImpressionSender
from streamd.trials.impressions import Impression, best_first, plain_keys


class TrialAnswers:
    """The present trial. Owner: the server's state. sender: of the impressions."""

    def __init__(self, settings: TrialSettings, sender: ImpressionSender) -> None:
        self._trial = settings.name
        self._arms = Arms(settings.name, settings.arms)
        self.sender = sender
        self._process = secrets.token_hex(8)
        self._numbers = count()

    def arm_of(self, unit: str) -> str:
        """The arm that answers a unit, empty for the champion."""
        arm = self._arms.arm_of(unit)
        return "" if arm == CHAMPION else arm

    def record(
        self, unit: str, request: Score | Recommend, answer: Answer, edge_set: str
    ) -> dict[str, Any]:
        """Send the impression of an answer. edge_set: its name. Returns: the fields `answer` and
        `arm` of the response."""
        # A random id, unique over processes and restarts.
        number = f"{self._process}-{next(self._numbers)}"
        arm = request.arm or CHAMPION
        dst = answer.dst if isinstance(request, Recommend) else best_first(answer)
        self.sender.put(
            Impression(
                answer=number,
                trial=self._trial,
                arm=arm,
                unit=unit,
                version=answer.version,
                src=plain_keys((request.src,))[0],
                dst=plain_keys(dst),
                edge_set=edge_set,
                edge=answer.edge,
                time_us=answer.as_of_us,
            )
        )
        return {"answer": number, "arm": arm}


def no_trial() -> HTTPException:
    """The error of a request with a unit while no trial runs."""
    return HTTPException(422, "trial: no trial runs on this server; leave it out, or set trials")
