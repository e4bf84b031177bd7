"""Measures of the code that growth would undo: its words, its names, and the size of functions and classes.

`python -m tests.contracts.house` prints them by room next to the figures that must not get worse (`house.json`), and
`--better` writes the new ones if none is worse.
"""

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import streamd

ROOT = Path(streamd.__file__).parent
PAGES = [ROOT.parent / "README.md", *sorted((ROOT.parent / "docs").glob("*.md"))]
RATCHET = Path(__file__).with_name("house.json")
LONG_FUNCTION, LONG_CLASS = 60, 380
"""Lines. Kernels are left out: numba compiles what it calls again and again."""
WORDS = {
    "a clause in the place of a noun": (r"\b(?:what|whatever|whose|whom|whoever)\b", 15.0),
    "where, for if or when": (r"\bwhere\b", 30.0),
    "say, says, said": (r"\b(?:say|says|said)\b", 3.0),
    "place": (r"\bplaces?\b", 4.0),
    "behind, for after": (r"\bbehind\b", 2.0),
    "go on, for continue": (r"\b(?:go|goes|going|went|gone) on\b", 1.0),
    "nobody, whoever, somebody": (r"\b(?:nobody|whoever|somebody)\b", 1.0),
    "told, stands, anew, beside": (r"\b(?:told|tells?|stands?|anew|beside)\b", 2.0),
}
"""What is counted -> its words, and how many of 10,000 words a new room may have."""
PARTICIPLE = re.compile(r"^_*(?:[a-z]+_)*?(?:told|taken|made|left|shown|kept|read_back|given|sent|held|seen|done|known|found|[a-z]{3,}ed)$")
FIELD_WORDS = {
    "_answer_now": "compute, or reply", "_carried": "_catch_up", "_computed": "compute, or reply", "_let_through": "_await_acks",
    "_passes_freeing_memory": "run_freeing_memory", "_show": "the verb for what happens, as _publish_position or _print",
    "_tried": "the verb of the attempt", "_wanted": "_target_name", "ANOTHER": "PROMOTE_ANOTHER", "FreshSight": "FreshView",
    "go_on": "resume", "go_on_behind": "skip_to", "goes_on": "continues", "hide_deleted": "apply(changes) or drop_deleted",
    "Hoods": "EdgeQueries", "INSTEAD": "FALLBACK_NOTE", "Lane": "ProcessGroup", "leading": "leadership", "led_here": "lead_request",
    "LedHere": "LeadershipCheck", "lies": "is stored", "LifeSigns": "HeartbeatWatch", "models_mark": "checkpoint_marker",
    "neighbour": "neighbor", "neighbours": "neighbors", "OneWriter": "LockedFollower", "own_holds": "retention_leases",
    "read_mark": "read_marker", "Reign": "TrainerTerm", "reign": "trainer_term", "shown_seq": "published_seq",
    "ShownOffsets": "PublishedOffsets", "Sight": "EventView", "sights": "freshness", "sign_ns": "heartbeat_ns", "StaleSight": "StaleView",
    "stands": "is stored", "taken_back": "truncated", "told_by_all": "gather_messages", "TrainersReign": "TrainerSession",
    "Twin": "NightlyBaseline", "Twins": "Baselines",
}
"""Names that are gone from the code and may not come back -> the field's word."""
NO_PARTICIPLES = {"need", "feed", "seed", "speed", "indeed", "embed", "proceed", "succeed", "exceed", "shed", "bed", "red"}
"""Verbs and nouns that only end as participles do."""


@dataclass(frozen=True)
class Measure:
    """A figure of one room, made of a count for each file.

    count: of a file. size: of a file, if the figure is a rate: counts for `per` of size. new: the bound of the figure for a new
    room, the most it may have, or the least if `more_is_better`.
    """

    count: Callable[[Path], int]
    new: float
    size: Callable[[Path], int] | None = None
    per: float = 1.0
    more_is_better: bool = False

    def of(self, room: str) -> float:
        total = sum(self.count(path) for path in files(room))
        return total if self.size is None else self.per * total / max(1, sum(self.size(path) for path in files(room)))

    def is_worse(self, value: float, than: float) -> bool:
        return value < than if self.more_is_better else value > than

    def bad(self, path: Path) -> int:
        """What a file adds to a bad figure: its count, or how much it lacks to the figure of a new room. A file that moves to
        another room takes this along."""
        if not self.more_is_better:
            return self.count(path)
        assert self.size is not None
        return max(0, round(self.new * self.size(path) / self.per) - self.count(path))


def rooms() -> list[str]:
    """The folders of `streamd`, the ground (its loose modules), and the documentation."""
    return ["ground", *sorted(p.name for p in ROOT.iterdir() if (p / "__init__.py").exists()), "docs"]


@cache
def files(room: str) -> tuple[Path, ...]:
    if room == "docs":
        return tuple(PAGES)
    return tuple(sorted(ROOT.glob("*.py") if room == "ground" else (ROOT / room).rglob("*.py")))


