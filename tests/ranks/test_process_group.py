"""Collectives give every rank what they promise."""

import numpy as np
import pytest
import torch

from streamd.errors import RanksError
from streamd.ranks.process_group import add_up, gather, gather_array
from streamd.ranks.row_exchange import Route
from tests.ranks.threads import run


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_rows_of_every_rank_are_gathered_in_rank_order(size):
    def work(ranks):
        rows = torch.full((ranks.rank, 2), ranks.rank)
        return [part.tolist() for part in gather(ranks.learning, rows)]

    for got in run(size, work):
        assert got == [[[rank, rank]] * rank for rank in range(size)]


def test_flags_are_gathered_as_flags():
    got = run(3, lambda ranks: gather_array(ranks.recording, np.array([ranks.rank == 1])))
    assert all(one.tolist() == [False, True, False] and one.dtype == np.bool_ for one in got)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [0, 1, 5, 1000])
def test_a_sum_is_the_same_on_every_rank_and_in_every_run(size, length):
    def work(ranks):
        rng = np.random.default_rng(ranks.rank)
        values = torch.from_numpy(rng.normal(size=length).astype(np.float32))
        return values, add_up(ranks.learning, values)

    first, second = run(size, work), run(size, work)
    expected = torch.zeros(length)
    for values, _ in first:
        expected = expected + values
    for (_, one), (_, other) in zip(first, second, strict=True):
        assert torch.equal(one, expected)
        assert torch.equal(one, other)


def test_rank_0_tells_all_what_it_says():
    said = {"windows": [[1, 2]], "seq": 7, "text": "ü"}
    assert run(3, lambda ranks: ranks.broadcast(said if ranks.rank == 0 else None)) == [said] * 3
    assert run(3, lambda ranks: ranks.all(ranks.rank != 2)) == [False] * 3
    assert run(2, lambda ranks: ranks.all(True)) == [True] * 2
    assert run(3, lambda ranks: ranks.total([1.0, ranks.rank])) == [[3.0, 3.0]] * 3


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_rows_come_from_their_owners_and_gradients_go_back(size):
    table = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 3)))

    def work(ranks):
        own = table.clone().requires_grad_()
        rng = np.random.default_rng(ranks.rank)
        # One rank asks for nothing, and some ask for a node twice.
        asked = rng.integers(0, 50, 0 if ranks.rank == 1 else 20)
        weight = torch.from_numpy(rng.normal(size=(len(asked), 3)))
        route = Route(ranks.learning, asked)
        rows = route.rows(lambda node: own[torch.from_numpy(node)])
        (rows * weight).sum().backward()
        return asked, weight, rows.detach(), own.grad

    got = run(size, work)
    expected = torch.zeros_like(table)
    for asked, weight, rows, _ in got:
        assert torch.equal(rows, table[torch.from_numpy(asked)])
        expected.index_add_(0, torch.from_numpy(asked), weight)
    torch.testing.assert_close(sum(grad for *_, grad in got), expected)


def test_gradients_go_back_also_through_ranks_whose_own_rows_need_none():
    def work(ranks):
        own = torch.ones(50, 2, requires_grad=ranks.rank == 1)
        rows = Route(ranks.learning, np.arange(50)).rows(lambda node: own[torch.from_numpy(node)])
        rows.sum().backward()
        return own.grad

    gradients = run(3, work)
    assert gradients[0] is None and gradients[2] is None
    assert sorted(set(gradients[1].unique().tolist())) == [0, 3], "its nodes were used by three"


def test_a_rank_that_fails_ends_the_others():
    def work(ranks):
        if ranks.rank == 1:
            raise ValueError("broken")
        ranks.broadcast("hello")

    with pytest.raises(ValueError, match="broken"):
        run(3, work)


def test_a_rank_that_does_not_answer_is_a_named_error():
    def work(ranks):
        if ranks.rank == 0:
            ranks.broadcast("hello")

    with pytest.raises(RanksError, match="did not answer"):
        run(2, work, seconds=0.5)
