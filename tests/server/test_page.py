"""The status page in a real browser, headless, without the internet. One server and one browser for all tests."""

import json
import math
import os
import shutil
import socket
import threading
import time
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import structlog
import uvicorn
from typer.testing import CliRunner

from streamd.cli.main import app as cli
from streamd.client import Client
from streamd.clock import SystemClock
from streamd.eventlog.journal.changelog_position import (
    CHANGELOG,
    UNKNOWN,
    ChangelogPosition,
    PositionFile,
)
from streamd.eventlog.layout import MOVES
from streamd.eventlog.reader import LogReader
from streamd.eventlog.writer import LogWriter
from streamd.events import Progress
from streamd.ingest.dead_letters.sinks import DeadLetter, LocalDeadLetters
from streamd.roles import folder_of, roles_of
from streamd.server.app import create_app
from streamd.server.engine.status import EngineState
from streamd.server.page.key_watch import OddKeysOnPage
from streamd.settings.loading import load_settings
from streamd.settings.paths import Paths
from streamd.telemetry.heartbeat import Beat, Heartbeat, read_beats
from streamd.telemetry.progress import Reading
from streamd.training.trainer import Trainer
from streamd.windows.history import HistoryReader, SetScores
from streamd.windows.novelty import NOVELTIES, NoveltyCounts
from streamd.windows.version_scores import version_scores
from tests.benchmarks.measure import wikipedia_log
from tests.builders import HOUR, batch, stream, write_log
from tests.server.world import SCHEMA, World, wait

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
HOSTILE = "<img src=x onerror='document.title=\"owned\"'>"
DESKTOP, PHONE = {"width": 1100, "height": 900}, {"width": 375, "height": 740}
WATCH = """() => { window.shift = 0; new PerformanceObserver(l => l.getEntries().forEach(e => { if (!e.hadRecentInput) window.shift += e.value; }))
                   .observe({ type: "layout-shift", buffered: true }); }"""

SOON = "{ const real = setTimeout; window.setTimeout = (f, ms, ...rest) => real(f, Math.min(ms, 200), ...rest); }"
"""The page asks every two seconds; no test waits so long."""


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright
    with sync_playwright() as started:
        made = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


class Served:
    """A server of a world in a thread."""

    def __init__(self, world):
        self.world = world
        self.listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self.listening.bind(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.listening.getsockname()[1]}/"
        self.server = uvicorn.Server(uvicorn.Config(create_app(world.state), log_level="error"))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listening]})
        self.thread.start()
        wait(self.has_begun, 60)

    def has_begun(self):
        return self.world.engine.status.ready and self.world.engine.status.version == self.world.registry.champion()

    def stop(self):
        self.world.state.draining = True
        self.server.should_exit = True
        self.thread.join()
        self.listening.close()


class Small(Served):
    """A server of ten windows, and the writer of its log."""

    def __init__(self, path):
        # Ten windows, the last five after midnight.
        src, dst, time_us = stream(500, hours=10)
        write_log(path, src, dst, time_us + 19 * HOUR, SCHEMA, watermark=100 * HOUR)
        letters = LocalDeadLetters(path / "deadletter", 1 << 20)
        for i in range(3):
            letters.add(DeadLetter("events", 0, i, -1, "bad_time", f"{HOSTILE} is no time", 1_700_000_000_000_000, HOSTILE.encode()))
        letters.flush()
        world = World(path, server__api_keys=["reader"], server__admin_keys=["admin"], registry__gate_events=500)
        world.train()
        self.writer = LogWriter(path, SCHEMA, 100_000)
        # The other roles, which do not run, stay in their first minute.
        world.state.page._begun = math.inf
        super().__init__(world)

    def happen(self, src, dst, keys=()):
        """Commit an event that nobody learned yet. keys: of nodes that are new."""
        for key in keys:
            self.writer.keys[key] = len(self.writer.keys)
        rows = batch(SCHEMA, np.array([src]), np.array([dst]), np.array([self.writer.watermark + 1]), keys)
        self.writer.commit(rows, Progress(), self.writer.watermark + 1)

    def stop(self):
        super().stop()
        self.writer.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    made = Small(tmp_path_factory.mktemp("page"))
    yield made
    made.stop()


