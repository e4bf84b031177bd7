"""docs/tfgnn.md: its lines run as they stand."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "tfgnn.md").read_text()


def test_the_lines_of_the_page_run(tmp_path, capsys):
    pytest.importorskip("torch_geometric")
    code, = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names = {"folder": tmp_path}
    exec(compile(code, "docs/tfgnn.md", "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("[[b'temporal', b'graphs'], []]")]) == 10
    assert lines[-1] == "[b'p1'] [b'p0'] [0.5]"
    assert len(list(tmp_path.glob("graphs.tfrecord-*-of-00003"))) == 3
