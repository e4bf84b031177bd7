"""docs/tfgnn.md and docs/tfgnn-own.md: their lines run as they stand."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


def run(page, folder, capsys):
    """Run the lines of a page; returns what they print."""
    code, = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.S)
    exec(compile(code, page, "exec"), {"folder": folder})
    return capsys.readouterr().out.splitlines()


def test_the_lines_of_the_page_run(tmp_path, capsys):
    pytest.importorskip("torch_geometric")
    lines = run("tfgnn.md", tmp_path, capsys)
    assert len([line for line in lines if line.startswith("[[b'temporal', b'graphs'], []]")]) == 10
    assert lines[-1] == "[b'p1'] [b'p0'] [0.5]"
    assert len(list(tmp_path.glob("graphs.tfrecord-*-of-00003"))) == 3


def test_a_source_and_a_sink_of_ones_own_run(tmp_path, capsys):
    # The two latest of ann's before each time: bob and cid, then cid and dee.
    assert run("tfgnn-own.md", tmp_path, capsys) == ["ann [30, 41, 25]", "ann:1 [30, 25, 37]"]
    assert (tmp_path / "follows.csv").read_text().splitlines()[:2] == ["#source,#target,#time", "ann,bob,10"]
