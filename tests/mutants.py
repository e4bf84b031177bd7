"""`make mutants`: change the code in one place, and see whether the tests of its room notice.

The mutations named here once survived all tests. 100 more are drawn with cosmic-ray's operators, at most one a line, by
the hash of what they change, so that a change elsewhere does not draw others. Each is made in a copy of the tree and asked
of its room's tests only, for LIMIT seconds of CPU time at most; taking more counts as noticed, as a hang would.
"""

import concurrent.futures
import difflib
import hashlib
import itertools
import os
import queue
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
NUM_DRAWN, LIMIT, WORKERS = 100, 120, 2
ROOMS = {
    "streamd/ingest/order/merge.py": ["tests/ingest"],
    "streamd/eventlog/writer.py": ["tests/eventlog", "tests/properties/test_log_machine.py"],
    "streamd/eventlog/commits.py": ["tests/eventlog", "tests/properties/test_log_machine.py", "tests/replica/test_machine.py"],
    "streamd/eventlog/log_files.py": ["tests/eventlog", "tests/properties/test_log_machine.py", "tests/replica/test_machine.py"],
    "streamd/eventlog/commit_rows.py": ["tests/eventlog", "tests/properties/test_log_machine.py"],
    "streamd/eventlog/journal/journal.py": ["tests/eventlog", "tests/properties/test_log_machine.py"],
    "streamd/eventlog/recovery.py": ["tests/eventlog", "tests/properties/test_log_machine.py"],
    "streamd/graph/facts/pair_facts.py": ["tests/graph/test_facts.py"],
    "streamd/graph/facts/kernels.py": ["tests/graph/test_facts.py"],
    "streamd/training/versions/shadow.py": ["tests/training/test_shadow.py", "tests/registry"],
    "streamd/registry/gate.py": ["tests/training/test_shadow.py", "tests/registry"],
    "streamd/registry/journal.py": ["tests/registry"],
    "streamd/registry/registry.py": ["tests/registry"],
}
"""The files that mutations are drawn over, and the tests asked."""
SWAPS = ("Add_Sub", "Sub_Add", "Mul_Add", "FloorDiv_Mul", "Mod_FloorDiv", "LShift_RShift", "RShift_LShift", "BitAnd_BitOr",
         "BitXor_BitAnd")
COMPARISONS = ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE")
OTHERS = ("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd", "NumberReplacer",
          "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop", "ReplaceUnaryOperator_USub_UAdd",
          "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_Invert")
"""The operators drawn from: those whose result is most often a program of the right types that does something else."""


@dataclass(frozen=True)
class Mutation:
    """One change of one file. code: the whole file with it; line: the changed line, as the reasons below name it."""

    path: str
    name: str
    line: str
    code: str
    tests: list[str]


@dataclass(frozen=True)
class Named:
    """A change that once survived."""

    name: str
    path: str
    old: str
    new: str
    tests: list[str]