def opened(browser, served, key="reader", **options):
    options = {"viewport": DESKTOP} | options
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.faults, page.asked = [], []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    page.add_init_script(f"({WATCH})()")
    page.add_init_script(SOON)
    page.goto(served.address)
    if key:
        page.fill("#key", key)
        page.press("#key", "Enter")
        page.wait_for_selector("#versions button")
    return page


def close(page, served):
    """What holds of the page whatever was done: no error, nothing from elsewhere, no markup from data."""
    assert page.faults == []
    assert all(url.startswith((served.address, "data:")) for url in page.asked), "nothing from elsewhere"
    assert page.title() == "streamd"
    page.context.close()


def ask(page, source):
    page.fill("#source", source)
    page.press("#source", "Enter")
    page.wait_for_function("source => document.querySelector('#best-title').textContent === `What comes next for ${source}`", arg=source)


def test_the_page_tells_the_story_in_one_sentence_three_numbers_and_a_curve(browser, served):
    begun = time.perf_counter()
    page = opened(browser, served)
    head = served.world.state.page.content()["headline"]
    sentence = page.inner_text("#sentence")
    assert "10 windows are too few to tell" in sentence and "midnight" not in sentence, "the copy has facts of its midnight"
    assert page.get_attribute("#sentence", "class") == "level"
    assert page.locator("#numbers dd.big").all_inner_texts() == [f"{head[k]:.3f}" for k in ("live", "nightly", "rule")]
    labels = page.locator("#curve text").all_text_contents()
    assert {"live model", "copy of last midnight"} <= set(labels) and "partners + popularity" in labels
    drawn = [len(d) for d in page.eval_on_selector_all("#curve path", "all => all.map(p => p.getAttribute('d'))")]
    assert len(drawn) == 3 and min(drawn) > 20 and page.is_hidden("#notice")
    assert page.inner_text("#state") == "answering" and "UTC" in page.inner_text("#newest")
    assert page.locator("#sparks dt").count() == 6
    said = page.inner_text("#over")
    assert f"over the {head['num_compared']} of {head['num_events']} events whose destination was known before" in said
    assert f"(over all of them the live model has {head['live_all']:.3f})" in said and 0 < head["num_compared"] < head["num_events"]
    print(f"page open and drawn after {time.perf_counter() - begun:.2f} s")

    # Pointer and keys read single windows.
    page.hover("#curve svg")
    assert "window " in page.inner_text("#curve .tip")
    page.focus("#curve svg")
    page.keyboard.press("ArrowLeft")
    assert page.is_visible("#curve .tip")
    close(page, served)


def test_the_page_is_small_still_and_sends_nothing_elsewhere(browser, served):
    page = opened(browser, served, key=None)
    sizes = []
    page.on("response", lambda r: sizes.append(int(r.headers.get("content-length", 0))) if not r.url.endswith(("json", "200")) else None)
    page.reload()
    page.wait_for_selector("#key")
    assert page.is_hidden("#refused")
    page.fill("#key", "another")
    page.press("#key", "Enter")
    page.wait_for_selector("#refused")
    page.fill("#key", "reader")
    page.press("#key", "Enter")
    page.wait_for_selector("#versions button")
    with page.expect_response("**/status.json*"):
        pass
    page.wait_for_timeout(200)
    assert 10_000 < sum(sizes) < 150_000, sizes
    assert page.evaluate("window.shift") < 0.02
    source = page.content()
    assert "innerHTML" not in source and "http://" not in source.replace("http://www.w3.org/2000/svg", "").replace(served.address, "")
    close(page, served)


