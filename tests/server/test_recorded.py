"""What a server answers stays what it was, request by request, through two swaps of versions."""

import json
import math

from tests.server.recorded import FILE, play

RELATIVE, ABSOLUTE = 1e-6, 3e-6
"""The latter for what is near zero: a score is a sum of some hundred float32 products of order one."""


def differences(got, want, at):
    """Where two answers differ, numbers beyond the tolerance and everything else at all."""
    if isinstance(want, dict) and isinstance(got, dict) and got.keys() == want.keys():
        return [d for key in want for d in differences(got[key], want[key], f"{at}.{key}")]
    if isinstance(want, list) and isinstance(got, list) and len(got) == len(want):
        return [d for i, pair in enumerate(zip(got, want, strict=True)) for d in differences(*pair, f"{at}[{i}]")]
    if isinstance(want, float) and isinstance(got, float):
        same = math.isclose(got, want, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    else:
        same = type(got) is type(want) and got == want
    return [] if same else [f"{at}: {got!r}, recorded {want!r}"]


def test_answers_are_what_they_were_when_they_were_recorded(tmp_path):
    got, want = play(tmp_path), json.loads(FILE.read_text())
    assert [e.get("ask") for e in got] == [e.get("ask") for e in want]
    found = [d for g, w in zip(got, want, strict=True)
             for d in differences(g, w, f"{w['phase']} {w.get('ask', '')}")]
    assert not found, "\n".join(found)


def test_a_changed_score_is_a_difference():
    want = json.loads(FILE.read_text())
    entry = next(e for e in want if e["answer"] and "scores" in e["answer"])
    changed = json.loads(json.dumps(entry))
    changed["answer"]["scores"][0]["score"] += 1e-5
    assert differences(changed, entry, "") and not differences(entry, entry, "")
