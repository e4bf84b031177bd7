"""What became of a request to move the champion that another machine's trainer was asked for."""

from dataclasses import dataclass

import msgspec

from streamd.registry.journal import Move
from streamd.registry.registry import Registry

REFUSED = "refused.json"
"""File in `models/` of a replica: id of a request -> why the trainer refused it, of the newest."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The trainer was asked and has not answered yet. request: id by which to look again."""

    request: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The trainer did not do what it was asked for. reason: in words."""

    reason: str


def outcome_of(registry: Registry, request: str) -> Move | Refusal | Waiting:
    """What became of a request, as far as this machine knows."""
    for move in reversed(registry.journal.moves()):
        if move.request == request:
            return move
    try:
        content = (registry.folder / REFUSED).read_bytes()
        reason = msgspec.json.decode(content, type=dict[str, str]).get(request)
    except (FileNotFoundError, msgspec.DecodeError):
        reason = None
    return Waiting(request) if reason is None else Refusal(reason)