def test_an_answer_says_why_and_its_graph_follows_the_log(browser, served):
    page = opened(browser, served)
    # Completion, by keys alone.
    page.focus("#source")
    page.keyboard.type("n:1")
    page.wait_for_selector("#keys li")
    assert all(text.startswith("n:1") for text in page.locator("#keys li").all_inner_texts())
    page.keyboard.press("Escape")
    assert page.is_hidden("#keys")
    page.keyboard.type("0")
    page.wait_for_selector("#keys li:has-text('n:10')")
    page.keyboard.press("ArrowDown")
    assert page.get_attribute("#source", "aria-activedescendant") == "key-0"
    page.keyboard.press("Enter")
    page.wait_for_selector("#around circle")
    with Client(served.address, api_key="reader") as client:
        want = client.recommend("n:10", k=10).scores
        told = client.explain("n:10", want[0].dst)
    assert page.locator("#best .key").all_inner_texts() == [str(one.dst) for one in want]
    assert page.locator("#best .badge.on").count() > 0, "known partners are marked"

    # Why: the shares are those of the route.
    page.click("#best li:first-child button")
    page.wait_for_selector("#why-0 .share")
    assert told.groups[0].words in page.inner_text("#why-0")
    assert page.locator("#around circle").count() <= 50

    # A new event appears without a reload.
    served.happen(10, 21)
    page.wait_for_selector("#around line.new")
    assert "n:10 → n:21" in page.inner_text("#happened li:first-child")
    close(page, served)


def test_on_a_phone_the_rule_s_scores_and_its_name_are_seen_without_a_swipe(browser, served):
    page = opened(browser, served, viewport={"width": 390, "height": 800})
    head = page.locator("#windows th:has-text('popularity'), #windows th:has-text('EdgeBank')").bounding_box()
    box = page.locator(".scroll:has(#windows)").bounding_box()
    assert head["x"] + head["width"] <= box["x"] + box["width"]
    for label in page.locator("#curve svg text").all():
        place = label.bounding_box()
        assert place["x"] >= 0 and place["x"] + place["width"] <= box["x"] + box["width"]
    close(page, served)


def test_odd_keys_are_shown_as_text(browser, served, monkeypatch):
    monkeypatch.setattr(OddKeysOnPage, "content", lambda self: [f"{HOSTILE} is the source of 3 of 9 edges"])
    page = opened(browser, served)
    page.wait_for_selector("#odd-keys li")
    assert page.inner_text("#odd-keys") == f"{HOSTILE} is the source of 3 of 9 edges"
    monkeypatch.setattr(OddKeysOnPage, "content", lambda self: [])
    page.wait_for_selector("#odd", state="hidden")
    close(page, served)


def test_keys_reasons_and_examples_are_shown_as_text(browser, served):
    hostile = [HOSTILE, "</script><script>document.title='owned'</script>", "a\"b'c`d${1}&amp;", "\u202egnp.exe"]
    first = len(served.writer.keys)
    for i, key in enumerate(hostile):
        served.happen(first + i, 20, [key])
    wait(lambda: hostile[-1] in served.world.engine.keys)
    page = opened(browser, served)
    assert HOSTILE in page.inner_text("#letters-table") and "3" in page.inner_text("#letters-table")
    for key in hostile[:3]:
        page.fill("#source", key[:12])
        page.wait_for_selector("#keys li")
        assert key in page.locator("#keys li").all_inner_texts()
        page.press("#source", "Escape")
        ask(page, key)
        page.wait_for_selector("#around circle")
        assert key in page.inner_text("#best-title") and key in page.locator("#around title").all_text_contents()
    assert page.locator("main img, main script").count() == 0
    close(page, served)


def test_sources_are_offered_and_a_node_that_is_none_is_named(browser, served):
    page = opened(browser, served)
    page.wait_for_selector("#try button")
    log = served.world.engine.log
    src, dst, _ = log.edges(log.first_edge, log.num_edges)
    sources, targets = ({log.keys[n] for n in nodes.tolist()} for nodes in (src, dst))
    assert set(page.locator("#try button").all_inner_texts()) <= {key[:24] for key in sources}
    page.fill("#source", "n:2")
    page.wait_for_selector("#keys li")
    assert set(page.locator("#keys li").all_inner_texts()) <= sources
    ask(page, "n:25")
    assert "n:25" in targets - sources
    page.wait_for_selector("#asked:has-text('n:25 is not known as a source: the answers rank for it as for one.')")
    ask(page, "n:2")
    page.wait_for_selector("#asked:not(:has-text('source'))")
    close(page, served)