def name_of(path: Path) -> str:
    """A file as `house.json` names it, by its path in the repository."""
    return str(path.relative_to(ROOT.parent))


def room_of(name: str) -> str:
    """The room of a file, by its name."""
    first, *folders = Path(name).parent.parts or ("docs",)
    return "docs" if first != "streamd" else folders[0] if folders else "ground"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def nodes(path: Path, kind: type | tuple[type, ...]) -> Iterator[ast.AST]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, kind))


@cache
def comments(path: Path) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return [t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT]


@cache
def prose(path: Path) -> str:
    """Docstrings, texts below constants and comments of a file; of a page of the documentation its sentences, without code."""
    if path.suffix == ".md":
        return re.sub(r"```.*?```|`[^`]*`", " ", path.read_text(), flags=re.S).lower()
    texts = comments(path) + [n.value.value for n in ast.walk(tree(path)) if isinstance(n, ast.Expr)
                              and isinstance(n.value, ast.Constant) and isinstance(n.value.value, str)]
    return re.sub(r"`[^`]*`", " ", "\n".join(texts)).lower()


def per_ten_thousand(words: str, new: float) -> Measure:
    pattern = re.compile(words)
    return Measure(lambda path: len(pattern.findall(prose(path))), new, size=lambda path: len(re.findall(r"[a-z']+", prose(path))), per=1e4)


def is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    made = {name for d in node.decorator_list for name in re.findall(r"\w+", ast.unparse(d))}
    return bool(made & {"kernel", "inner", "compiled_for", "njit"})


def lines(node: ast.AST) -> int:
    return node.end_lineno - node.lineno + 1  # type: ignore[attr-defined]


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in nodes(path, (ast.FunctionDef, ast.AsyncFunctionDef)) if not is_kernel(n)]  # type: ignore[arg-type]


def names_of_functions(path: Path) -> list[str]:
    return [n.name for n in functions(path) if not n.name.startswith("__")]


def is_participle(name: str) -> bool:
    """Whether a function's name ends in a participle that is no verb of its own, as `_carried`."""
    return name.rsplit("_")[-1] not in NO_PARTICIPLES and not name.startswith(("is_", "has_", "_is_", "_has_")) and bool(PARTICIPLE.match(name))


def born_later(path: Path) -> int:
    """Classes with attributes that a method other than `__init__` is the first to set."""
    return sum(bool(_assigned(c, late=True) - _assigned(c, late=False)) for c in nodes(path, ast.ClassDef))  # type: ignore[arg-type]


def _assigned(cls: ast.ClassDef, late: bool) -> set[str]:
    """Names of `self.` attributes that are set outside `__init__`, or in it or in the class itself."""
    found = set() if late else {t.id for n in cls.body for t in _targets(n) if isinstance(t, ast.Name)}
    for method in cls.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            if not late and any(ast.unparse(d).endswith(("setter", "property")) for d in method.decorator_list):
                found.add(method.name)
            if late != (method.name in ("__init__", "__new__", "__post_init__")):
                found |= {t.attr for n in ast.walk(method) for t in _targets(n)
                          if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name) and t.value.id == "self"}
    # What a parent class sets cannot be seen here.
    return set() if late and cls.bases and not _is_plain(cls) else found


def _is_plain(cls: ast.ClassDef) -> bool:
    return all(ast.unparse(base) in ("object", "Exception", "Generic") for base in cls.bases)


def _targets(node: ast.AST) -> list[ast.expr]:
    found = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []
    return [t for target in found for t in (target.elts if isinstance(target, ast.Tuple) else [target])]


def takes_all_settings(path: Path) -> int:
    """Constructors with an argument of type `Settings`."""
    inits = [n for n in functions(path) if n.name == "__init__"]
    return sum(any(a.annotation is not None and ast.unparse(a.annotation) == "Settings" for a in [*n.args.args, *n.args.kwonlyargs]) for n in inits)


def catches_everything(path: Path) -> int:
    caught = [n.type for n in nodes(path, ast.ExceptHandler)]  # type: ignore[attr-defined]
    return sum(c is None or bool({"Exception", "BaseException"} & set(re.findall(r"\w+", ast.unparse(c)))) for c in caught)


IN_WORDS = {f"{what} (in 10,000 words)": per_ten_thousand(pattern, new) for what, (pattern, new) in WORDS.items()}
IN_CODE = {
    "functions named by a participle (%)": Measure(
        lambda path: sum(map(is_participle, names_of_functions(path))), 3.0, size=lambda path: len(names_of_functions(path)), per=100),
    f"functions of more than {LONG_FUNCTION} lines": Measure(lambda path: sum(lines(n) > LONG_FUNCTION for n in functions(path)), 0),
    f"classes of more than {LONG_CLASS} lines": Measure(lambda path: sum(lines(n) > LONG_CLASS for n in nodes(path, ast.ClassDef)), 0),
    "classes with attributes born after __init__": Measure(born_later, 0),
    "constructors that take all settings": Measure(takes_all_settings, 0),
    "handlers of every exception": Measure(catches_everything, 0),
    "comments (in 100 lines)": Measure(
        lambda path: len(comments(path)), 3.0, size=lambda path: len(path.read_text().splitlines()), per=100, more_is_better=True),
}
MEASURES = IN_WORDS | IN_CODE


