"""What the house measures does not get worse (`tests/contracts/house.py`); a new room begins at what is wanted of all."""

import ast

import pytest

from tests.contracts import house

HELD = house.recorded()
WORDS = next(iter(house.IN_WORDS))
LONG = f"functions of more than {house.LONG_FUNCTION} lines"


@pytest.mark.parametrize("room", house.rooms())
def test_no_measure_of_a_room_gets_worse(room):
    assert not house.worse(room, HELD), "`python -m tests.contracts.house` shows all figures"


def test_no_further_names_are_used_twice():
    assert {what: n for what, n in house.names_used_twice().items() if n > HELD["names"][what]} == {}


@pytest.mark.parametrize("path", sorted(house.ROOT.rglob("*.py")), ids=house.name_of)
def test_names_that_are_gone_do_not_come_back(path):
    """The field's word is beside each (`FIELD_WORDS`)."""
    assert {name: house.FIELD_WORDS[name] for name in house.identifiers(path) & house.FIELD_WORDS.keys()} == {}


@pytest.mark.parametrize("code", ["def lies(): ...", "class lies: ...", "lies = 1", "a.lies = 1", "def f(*, lies=1): ...", "for lies in a: ..."])
def test_every_way_to_give_a_name_is_seen(tmp_path, code):
    (tmp_path / "a.py").write_text(code)
    assert "lies" in house.identifiers(tmp_path / "a.py")
    (tmp_path / "b.py").write_text("a.lies()\nb(lies=1)\n'lies'")
    assert "lies" not in house.identifiers(tmp_path / "b.py"), "it may belong to others"


def test_a_rate_may_rise_where_other_text_is_deleted_and_not_where_such_words_come(monkeypatch):
    monkeypatch.setattr(house, "prose", lambda path: "what it does")
    assert not house.worse("windows", HELD | {"files": {house.name_of(p): {WORDS: 1} for p in house.files("windows")}})
    assert WORDS in house.worse("windows", HELD | {"files": {}})


def test_the_counts_of_a_file_go_to_the_room_that_it_moves_to():
    held = ["streamd/a/x.py", "streamd/a/y.py", "streamd/a/z.py", "streamd/a/kept.py", "docs/page.md", "streamd/top.py"]
    now = ["streamd/b/c/x.py", "streamd/b/y.py", "streamd/c/y.py", "streamd/a/kept.py", "docs/page.md", "streamd/b/new.py"]
    assert house.rooms_of(held, now) == {
        "streamd/a/x.py": "b", "streamd/a/y.py": "a", "streamd/a/z.py": "a", "streamd/a/kept.py": "a", "docs/page.md": "docs", "streamd/top.py": "ground"}


def test_a_room_takes_a_long_function_with_its_file_and_no_other(monkeypatch):
    came = house.ROOT / "windows" / "came.py"
    code = "def f():\n" + "    pass\n" * 70
    monkeypatch.setattr(house, "files", lambda room, before=house.files: (*before(room), came) if room == "windows" else before(room))
    monkeypatch.setattr(house.Path, "read_text", lambda path, before=house.Path.read_text: code if path == came else before(path))
    for cached in (house.tree, house.comments, house.prose):
        cached.cache_clear()
    gone = HELD["files"] | {"streamd/graph/came.py": {LONG: 1}}
    assert LONG in house.worse("windows", HELD)
    assert LONG not in house.worse("windows", HELD | {"files": gone})


def test_only_rooms_that_are_there_are_held():
    assert set(HELD["rooms"]) <= set(house.rooms())


def test_a_file_is_held_on_a_line_of_its_own():
    lines = house.RATCHET.read_text().splitlines()
    assert sum(name.startswith(("streamd/", "docs/", "README")) for name in HELD["files"]) == len(HELD["files"])
    assert all(any(line.startswith(f' "{name}": ') for line in lines) for name in HELD["files"])
    assert house.written(HELD) == house.RATCHET.read_text()


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