def confirm(page, why, key):
    page.fill("#why", why)
    page.fill("#admin", key)
    page.click("#yes")


def test_an_operator_promotes_and_rolls_back_after_seeing_both_scores(browser, served):
    world = served.world
    page = opened(browser, served)
    champion, proven = world.registry.champion(), world.registry.shadow()
    assert page.locator("#versions tbody tr").count() == 5 and page.locator("#versions th:has-text('window 1970-01-02')").count() >= 1
    page.click("#more-versions")
    other = next(n for n in world.registry.names()[::-1] if n not in (champion, proven) and world.registry.is_servable(world.registry.manifest(n)))
    for key in ("reader", "admin"):
        page.click(f"button[data-version='{other}']")
        both = page.inner_text("#both")
        scores = version_scores(HistoryReader(world.path).refresh(), world.registry.names())
        assert f"{scores[other].mrr:.3f}" in both and f"{world.registry.manifest(other).scores['live']['mrr']:.3f}" not in both
        assert champion not in scores, "the newest version has scored nothing yet"
        confirm(page, "a look at an older one", key)
        page.wait_for_selector("#said.bad" if key == "reader" else "#said.good")
        assert world.registry.champion() == (champion if key == "reader" else other)
    page.wait_for_selector("#moves td:has-text('a look at an older one')")
    page.click("#rollback")
    confirm(page, "enough seen", "admin")
    page.wait_for_selector("#said:has-text('rollback')")
    assert world.registry.champion() == proven and world.registry.journal.last().why == "enough seen"
    close(page, served)


def test_windows_expand_to_their_scores(browser, served):
    page = opened(browser, served)
    assert page.locator("#windows tbody tr").count() == 5
    page.click("#windows tbody tr:first-child button")
    inner = page.inner_text("#windows table")
    record = served.world.state.page._history.refresh()[-1]
    assert f"{record.scores['nightly']['mrr']:.3f}" in inner and "EdgeBank" in inner and "hits@10" in inner
    live = [row.split("\t") for row in page.locator("#windows table tr").all_inner_texts() if row.startswith("live (")]
    shown = [record.scores["live"].get(f"mrr_{name}") for name in NOVELTIES]
    assert live[0][1:3] == [f"{record.scores['live'][name]:.3f}" for name in ("mrr_known", "mrr")]
    assert live[0][3:7] == [f"{value:.3f}" if value is not None else "-" for value in shown] and record.novelty.pair_seen
    assert f"{100 * record.novelty.pair_seen / record.num_scored:.0f} % are of a pair that was seen before" in page.inner_text("#windows")
    with page.expect_response("**/status.json*"):
        pass
    page.wait_for_timeout(200)
    assert page.locator("#windows table").count() == 1, "it stays open while the page follows the server"
    page.click("#more-windows")
    assert page.locator("#windows > tbody > tr").count() == 11
    close(page, served)


def test_all_of_it_works_by_keyboard_alone(browser, served):
    page = opened(browser, served)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    reached = []
    while len(reached) < 60 and "promote" not in reached:
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.tagName === 'svg' ? 'curve' : document.activeElement.id || document.activeElement.textContent"))
    assert {"curve", "source", "Ask", "more", "more-windows", "promote"} <= set(reached), reached
    page.keyboard.press("Enter")
    page.wait_for_selector("#move[open]")
    assert page.evaluate("document.querySelector('#move').contains(document.activeElement)")
    page.keyboard.press("Escape")
    assert page.is_hidden("#move") and page.evaluate("document.activeElement.hasAttribute('data-version')"), "focus goes back"
    close(page, served)