NO_RECORDED_LOSSES = ["--deselect", "tests/training/test_learner.py::test_a_change_meant_to_change_no_number_changes_none"]
NAMED = [
    Named("a deleted node's key finds its old id after a restart", "streamd/eventlog/commit_rows.py",
          "if k is not None and i not in gone}", "if k is not None}", ["tests/ingest"]),
    Named("a retired id is given again after a restart", "streamd/eventlog/writer.py",
          "        return self.state.num_nodes\n", "        return len(self.keys)\n", ["tests/ingest"]),
    Named("dead letters are flushed after the commit", "streamd/ingest/loop.py", """        self._letters.flush()
        with self._traced.commit(at.topics, positions, batch):
            self._log.commit(batch, source.progress(positions), watermark)
""", """        with self._traced.commit(at.topics, positions, batch):
            self._log.commit(batch, source.progress(positions), watermark)
        self._letters.flush()
""", ["tests/ingest"]),
    Named("a deleted row's key is remembered over other records", "streamd/decode/sources/topic.py",
          "before = self._newest.get(partition), record.key\n",
          "before = self._row_delete.get(partition, (-1, b\"\"))[0], record.key\n", ["tests/decode/test_envelopes.py"]),
    Named("embeddings are kept after the delete of a neighbor", "streamd/serving/loaded_version.py",
          "        if changes.has_deletes:\n", "        if False:\n",
          ["tests/test_deletes.py"]),
    Named("a version's folder is not synced after the rename", "streamd/storage.py",
          "        raise\n    # 4. Make the rename durable.\n    disk.sync_folder(path.parent)\n\n\ndef link", "        raise\n\n\ndef link", ["tests/test_storage.py"]),
    Named("a page that two memories share is written", "streamd/models/memory/pages.py",
          "shared: Bools = (page_P == 0) | (self._users[page_P] > 1)", "shared: Bools = page_P == 0", ["tests/models/test_memory_pages.py"]),
    Named("a deleted node's state stays in the files of memory", "streamd/models/memory/files.py",
          "            or memory.num_forgotten != self._num_forgotten\n", "", ["tests/models/test_memory_files.py"]),
    Named("replay draws the newest only", "streamd/training/replay.py", "rng.permutation(len(self._chunks)).tolist()",
          "reversed(range(len(self._chunks)))", ["tests/training/test_replay.py"]),
    Named("the held-out tail is learned too", "streamd/training/held_out.py", "(torch.arange(own.start, own.stop) < left).float()",
          "torch.ones(own.stop - own.start)", ["tests/training/test_learner.py", *NO_RECORDED_LOSSES]),
    Named("deletes from before a restart at a negative index", "streamd/graph/facts/set_facts.py",
          "np.maximum(new - self.edge, 0)", "new - self.edge", ["tests/graph/test_set_facts.py"]),
    Named("edges of a mapped record before its other events", "streamd/decode/sources/column_events.py",
          "            events = events.take(np.argsort(np.concatenate(self._order)))\n", "            pass\n", ["tests/ingest/test_mapped_order.py"]),
    Named("equal pages are counted once more", "streamd/models/memory/pages.py", "self._users[new_P] += 1",
          "self._users[new_P] += 2", ["tests/models/test_memory_pages.py"]),
    Named("the old mark is kept until the end of a takeover", "streamd/replica/models/takeover.py",
          "        remove_marker(self._data_dir, self._disk)\n        self._fetch", "        self._fetch", ["tests/replica/test_models_standby.py"]),
    Named("a member answers while its roles hold events", "streamd/replica/members.py",
          "            if at >= request.event and self.name", "            if self.name", ["tests/replica/test_members.py"]),
    Named("a score record says too early that all before it is written", "streamd/scoring/outbox.py",
          "record.encode(self._waiting[0].scored.record.event)", "record.encode(record.event)", ["tests/scoring"]),
    Named("the archive trims past a young manifest", "streamd/store/archive.py",
          "None if oldest is None else min([oldest, *later])", "oldest", ["tests/store/test_archive.py"]),
    Named("a copied page stays in use", "streamd/models/memory/pages.py", "        self._release(page_P)\n        return new_P",
          "        return new_P", ["tests/models/test_memory_pages.py"]),
]

MERGE, FACTS, KERNELS, ROWS = ("streamd/ingest/order/merge.py", "streamd/graph/facts/pair_facts.py", "streamd/graph/facts/kernels.py",
                               "streamd/eventlog/commit_rows.py")
REGISTRY, MOVES, JOURNAL = ("streamd/registry/registry.py", "streamd/registry/journal.py", "streamd/eventlog/journal/journal.py")
REASONS = {
    (MERGE, "NUM_LEADS = 1001"): "a parameter",
    (FACTS, "changed[name] = _grown(getattr(f, name), size, 1)"): "a pair's row is written whole when the pair is entered",
    (FACTS, "slots = 1 << (2 * len(self._f.key) + 1).bit_length() if len(self._f.key) else 2"): "more slots hold the same",
    (FACTS, "known[inside] = self._f.seen[node_N[inside]] != 0"): "a count is never negative",
    (KERNELS, "log_total[h] = np.log(f.totals[h]) - (time - f.size[3]) * f.decay[h] if f.totals[h] >= 0 else 0.0"):
        "where the total is 0 nothing was a destination, and no share is read",
    (KERNELS, "THREE_HOP_PARTNERS = 9"): "a parameter, which the reference takes from here",
    (KERNELS, "if step <= 0:"): "a step is never negative",
    (KERNELS, "while entry != f.size[0]:"): "entry comes to the size one by one",
    (KERNELS, "f.log_pop[node, h] = 1.0"): "pop_at says already that the node is no destination",
    (KERNELS, "NEVER = np.int64(+(2**62))"): "only ever compared for being equal",
    (FACTS, 'f"The facts cannot hold node {nodes - 2}.",'): "a number in an error's text",
    (FACTS, "NODE_STEP = 16383"): "a parameter",
    (REGISTRY, "if known is not None and known[ -1] == stamp:"): "a manifest is read again each time, which gives the same",
    (MOVES, "self._at = self._num_moves = self._inode = -1"): "no file has that number, so all three are set at the first look",
    (JOURNAL, "FILE_LINES = 65537"): "a parameter",
    (MOVES, "if status.st_ino != self._inode or status.st_size != self._at:"): "all is read again each time, which gives the same",
    ("streamd/eventlog/commits.py", '"rows": -1,'): "nobody reads the rows of a line that holds no batch",
    (JOURNAL, "self._seen_at = changed_at if time.time_ns() - changed_at > SETTLED_NS else -1"): "no folder changed at either time",
    (ROWS, "if len(rows) > state.num_nodes:"): "a file that is shorter is refused before it is read",
}
"""Why a survivor does not matter, by path and changed line."""


