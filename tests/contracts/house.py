"""Measures of the code that growth would undo: its words, its names, and the size of functions and classes.

`python -m tests.contracts.house` prints them by room beside the figures that must not get worse (`house.json`), and
`--better` writes those that have become better.
"""

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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
NO_PARTICIPLES = {"need", "feed", "seed", "speed", "indeed", "embed", "proceed", "succeed", "exceed", "shed", "bed", "red"}
"""Verbs and nouns that only end as participles do."""


@dataclass(frozen=True)
class Measure:
    """A figure of one room. new: what a new room may have at most, at least if `more_is_better`."""

    of: Callable[[str], float]
    new: float
    more_is_better: bool = False
    count: Callable[[str], int] | None = None
    """Of a rate, the number that it is made of: the rate may rise where the number does not, as when other text is deleted."""

    def is_worse(self, value: float, than: float) -> bool:
        return value < than if self.more_is_better else value > than


def rooms() -> list[str]:
    """The folders of `streamd`, the ground (its loose modules), and the documentation."""
    return ["ground", *sorted(p.name for p in ROOT.iterdir() if (p / "__init__.py").exists()), "docs"]


@cache
def files(room: str) -> tuple[Path, ...]:
    if room == "docs":
        return ()
    return tuple(sorted(ROOT.glob("*.py") if room == "ground" else (ROOT / room).rglob("*.py")))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def nodes(room: str, kind: type | tuple[type, ...]) -> Iterator[ast.AST]:
    for path in files(room):
        yield from (node for node in ast.walk(tree(path)) if isinstance(node, kind))


def comments(path: Path) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return [t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT]


@cache
def prose(room: str) -> str:
    """Docstrings, texts below constants and comments of a room; of the documentation its sentences, without code."""
    if room == "docs":
        pages = (re.sub(r"```.*?```|`[^`]*`", " ", page.read_text(), flags=re.S) for page in PAGES)
        return "\n".join(pages).lower()
    texts: list[str] = []
    for path in files(room):
        texts += comments(path)
        texts += [n.value.value for n in ast.walk(tree(path)) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
                  and isinstance(n.value.value, str)]
    return re.sub(r"`[^`]*`", " ", "\n".join(texts)).lower()


def per_ten_thousand(words: str, new: float) -> Measure:
    pattern = re.compile(words)

    def count(room: str) -> int:
        return len(pattern.findall(prose(room)))

    return Measure(lambda room: 1e4 * count(room) / max(1, len(re.findall(r"[a-z']+", prose(room)))), new, count=count)


def is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    made = {name for d in node.decorator_list for name in re.findall(r"\w+", ast.unparse(d))}
    return bool(made & {"kernel", "inner", "compiled_for", "njit"})


def lines(node: ast.AST) -> int:
    return node.end_lineno - node.lineno + 1  # type: ignore[attr-defined]


def functions(room: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in nodes(room, (ast.FunctionDef, ast.AsyncFunctionDef)) if not is_kernel(n)]  # type: ignore[arg-type]


def participles(room: str) -> float:
    named = [n.name for n in functions(room) if not n.name.startswith("__")]
    return 100 * sum(is_participle(name) for name in named) / max(1, len(named))


def is_participle(name: str) -> bool:
    """Whether a function's name ends in a participle that is no verb of its own, as `_carried`."""
    return name.rsplit("_")[-1] not in NO_PARTICIPLES and not name.startswith(("is_", "has_", "_is_", "_has_")) and bool(PARTICIPLE.match(name))


def born_later(room: str) -> float:
    """Classes with attributes that a method other than `__init__` is the first to set."""
    return sum(bool(_assigned(c, late=True) - _assigned(c, late=False)) for c in nodes(room, ast.ClassDef))  # type: ignore[arg-type]


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


def takes_all_settings(room: str) -> float:
    """Constructors with an argument of type `Settings`."""
    inits = [n for n in functions(room) if n.name == "__init__"]
    return sum(any(a.annotation is not None and ast.unparse(a.annotation) == "Settings" for a in [*n.args.args, *n.args.kwonlyargs]) for n in inits)