@pytest.mark.parametrize(("scheme", "size"), [("light", DESKTOP), ("dark", PHONE)])
def test_axe_finds_nothing_serious_and_the_page_fits(browser, served, scheme, size):
    from axe_playwright_python.sync_playwright import Axe
    page = opened(browser, served, viewport=size, color_scheme=scheme)
    ask(page, "n:3")
    page.wait_for_selector("#around circle")
    page.click("#best li:first-child button")
    page.wait_for_selector("#why-0 .share")
    page.click("#windows tbody tr:first-child button")
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [n["target"] for n in v["nodes"]][:3]) for v in found if v["impact"] in ("serious", "critical")] == []
    page.click("#versions button:not([disabled])")
    page.wait_for_selector("#move[open]")
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [n["target"] for n in v["nodes"]][:3]) for v in found if v["impact"] in ("serious", "critical")] == []
    box = page.locator("#yes").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= size["width"] and box["y"] + box["height"] <= size["height"]
    close(page, served)


def longer(records):
    """So many windows that it can be told which ranks better: those that are there, and the same some days later."""
    return [*records, *(replace(r, start_us=r.start_us + 72 * HOUR, end_us=r.end_us + 72 * HOUR) for r in records)]


@pytest.mark.parametrize(("leads", "says", "colour"), [
    ([0.1, 0.12], "The live model ranks better than the best simple rule, popularity, by 0.110 ± ", "good"),
    ([0.05, -0.046], "The live model and the best simple rule, popularity, rank alike (+0.002 ± ", "level"),
    ([-0.1, -0.12], "The live model ranks worse than a simple rule: popularity is ahead by 0.110 ± ", "bad")])
def test_the_sentence_has_the_error_of_the_difference_and_is_grey_within_it(browser, served, monkeypatch, leads, says, colour):
    def scored(record, lead):
        by_name = {"live": 0.4 + lead, "rule": 0.1, "edgebank": 0.1, "popularity": 0.4}
        return replace(record, num_scored=50, num_known=50, scores={name: record.scores["live"] | {"mrr": mrr, "mrr_known": mrr} for name, mrr in by_name.items()})

    real = longer(served.world.state.page._history.refresh())
    monkeypatch.setattr(served.world.state.page._history, "refresh", lambda: [scored(r, leads[i % 2]) for i, r in enumerate(real)])
    page = opened(browser, served)
    page.wait_for_selector(f"#sentence.{colour}")
    assert page.inner_text("#sentence").startswith(says) and page.is_visible("#notice") == (colour == "bad")
    close(page, served)


def test_a_model_below_a_rule_has_a_banner(browser, served, monkeypatch):
    real = longer(served.world.state.page._history.refresh())
    worse = [replace(r, scores=r.scores | {"live": r.scores["live"] | {"mrr": 0.01, "mrr_known": 0.01}}) for r in real]
    monkeypatch.setattr(served.world.state.page._history, "refresh", lambda: worse)
    page = opened(browser, served)
    page.wait_for_selector("#notice")
    assert "ranks below" in page.inner_text("#notice") and "worse" in page.inner_text("#sentence")
    assert page.get_attribute("#sentence", "class") == "bad"
    close(page, served)


def test_the_rule_is_said_to_answer_while_no_version_is_level_with_it(browser, served, monkeypatch):
    monkeypatch.setattr(served.world.state.page._registry, "shown", lambda: None)
    page = opened(browser, served)
    page.wait_for_selector("#sentence:has-text('The rule still answers')")
    assert page.get_attribute("#sentence", "class") == "" and page.is_hidden("#notice")
    monkeypatch.undo()
    page.wait_for_selector("#sentence.level")
    close(page, served)


@pytest.mark.parametrize(("live", "rule", "says"), [
    (0.08, 0.3, "fell below a simple rule: over its last 3 windows it has MRR 0.080, partners + popularity 0.300."),
    (0.2, 0.1, "The live model fell: MRR 0.200 over its last 3 windows")])
