"""The page of figures is written part by part; parts that were not run, or failed, keep their section."""

import sys

import pytest

from tests.benchmarks import page
from tests.benchmarks.page import Run, number, page_of, section_of, sections_of

ROW = {"what": "a | b", "ours": 1234.5, "unit": "ms", "peer": 617.25, "peer_name": "the peer"}


def run_of(*rows):
    return Run(rows, (0.1, 1.9), 61.0, "2026-11-28", "abc1234")


def test_a_page_is_read_back_as_it_was_written():
    sections = {"graph": section_of(run_of(ROW)), "ingest": section_of(run_of())}
    text = page_of(sections)
    assert sections_of(text) == sections and text.index("## graph") < text.index("## ingest")
    assert "| a \\| b | 1,234 | ms | 617, the peer | 2 |" in text and "load 0.1 before and 1.9 after, 61 s" in text
    assert "Skipped: the machine lacks" in sections["ingest"]
    assert "## gone" not in page_of(sections | {"gone": "a part that no longer exists"})


def test_a_part_that_fails_keeps_its_section_and_fails_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "PAGE", tmp_path / "figures.md")
    page.PAGE.write_text(page_of({"graph": "old graph", "ingest": "old ingest", "files": "old files"}))
    monkeypatch.setattr(page, "run_part", lambda name, smoke: None if name == "graph" else run_of(ROW))
    monkeypatch.setattr(sys, "argv", ["page", "files", "graph"])
    with pytest.raises(SystemExit, match="no figures of graph"):
        page.main()
    found = sections_of(page.PAGE.read_text())
    assert found == {"graph": "old graph", "ingest": "old ingest", "files": section_of(run_of(ROW))}


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.00012, "1.20e-04"), (0.1234, "0.123"), (15.55, "15.6"), (100, "100"), (1234567.8, "1,234,568")])
def test_figures_have_three_digits(value, text):
    assert number(value) == text
