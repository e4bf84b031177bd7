"""Fetches rows of nodes from the ranks that own them, and sends gradients back."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from streamd.events import Int64
from streamd.graph.ownership import owner_of
from streamd.ranks.process_group import ProcessGroup, counts_from


class Route:
    """The route of a request for some nodes to their owners, and of the rows back.

    asked: int64[A], the nodes that other ranks request from this one, those of rank 0 first.
    """

    def __init__(self, group: ProcessGroup, node_N: Int64) -> None:
        """node_N: int64[N], in any order; all ranks construct the route at the same time."""
        owner_N = owner_of(node_N, group.size)
        order = np.argsort(owner_N, kind="stable")
        self._group = group
        self._order = torch.from_numpy(order)
        self._sent = np.bincount(owner_N, minlength=group.size).tolist()
        self._received = counts_from(group, self._sent)
        by_owner = torch.from_numpy(node_N[order])
        self.asked: Int64 = group.all_to_all(by_owner, self._sent, self._received).numpy()

    @classmethod
    def known(cls, group: ProcessGroup, asker_A: Int64, node_A: Int64) -> "Route":
        """The route of requests that every rank can compute, so that no request is sent.

        asker_A: int64[A], the rank that requests each node. node_A: int64[A].
        """
        route = cls.__new__(cls)
        owner_A = owner_of(node_A, group.size)
        own, asked = np.flatnonzero(asker_A == group.rank), np.flatnonzero(owner_A == group.rank)
        route._group = group
        route._order = torch.from_numpy(np.argsort(owner_A[own], kind="stable"))
        route._sent = np.bincount(owner_A[own], minlength=group.size).tolist()
        route._received = np.bincount(asker_A[asked], minlength=group.size).tolist()
        route.asked = node_A[asked[np.argsort(asker_A[asked], kind="stable")]]
        return route

    def answer(self, rows: Tensor) -> Tensor:
        """Send each requesting rank its rows. rows: [A, ...], of `asked`.

        Returns: [N, ...], the rows of the requested nodes, in their order.
        """
        got = self._group.all_to_all(rows, self._received, self._sent)
        out = torch.empty_like(got)
        out[self._order.to(got.device)] = got
        return out

    def back(self, rows: Tensor) -> Tensor:
        """Send values of the requested nodes to their owners. rows: [N, ...]. Returns: [A, ...]."""
        ordered = rows[self._order.to(rows.device)]
        return self._group.all_to_all(ordered, self._sent, self._received)

    def rows(self, of: Callable[[Int64], Tensor]) -> Tensor:
        """The rows of the requested nodes; gradients flow back to their owners.

        of: returns rows of nodes that this rank owns. Either all ranks run backward through it, or
        none.
        """
        # The anchor requires a gradient, so that all ranks run backward even if this rank's rows
        # need none.
        anchor = torch.zeros((), requires_grad=torch.is_grad_enabled())
        rows: Tensor = _Answer.apply(of(self.asked), self, anchor)  # type: ignore[no-untyped-call]
        return rows


class _Answer(torch.autograd.Function):
    """`Route.answer`, with `Route.back` for gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, route: Route, anchor: Tensor) -> Tensor:
        ctx.route = route
        return route.answer(rows.contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.route.back(gradients[0].contiguous()), None, None