def test_newest_windows_that_fell_are_said_though_the_day_was_good(browser, served, monkeypatch, live, rule, says):
    def scored(record, live, rule):
        by_name = {"live": live, "rule": rule, "edgebank": 0.05, "popularity": 0.05}
        return replace(record, num_scored=50, num_known=50, scores={name: record.scores["live"] | {"mrr": mrr, "mrr_known": mrr} for name, mrr in by_name.items()})

    real = longer(served.world.state.page._history.refresh())
    fallen = [scored(r, 0.7, 0.3) for r in real[:-3]] + [scored(r, live, rule) for r in real[-3:]]
    monkeypatch.setattr(served.world.state.page._history, "refresh", lambda: fallen)
    page = opened(browser, served)
    page.wait_for_selector("#notice")
    assert says in page.inner_text("#sentence") and page.get_attribute("#sentence", "class") == "bad"
    assert "its newest count" in page.inner_text("#notice")
    close(page, served)


def test_late_events_are_counted_and_a_window_that_is_mostly_late_says_so(browser, served, monkeypatch):
    *real, last = served.world.state.page._history.refresh()
    late = replace(last, num_late=40, num_scored=0, scores={}, promoted=False, reason="left out: 40 of its 50 events came late")
    monkeypatch.setattr(served.world.state.page._history, "refresh", lambda: [*real, late])
    beat = Beat(name="ingest", role="ingest", state="running", pid=1, age_seconds=0.1, exists=True, alive=True, heartbeat_ns=time.time_ns(),
                detail={"clamped": 1234})
    monkeypatch.setattr(served.world.state.page, "_roles", lambda: (1, {"ingest": beat}))
    page = opened(browser, served)
    assert "Since ingest started, 1,234 events came behind the log and got its newest time." in page.inner_text("#windows-note")
    assert "left out: 40 of its 50 events came late" in page.inner_text("#windows tbody tr:first-child")
    page.click("#windows tbody tr:first-child button")
    assert "; 40 came late, from a time before the window;" in page.inner_text("#windows")
    close(page, served)


def test_while_it_starts_the_page_says_what_it_does_and_for_how_long(browser, served, monkeypatch):
    status = served.world.engine.status
    monkeypatch.setattr(status, "state", EngineState.REBUILDING)
    monkeypatch.setattr(status, "rebuild", Reading(done=42, total=100, share=0.42, rate=5.0, seconds_left=11.6))
    monkeypatch.setattr(served.world.engine, "_update_ready", lambda view: None)
    monkeypatch.setattr(status, "why", "reading the log, 42 %")
    page = opened(browser, served, key=None)
    page.fill("#key", "reader")
    page.press("#key", "Enter")
    page.wait_for_selector("#done")
    assert page.inner_text("#sentence") == "Starting: reading the log, 42 %" and page.inner_text("#left") == "about 12 s left"
    assert page.evaluate("document.querySelector('#done').value") == 0.42
    monkeypatch.undo()
    page.wait_for_selector("#state:text-is('answering')")
    assert page.is_hidden("#done")
    close(page, served)


def test_a_log_of_several_edge_sets_has_a_row_for_each(browser, served, monkeypatch):
    scores = {"live": {"mrr": 0.5}, "rule": {"mrr": 0.55}, "edgebank": {"mrr": 0.25}}
    records = [replace(r, edge_sets={"views": SetScores(num_scored=30, scores=scores, mean_negatives=7.5), "b<i>uys": SetScores(num_scored=10, scores=scores, novelty=NoveltyCounts(pair_seen=4, pair_new=6, destination_new=0, source_new=0))})
               for r in longer(served.world.state.page._history.refresh())]
    monkeypatch.setattr(served.world.state.page._history, "refresh", lambda: records)
    page = opened(browser, served)
    page.wait_for_selector("#sets td")
    rows = page.locator("#sets tr").all_inner_texts()
    assert rows[1].split("\t") == ["views", f"{30 * len(records)}\nagainst 7.5 others\n", "75.0 %", "-", "0.500", "0.550 partners + popularity", "0.500\nrule 0.550"]
    assert rows[2].split("\t")[:4] == ["b<i>uys", f"{10 * len(records)}", "25.0 %", "40.0 %"]
    assert page.locator("#sets td.bad").count() == 4, "below the rule in both sets, and in their newest windows"
    close(page, served)


