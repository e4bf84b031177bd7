import html
import json
import os
import re
import shutil
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import streamd
from streamd.cli.main import app
from streamd.errors import SettingsError
from streamd.evaluation.backtest import TITLES, Result
from streamd.evaluation.regimes import RegimeWindow
from streamd.evaluation.report.content import SHORT, Asked, Bars, Curve, Plot, report_of
from streamd.evaluation.report.forms import form_of
from streamd.evaluation.report.html import COLORS, as_html
from streamd.evaluation.report.plots import (
    NARROW,
    WIDE,
    apart,
    draw,
    tick_text,
    time_ticks,
    value_ticks,
)
from streamd.evaluation.report.text import as_json, as_markdown
from streamd.windows import Window
from tests.builders import HOUR, stream

CHROMIUM = shutil.which("chromium")
NAMES = [*(name for name in TITLES if name != "popularity"), *(f"popularity_{h}" for h in range(3))]
HOSTILE = "a|b <script>alert(1)</script> *x*"


def result(count=40, start=1_763_000_000 * 1_000_000):
    """A backtest whose regimes lie near one another, so that their names must move apart."""
    windows = [
        RegimeWindow(
            window=Window(start + i * HOUR, start + (i + 1) * HOUR, i, i + 1),
            num_scored=10,
            num_known=5,
            scores={
                name: dict.fromkeys(("mrr", "mrr_known", "hits10", "ap", "auc"), 0.9 - 0.004 * n + 0.01 * (i % 3))
                for n, name in enumerate(NAMES)
            },
            seconds={name: 0.1 * (n + 1) for n, name in enumerate(("live", "no_replay", "nightly", "nightly_live", "frozen"))},
        )
        for i in range(count)
    ]
    mean = dict.fromkeys(("mrr", "mrr_known", "hits10", "ap", "auc"), 0.9)
    return Result(windows, 2, {0: mean, 10: mean | {"mrr": 0.8}, None: mean | {"mrr": 0.7}})


def report(**values):
    asked = Asked(command=f"streamd backtest '{HOSTILE}'", settings=[("model.name", "pair", "file"), ("data_dir", HOSTILE, "default")])
    return report_of(result(**values), HOSTILE, asked)


def test_the_best_of_each_measure_is_bold_and_equal_ones_all_are():
    table = report().tables[0]
    assert table.best == {(0, column) for column in range(1, 6)}, "live is first, and leads in all five measures"
    rows = [*table.rows[:1], table.rows[0], *table.rows[2:]]
    from streamd.evaluation.report.content import _table
    assert {row for row, _ in _table("t", table.head, rows).best} == {0, 1}


def test_the_smallest_error_is_the_best():
    from streamd.evaluation.report.content import _table
    assert _table("t", ["", "MAE", "NDCG@10"], [["a", "2.0", "0.5"], ["b", "1.0", ""], ["c", "nan", "0.1"]]).best == {(1, 1), (0, 2)}


@example(5e-324, 0.0)
@example(1.0, 1.0)
@settings(max_examples=500)
@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_ticks_are_few_and_round_and_hold_all_values(one, other):
    low, high = sorted((one, other))
    ticks = value_ticks(low, high)
    step = ticks[1] - ticks[0]
    assert 2 <= len(ticks) <= 8 and ticks[0] <= low + 1e-6 * step and ticks[-1] >= high - 1e-6 * step
    if high - low > 1e-6 * max(abs(low), abs(high), 1):
        texts = [tick_text(t, ticks) for t in ticks]
        assert len(set(texts)) == len(ticks) and float(f"{step:.6e}".split("e")[0]) in (1, 2, 2.5, 5)


@pytest.mark.parametrize(
    ("hours", "texts"),
    [(1, ["10:15", "10:30", "10:45", "11:00"]), (40, ["12:00", "18:00", "3 Mar", "06:00"]), (24 * 6, ["3 Mar", "4 Mar", "5 Mar"]),
     (24 * 40, ["9 Mar", "16 Mar", "23 Mar"]), (24 * 200, ["2026-04", "2026-05", "2026-06"]), (24 * 4000, ["2028-01", "2030-01"])],
)
def test_times_are_marked_at_round_ones_of_the_calendar(hours, texts):
    begin = 1_772_446_200.0  # 2026-03-02 10:10 UTC, a Monday
    ticks = time_ticks(begin, begin + hours * 3600, 7)
    assert [text for _, text in ticks][: len(texts)] == texts and len(ticks) <= 7
    assert all(begin <= at <= begin + hours * 3600 for at, _ in ticks)


@given(st.integers(-(2**62), 2**62), st.floats(0, 1e12))
def test_no_time_breaks_a_plot(start, width):
    assert len(time_ticks(start / 1e6, start / 1e6 + width, 7)) <= 8


@given(st.lists(st.tuples(st.floats(0, 300), st.sampled_from([13, 26])), min_size=1, max_size=8))
def test_names_beside_curves_never_cover_one_another(wanted):
    wanted.sort()
    heights = [h for _, h in wanted]
    middles = apart([y for y, _ in wanted], heights, 300)
    edges = [(m - h / 2, m + h / 2) for m, h in zip(middles, heights, strict=True)]
    assert all(below[0] >= above[1] - 1e-6 for above, below in zip(edges, edges[1:], strict=False))
    assert edges[0][0] >= -1e-6 and edges[-1][1] <= 300 + 1e-6


def test_every_regime_has_a_colour_and_a_short_name():
    assert set(SHORT) == set(TITLES) and len(COLORS) == len(TITLES)