def catches_everything(room: str) -> float:
    caught = [n.type for n in nodes(room, ast.ExceptHandler)]  # type: ignore[attr-defined]
    return sum(c is None or bool({"Exception", "BaseException"} & set(re.findall(r"\w+", ast.unparse(c)))) for c in caught)


def commented(room: str) -> float:
    code = sum(len(path.read_text().splitlines()) for path in files(room))
    return 100 * sum(len(comments(path)) for path in files(room)) / max(1, code)


IN_WORDS = {f"{what} (in 10,000 words)": per_ten_thousand(pattern, new) for what, (pattern, new) in WORDS.items()}
IN_CODE = {
    "functions named by a participle (%)": Measure(participles, 3.0),
    f"functions of more than {LONG_FUNCTION} lines": Measure(lambda room: sum(lines(n) > LONG_FUNCTION for n in functions(room)), 0),
    f"classes of more than {LONG_CLASS} lines": Measure(lambda room: sum(lines(n) > LONG_CLASS for n in nodes(room, ast.ClassDef)), 0),
    "classes with attributes born after __init__": Measure(born_later, 0),
    "constructors that take all settings": Measure(takes_all_settings, 0),
    "handlers of every exception": Measure(catches_everything, 0),
    "comments (in 100 lines)": Measure(commented, 3.0, more_is_better=True),
}
MEASURES = IN_WORDS | IN_CODE


def measures_of(room: str) -> dict[str, Measure]:
    return IN_WORDS if room == "docs" else MEASURES


def names_used_twice() -> dict[str, int]:
    """Names that a reader meets in two rooms: of files, and of classes."""
    stems, classes = Counter(), Counter()
    for room in rooms():
        stems.update({p.stem for p in files(room)} - {"__init__", "__main__"})
        classes.update(n.name for n in nodes(room, ast.ClassDef) if not n.name.startswith("_"))  # type: ignore[attr-defined]
    return {"file names used in two rooms": sum(n > 1 for n in stems.values()), "class names used twice": sum(n > 1 for n in classes.values())}


def measured(room: str) -> dict[str, float]:
    return {what: round(m.of(room), 1) for what, m in measures_of(room).items()}


def counted(room: str) -> dict[str, int]:
    return {what: m.count(room) for what, m in measures_of(room).items() if m.count is not None}


def recorded() -> dict[str, dict[str, dict[str, float]]]:
    """Room -> "figures" and "counts" -> measure -> what is held."""
    found: dict[str, dict[str, dict[str, float]]] = json.loads(RATCHET.read_text())
    return found


def worse(room: str, held: dict[str, dict[str, float]]) -> dict[str, str]:
    """The measures of a room that are worse than what is held of it, in words."""
    figures, counts, now = held.get("figures", {}), held.get("counts", {}), counted(room)
    return {what: f"{value}, held at {figures.get(what, m.new)}"
            for (what, m), value in zip(measures_of(room).items(), measured(room).values(), strict=True)
            if m.is_worse(value, figures.get(what, m.new)) and (what not in counts or now[what] > counts[what])}


def to_hold(room: str, held: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The figures to hold from now on: those that are better than before, else the old ones."""
    bad, figures, counts = worse(room, held), held.get("figures", {}), held.get("counts", {})
    return {"figures": {what: figures.get(what, value) if what in bad else value for what, value in measured(room).items()},
            "counts": {what: counts.get(what, n) if what in bad else n for what, n in counted(room).items()}}


def main(words: Iterable[str]) -> None:
    before = recorded()
    for room in rooms():
        print(room)
        for what, value in measured(room).items():
            held = before.get(room, {}).get("figures", {}).get(what, MEASURES[what].new)
            print(f"  {what:50} {value:8.1f}  held {held:8.1f}  new rooms {MEASURES[what].new:6.1f}")
    print(names_used_twice())
    if "--better" in words:
        twice = before["all rooms"]["counts"]
        fewer = {"all rooms": {"counts": {what: min(n, twice.get(what, n)) for what, n in names_used_twice().items()}}}
        RATCHET.write_text(json.dumps({room: to_hold(room, before.get(room, {})) for room in rooms()} | fewer, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