def test_the_page_says_what_this_machine_is_to_the_log(browser, served, monkeypatch):
    """A leader, a replica that follows, one that waits, and a standby that leads."""
    alone, page, path = served.world.settings, opened(browser, served), served.world.path
    assert page.is_hidden("#member") and page.is_hidden("#part")
    with closing(PositionFile(path, UNKNOWN)) as file:
        file.write(ChangelogPosition(4, 1, 9))
    said = [("leader", "ingest", "running", {}, "leader", "leads the log shop, term 4"),
            ("replica", "follow", "following", {"lag_records": 1234}, "replica", "follows the log shop, 1,234 records behind"),
            ("replica", "follow", "following", {"lag_records": 0}, "replica", "follows the log shop, and has all of it"),
            ("replica", "follow", "waiting for broker", {"why": "<b>away"}, "replica", "is a replica of the log shop: waiting for broker (<b>away)"),
            ("standby", "ingest", "following", {"lag_records": 1}, "standby", "follows the log shop, 1 record behind"),
            ("standby", "ingest", "following", {"lag_records": 0, "cannot_lead": "The disk is full."}, "standby",
             "follows the log shop, and has all of it. It cannot lead: The disk is full"),
            ("standby", "ingest", "leading", {"term": 5}, "leader", "leads the log shop, term 5")]
    for member, role, state, detail, short, sentence in said:
        log = alone.log.model_copy(update={"name": "shop", "store": "/store", "member": member})
        shown = replace(served.world.state.page._settings, log=log, roles=roles_of(log.name, log.store, member))
        monkeypatch.setattr(served.world.state.page, "_settings", shown)
        for beat in read_beats(path):
            if beat.role in ("ingest", "follow"):
                shutil.rmtree(folder_of(path, beat.name))
        Heartbeat(path, role).touch(state, **detail)
        page.reload()
        page.wait_for_selector(f"#part:has-text('This machine {sentence}.')")
        assert page.inner_text("#member") == short
    close(page, served)
    (path / CHANGELOG).unlink()


def test_a_note_of_the_settings_is_under_the_title_as_text(browser, served, monkeypatch):
    page = opened(browser, served)
    assert page.is_hidden("#page-note")
    note = "Demo: a month of <b>edits</b>. All days are moved."
    monkeypatch.setattr(served.world.state.page, "_settings", replace(served.world.state.page._settings, page_note=note))
    page.reload()
    page.wait_for_selector("#page-note:visible")
    assert page.inner_text("#page-note") == note
    close(page, served)


def test_a_button_for_more_rows_does_not_promise_all_of_them_if_the_page_has_the_newest(browser, served, monkeypatch):
    page = opened(browser, served)
    assert page.inner_text("#more-windows") == "Show all 10 windows"
    content = type(served.world.state.page).content
    monkeypatch.setattr(type(served.world.state.page), "content", lambda *args: content(*args) | {"num_windows": 744})
    page.reload()
    page.wait_for_selector("#windows-note:has-text('744 finished')")
    assert page.inner_text("#more-windows") == "Show the newest 10 windows"
    close(page, served)


def test_ranks_that_learn_together_are_listed_one_by_one(browser, served, monkeypatch):
    path, page = served.world.path, opened(browser, served)
    assert page.locator("#roles th:has-text('rank')").count() == 0
    # What an earlier, larger group left is no rank any more; of this one the last has not come.
    for name, state in (("train", "waiting"), ("train-rank-1", "learning"), ("train-rank-3", "learning")):
        Heartbeat(path, "train", name).touch(state)
    monkeypatch.setattr(served.world.state.page, "_settings", replace(served.world.state.page._settings, ranks=3))
    page.wait_for_selector("#roles th:has-text('rank 2')")
    rows = [row.split("\t")[:2] for row in page.locator("#roles tbody tr").all_inner_texts()]
    assert [row for row in rows if row[0].startswith("train")] == [["train, rank 0", "waiting"], ["train, rank 1", "learning"], ["train, rank 2", "never ran"]]
    assert "3 ranks learn together" in page.inner_text("#ranks")
    close(page, served)