def changed_line(old: str, new: str) -> str:
    """The first line that differs, as it is after the change, or as it was where it is gone."""
    lines = [line for line in difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
             if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    added = [line[1:].strip() for line in lines if line[0] == "+"]
    return added[0] if added else lines[0][1:].strip()


def named() -> list[Mutation]:
    """The named ones. Raises: AssertionError where the code has changed so that one no longer applies."""
    out = []
    for change in NAMED:
        old = (ROOT / change.path).read_text()
        assert old.count(change.old) == 1, f"{change.name}: {change.path} no longer says {change.old!r} once"
        new = old.replace(change.old, change.new)
        out.append(Mutation(change.path, change.name, changed_line(old, new), new, change.tests))
    return out


def drawn() -> list[Mutation]:
    """`NUM_DRAWN` mutations over ROOMS, no two on one line."""
    # Only `make mutants` installs it; the tests look at the named ones.
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    operators = [f"core/ReplaceBinaryOperator_{swap}" for swap in SWAPS] + [f"core/{name}" for name in OTHERS] + [
        f"core/ReplaceComparisonOperator_{a}_{b}" for a, b in itertools.permutations(COMPARISONS, 2)]
    found: dict[tuple[str, int], tuple[str, Mutation]] = {}
    for path, tests in ROOMS.items():
        old = (ROOT / path).read_text()
        for operator in operators:
            for occurrence in range(10_000):
                new = mutate_code(old, get_operator(operator)(), occurrence)
                if new is None:
                    break
                line = changed_line(old, new)
                if line.startswith("@"):
                    continue
                number = next(i for i, (a, b) in enumerate(zip(old.splitlines(), new.splitlines(), strict=False)) if a != b)
                before = old.splitlines()[:number]
                nth = before.count(old.splitlines()[number])
                rank = hashlib.sha256(f"{path} {operator} {line} {nth}".encode()).hexdigest()
                mutation = Mutation(path, operator.removeprefix("core/"), line, new, tests)
                found[path, number] = min(found.get((path, number), (rank, mutation)), (rank, mutation), key=lambda m: m[0])
    return [m for _, m in sorted(found.values(), key=lambda m: m[0])[:NUM_DRAWN]]


def noticed(mutation: Mutation, tree: Path, python: str) -> bool:
    """Whether the tests fail with the mutation made in a copy of the tree."""
    file = tree / mutation.path
    old = file.read_text()
    file.write_text(mutation.code)
    try:
        return subprocess.run([python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutation.tests], cwd=tree,
                              env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(tree.parent / "cache")},
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT)),
                              capture_output=True, timeout=5 * LIMIT).returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(old)


def main(python: str) -> int:
    """Run all mutations. python: the interpreter that has the tests' packages. Returns: survivors without a reason."""
    mutations = [*named(), *drawn()]
    trees: queue.Queue[Path] = queue.Queue()
    unexplained = []
    with tempfile.TemporaryDirectory() as work:
        for i in range(WORKERS):
            tree = Path(work) / str(i)
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__", "*.egg-info"))
            trees.put(tree)

        def ask(mutation: Mutation) -> bool:
            tree = trees.get()
            try:
                return noticed(mutation, tree, python)
            finally:
                trees.put(tree)

        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            rooms = {tuple(m.tests): m for m in mutations}.values()
            as_it_is = [replace(m, code=(ROOT / m.path).read_text()) for m in rooms]
            for room, failed in zip(as_it_is, pool.map(ask, as_it_is), strict=True):
                assert not failed, f"{' '.join(room.tests)} fails without any mutation"
            for mutation, killed in zip(mutations, pool.map(ask, mutations), strict=True):
                reason = REASONS.get((mutation.path, mutation.line))
                verdict = "noticed" if killed else f"SURVIVES ({reason or 'no reason known'})"
                print(f"{verdict}: {mutation.path}: {mutation.name}: {mutation.line}", flush=True)
                if not killed and reason is None:
                    unexplained.append(mutation)
    print(f"{len(mutations)} mutations, {len(unexplained)} survive without a reason")
    return len(unexplained)


if __name__ == "__main__":
    sys.exit(min(main(str(Path(sys.argv[1]).absolute())), 1))
