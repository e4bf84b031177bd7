"""What the house measures does not get worse (`tests/contracts/house.py`); a new room begins at what is wanted of all."""

import ast

import pytest

from tests.contracts import house


@pytest.mark.parametrize("room", house.rooms())
def test_no_measure_of_a_room_gets_worse(room):
    assert not house.worse(room, house.recorded().get(room, {})), "`python -m tests.contracts.house` shows all figures"


def test_no_further_names_are_used_twice():
    held = house.recorded()["all rooms"]["counts"]
    assert {what: n for what, n in house.names_used_twice().items() if n > held[what]} == {}


def test_a_rate_may_rise_where_other_text_is_deleted_and_not_where_such_words_come(monkeypatch):
    what = next(iter(house.IN_WORDS))
    held = house.to_hold("windows", {})
    monkeypatch.setattr(house, "prose", lambda room: "what it does")
    assert not house.worse("windows", held)
    monkeypatch.setattr(house, "prose", lambda room: "what it does " * 100)
    assert what in house.worse("windows", held)
    assert house.to_hold("windows", held)["figures"][what] == held["figures"][what], "a worse figure is never written"


def test_only_rooms_that_are_there_are_held():
    assert set(house.recorded()) <= {*house.rooms(), "all rooms"}


@pytest.mark.parametrize(("name", "is_one"), [
    ("_tried", True), ("told_by_all", False), ("_carried", True), ("made", True), ("seed", False), ("is_refused", False), ("load", False),
    ("read_embed", False)])
def test_a_participle_as_a_name_is_counted_and_a_verb_is_not(name, is_one):
    assert house.is_participle(name) == is_one


def test_an_attribute_that_a_method_makes_is_seen_and_one_of_init_is_not():
    late = ast.parse("class A:\n def __init__(self):\n  self.a = 1\n def run(self):\n  self.a = 2\n  self.b = 3").body[0]
    early = ast.parse("class A:\n b: int\n def __init__(self):\n  self.a, self.c = 1, 2\n def run(self):\n  self.a = self.b = 2").body[0]
    assert house._assigned(late, late=True) - house._assigned(late, late=False) == {"b"}
    assert not house._assigned(early, late=True) - house._assigned(early, late=False)
