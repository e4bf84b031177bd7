"""The outcome of a request to another machine's trainer to move the champion."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from streamd.registry.journal import Move
from streamd.registry.registry import Registry
from streamd.storage import write_durably

REFUSED = "refused.json"
"""File in `models/`: id of a request -> why the trainer refused it, of the newest."""
KEPT_REFUSALS = 100
"""Newest refusals that servers here are told, whose callers wait for one."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The trainer got the request and has not answered yet. request: its id, for the next query."""

    request: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The trainer refused the request. reason: in words."""

    reason: str


class Refusals:
    """Reports the trainer's refusals to the servers of this machine. Owner: one thread."""

    def __init__(self, registry: Registry) -> None:
        self._path = registry.folder / REFUSED
        self._told: dict[str, str] = {}

    def tell(self, refused: Mapping[str, str]) -> None:
        """refused: id of a request -> reason, oldest first. Raises: OSError."""
        if refused != self._told:
            newest = dict(list(refused.items())[-KEPT_REFUSALS:])
            write_durably(self._path, msgspec.json.encode(newest))
            self._told = dict(refused)


def outcome_of(registry: Registry, request: str) -> Move | Refusal | Waiting:
    """The outcome of a request, as far as this machine knows it."""
    for move in reversed(registry.journal.moves()):
        if move.request == request:
            return move
    try:
        content = (registry.folder / REFUSED).read_bytes()
        reason = msgspec.json.decode(content, type=dict[str, str]).get(request)
    except (FileNotFoundError, msgspec.DecodeError):
        reason = None
    return Waiting(request) if reason is None else Refusal(reason)