def measures_of(room: str) -> dict[str, Measure]:
    return IN_WORDS if room == "docs" else MEASURES


def names_used_twice() -> dict[str, int]:
    """Names that a reader meets in two rooms: of files, and of classes."""
    stems, classes = Counter(), Counter()
    for room in set(rooms()) - {"docs"}:
        stems.update({p.stem for p in files(room)} - {"__init__", "__main__"})
        classes.update(n.name for p in files(room) for n in nodes(p, ast.ClassDef) if not n.name.startswith("_"))  # type: ignore[attr-defined]
    return {"file names used in two rooms": sum(n > 1 for n in stems.values()), "class names used twice": sum(n > 1 for n in classes.values())}


def identifiers(path: Path) -> set[str]:
    """Names that a file gives to functions, classes, variables, attributes and arguments."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def measured(room: str) -> dict[str, float]:
    return {what: round(m.of(room), 1) for what, m in measures_of(room).items()}


def counted(room: str) -> dict[str, dict[str, int]]:
    """File of a room -> measure -> what the file adds to it, without zeros."""
    return {name_of(path): {what: n for what, m in measures_of(room).items() if (n := m.bad(path))} for path in files(room)}


def recorded() -> dict[str, Any]:
    """What is held: "rooms": room -> measure -> figure; "files": file -> measure -> count; "names": of names used twice."""
    found: dict[str, Any] = json.loads(RATCHET.read_text())
    return found


def rooms_of(held: Iterable[str], now: Iterable[str]) -> dict[str, str]:
    """Each file that is held -> the room that its counts belong to. held, now: names of files.

    A file that is gone moved if exactly one file of its name is new: its counts go along. Else they stay in its room, for code
    that went from it to other files there.
    """
    held, now = set(held), set(now)
    gone, new = (Counter(Path(name).name for name in names) for names in (held - now, now - held))
    moved = {Path(name).name: room_of(name) for name in now - held}
    return {name: moved[key] if name not in now and gone[key := Path(name).name] == new[key] == 1 else room_of(name) for name in held}


def held_counts(held: dict[str, Any]) -> dict[str, Counter[str]]:
    """Room -> measure -> the most that its files may add to the measure: what they had when it was held, in whatever room."""
    files_held = held.get("files", {})
    out: dict[str, Counter[str]] = defaultdict(Counter)
    now = [name_of(path) for room in rooms() for path in files(room)]
    for name, belongs in rooms_of(files_held, now).items():
        out[belongs].update(files_held[name])
    return out


def worse(room: str, held: dict[str, Any]) -> dict[str, str]:
    """The measures of a room that are worse than what is held of it, in words: both its figure, and the sum over its files. The
    figure alone may get worse, as a rate does where other text is deleted, or where a file comes from another room."""
    figures, most = held.get("rooms", {}).get(room, {}), held_counts(held)[room]
    now: Counter[str] = Counter()
    for counts in counted(room).values():
        now.update(counts)
    return {what: f"{value}, held at {figures.get(what, m.new)}"
            for (what, m), value in zip(measures_of(room).items(), measured(room).values(), strict=True)
            if m.is_worse(value, figures.get(what, m.new)) and now[what] > most[what]}


def all_worse(held: dict[str, Any]) -> dict[str, str]:
    """All that is worse than what is held, in words."""
    found = {f"{what} in {room}": words for room in rooms() for what, words in worse(room, held).items()}
    names = held.get("names", {})
    return found | {what: f"{n}, held at {names[what]}" for what, n in names_used_twice().items() if n > names.get(what, n)}


def to_hold() -> dict[str, Any]:
    """What to hold from now on."""
    return {"rooms": {room: measured(room) for room in rooms()}, "files": {k: v for room in rooms() for k, v in counted(room).items()},
            "names": names_used_twice()}


def written(held: dict[str, Any]) -> str:
    """`house.json`, a line for each room and file: so two changes of different files merge."""
    parts = [f'"{part}": {{\n' + ",\n".join(f" {json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in sorted(held[part].items())) + "\n}"
             for part in ("rooms", "files", "names")]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(words: Iterable[str]) -> int:
    before = recorded()
    for room in rooms():
        print(room)
        for what, value in measured(room).items():
            held = before["rooms"].get(room, {}).get(what, MEASURES[what].new)
            print(f"  {what:50} {value:8.1f}  held {held:8.1f}  new rooms {MEASURES[what].new:6.1f}")
    print(names_used_twice())
    bad = all_worse(before)
    for what, value in bad.items():
        print(f"worse: {what}: {value}")
    if "--better" in words and not bad:
        RATCHET.write_text(written(to_hold()))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