def test_values_that_are_none_leave_a_gap_and_no_nan():
    plot = Plot(title="t", times=[0.0, 1.0, 2.0], curves=[Curve(name="a", short="a", values=[float("nan"), 1.0, float("nan")])])
    assert "nan" not in draw(plot, WIDE) + draw(plot, NARROW)
    empty = Plot(title="t", times=[5.0], curves=[Curve(name="a", short="a", values=[float("nan")])])
    assert "nan" not in draw(empty, WIDE)


def test_what_comes_from_outside_stays_text():
    page = as_html(report())
    assert "<script" not in page and html.escape(HOSTILE) in page
    evil = replace(report(), plots=[Bars(title=HOSTILE, values={HOSTILE: 1.0})], verdict=HOSTILE, about=HOSTILE)
    evil = replace(evil, tables=[replace(t, title=HOSTILE, note=HOSTILE, head=[HOSTILE], rows=[[HOSTILE]]) for t in evil.tables])
    bare = as_html(evil).split("<main>")[1]
    assert "<script" not in bare and bare.count(html.escape(HOSTILE)) == 7 + 4 * len(evil.tables)
    text = as_markdown(report())
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert not re.search(r"(?<!\\)<script", text.split("## What was run")[0]) and all(r.count("|") - r.count("\\|") in (4, 3, 9, 7) for r in rows)


def test_markdown_has_the_verdict_the_tables_and_what_was_given():
    text = as_markdown(report())
    assert text.splitlines()[2].startswith("**Live ") and "| live | **" in text
    assert "| model.name | pair | file |" in text and "data\\_dir" not in text


def test_json_has_the_figures_as_numbers_and_every_setting():
    found = json.loads(as_json(report()))
    assert found["means"]["live"]["mrr"] == pytest.approx(result().mean("live")["mrr"])
    assert found["live_better_by_mrr"]["edgebank"]["mean"] == pytest.approx(0.024) and found["live_better_by_mrr"]["edgebank"]["radius"] >= 0
    assert len(found["by_window"]) == found["windows"] == 40 and set(found["settings"]) == {"model.name", "data_dir"}
    assert found["streamd"] == streamd.__version__ and found["verdict"] == report().verdict and found["facts_age"]["a window"]["mrr"] == 0.7


def test_what_cannot_be_told_is_null_in_json():
    few = json.loads(as_json(report(count=1)))
    assert few["live_better_by_mrr"]["frozen"]["radius"] is None


def test_a_form_is_asked_for_or_told_by_the_name_of_the_file(tmp_path):
    assert [form_of("", tmp_path / n) for n in ("a.md", "a.json", "a.html", "a")] == ["md", "json", "html", "html"]
    assert form_of("md", tmp_path / "a.html") == "md" and form_of("json", None) == "json" and form_of("", None) == ""
    for form, path in (("pdf", None), ("html", None), ("", tmp_path / "a.pdf")):
        with pytest.raises(SettingsError):
            form_of(form, path)


def test_a_report_goes_to_stdout_alone_where_it_has_no_file(tmp_path):
    src, dst, time = stream(400, hours=30)
    rows = "".join(f"{u},{v},{t // 1_000_000}\n" for u, v, t in zip(src.tolist(), dst.tolist(), time.tolist(), strict=True))
    (tmp_path / "events.csv").write_text("src,dst,time\n" + rows)
    env = {k: None for k in os.environ if k.startswith("STREAMD_")} | {"STREAMD_STREAM__TIME_UNIT": "s", "STREAMD_MODEL__NAME": "pair"}
    done = CliRunner().invoke(app, ["backtest", str(tmp_path / "events.csv"), "--format", "json"], env=env)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["verdict"].startswith("Live ") and found["settings"]["model.name"] == {"value": "pair", "from": "environment"}


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_page_fits_a_phone_and_a_desktop_and_asks_for_nothing(tmp_path):
    from playwright.sync_api import sync_playwright

    (tmp_path / "r.html").write_text(as_html(replace(report(), title="t")))
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for width, shown in ((390, "narrow"), (1200, "wide")):
            page = browser.new_page(viewport={"width": width, "height": 800})
            asked = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.goto(f"file://{tmp_path / 'r.html'}")
            assert asked == [f"file://{tmp_path / 'r.html'}"]
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator(f"svg.{shown}").first.is_visible() and page.locator("svg:visible").count() == 2

            # Text in the drawings keeps a size that can be read, and names stay inside.
            texts = page.evaluate(f"""[...document.querySelectorAll('svg.{shown} text')].map(t => {{
              const b = t.getBoundingClientRect(), s = t.closest('svg').getBoundingClientRect();
              return [b.height, b.left - s.left, s.right - b.right, t.textContent]; }})""")
            assert len(texts) > 16 and all(h >= 10 and left >= -1 and right >= -1 for h, left, right, _ in texts), texts
            page.close()
        browser.close()


def test_bars_are_part_of_the_longest():
    page = as_html(replace(report(), plots=[Bars(title="t", values={"a": 0.5, "b": 1.0, "c": 0.0})]))
    assert re.findall(r"width: ([\d.]+)%", page.split("<main>")[1]) == ["50.0", "100.0", "0.0"]


def test_the_headline_is_the_first_sentence_of_the_verdict():
    verdict = "Live beats the best rule by .157 ± .036 MRR; it beats nightly. An event had 29.0 negatives. Compare with rules."
    page = as_html(replace(report(), verdict=verdict)).replace("\xa0", " ")
    assert "<p class=verdict>Live beats the best rule by .157 ± .036 MRR; it beats nightly.</p>" in page
    assert "<p>An event had 29.0 negatives. Compare with rules.</p>" in page
