"""docs/tfgnn.md, docs/tfgnn-own.md and docs/tfgnn-training.md: their lines run as they stand."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamd.cli.main import app

DOCS = Path(__file__).parents[2] / "docs"


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


def test_raw_tables_become_samples_and_a_model_of_pyg(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch_geometric")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMD_CONFIG", "")
    text = (DOCS / "tfgnn-training.md").read_text()
    blocks = re.findall(r"```(python|sh)\n(.*?)```", text, re.S)
    assert [kind for kind, _ in blocks] == ["python", "sh", "python"]
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, "tfgnn-training.md", "exec"), {"__name__": "page"})
        else:
            for line in block.replace("\\\n", "").splitlines():
                program, *words = shlex.split(line.partition(" > ")[0])
                done = CliRunner().invoke(app, words)
                assert program == "streamd" and done.exit_code == 0, (line, done.output)
                if " > " in line:
                    Path(line.partition(" > ")[2]).write_text(done.stdout)
    learned, ranked, mrr = re.fullmatch(r"(\d+) samples learned, (\d+) ranked: MRR ([\d.]+)", capsys.readouterr().out.splitlines()[-1]).groups()
    assert (int(learned), int(ranked)) == (900, 300)
    # A user clicks half of the items: who knows which has one of ten before him, .29, and chance is .18.
    assert float(mrr) > 0.24