def test_a_table_that_is_wider_than_a_phone_says_so(browser, served):
    wide, narrow = opened(browser, served), opened(browser, served, viewport=PHONE)
    assert wide.locator(".hint:visible").count() == 0
    boxes = narrow.eval_on_selector_all(".scroll", "all => all.map(b => [b.scrollWidth > b.clientWidth, !!b.nextElementSibling.offsetHeight])")
    assert any(scrolls for scrolls, _ in boxes) and all(scrolls == hints for scrolls, hints in boxes)
    assert narrow.evaluate("window.shift") < 0.02
    for page in (wide, narrow):
        close(page, served)


def test_the_page_has_one_time_zone_wherever_it_is_read(browser, served):
    seen = []
    for zone in ("Etc/UTC", "America/St_Johns"):
        page = opened(browser, served, timezone_id=zone)
        seen.append([page.inner_text(part) for part in ("#versions", "#moves", "#windows", "#newest")] + page.locator("#curve text").all_text_contents())
        close(page, served)
    assert seen[0] == seen[1]


def test_the_page_names_what_is_no_version_and_shows_the_rest(browser, served):
    registry = served.world.registry
    folder, last = registry.folder, registry.journal.last()
    (folder / "lost+<b>found").mkdir()
    known = asdict(registry.manifest(registry.names()[0]))
    for name, scores in (("1-1", {"mrr": 0.5}), ("1-2", {"ap": 0.5})):
        (folder / name).mkdir()
        (folder / name / "manifest.json").write_text(json.dumps(known | {"name": name, "scores": {"live": scores}}))
    with (registry.folder.parent / MOVES).open("a") as file:
        file.write("neither\n" + json.dumps(asdict(last) | {"time": 1e300}) + "\n")
    page = opened(browser, served)
    page.wait_for_selector("#strangers:has-text('lost+<b>found')")
    assert "moves.jsonl: neither" in page.inner_text("#strangers") and page.inner_text("#state") == "answering"
    page.click("#more-versions")
    assert page.locator("#versions th[title='1-1']").count() == 1
    close(page, served)
    listed = CliRunner().invoke(cli, ["models", "list", "--data-dir", str(served.world.path)])
    structlog.reset_defaults()
    assert listed.exit_code == 0 and [line.split()[4:6] for line in listed.stdout.splitlines()[1:3]] == [["0", "-"], ["0", "-"]]


def test_the_docs_are_drawn_without_the_internet(browser, served):
    page = browser.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(served.address + "docs")
    page.wait_for_selector(".opblock-summary-path")
    assert page.locator(".opblock").count() >= 20 and all(url.startswith((served.address, "data:")) for url in asked)
    page.close()


@pytest.mark.slow
def test_the_screenshots_of_the_readme_tell_the_story_of_the_demo(browser, tmp_path):
    """Forty hours of the demo's stream, learned window by window; the pictures go to the folder SCREENSHOTS names."""
    wikipedia_log(tmp_path / "log")
    chosen, _ = load_settings(None, {"data_dir": tmp_path / "log", "stream.time_unit": "us", "bootstrap.max_events": 0}, {})
    world = World.of(tmp_path / "log", chosen)
    log = LogReader.open(chosen.data_dir, keep_keys=False)
    trainer = Trainer(chosen, Paths.of(chosen, "train"), "cpu", log, world.registry, SystemClock(), Heartbeat(chosen.data_dir, "train"))
    for _ in range(40):
        trainer.process(trainer.due()[0])
    src = log.edges(log.num_edges - 20_000, log.num_edges)[0]
    source = LogReader.open(chosen.data_dir).keys[int(np.bincount(src).argmax())]
    shown = Served(world)
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    for name, scheme, size in (("status", "light", {"width": 1100, "height": 1180}), ("status-phone", "dark", {"width": 390, "height": 844})):
        page = opened(browser, shown, key=None, viewport=size, color_scheme=scheme)
        page.wait_for_selector("#versions button")
        if name == "status":
            ask(page, source)
            page.wait_for_selector("#around circle")
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(2500)
        page.screenshot(path=folder / f"{name}.png")
        assert (folder / f"{name}.png").stat().st_size > 20_000 and page.is_visible("#curve svg")
        close(page, shown)
    shown.stop()
