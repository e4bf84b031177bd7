"""The status page where something is dead or late: one line under its title says so, and nothing is green.

Pictures of all states go to the folder that PICTURES names (`make states`), for eyes to look at.
"""

import asyncio
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from axe_playwright_python.sync_playwright import Axe

from streamd.roles import TRIAL, folder_of, make_folder
from streamd.server.engine.status import EngineState, NextVersion
from streamd.server.page.trend import RecentRefusals
from streamd.server.page.trial_on_page import TrialOnPage
from streamd.telemetry.heartbeat import HELD_STATE, Beat, Heartbeat
from streamd.telemetry.progress import Reading
from streamd.trials.impressions import Impression
from streamd.trials.trial_state import Definition, TrialState, state_path
from tests.server.test_page import (  # noqa: F401
    CHROMIUM,
    DESKTOP,
    PHONE,
    Served,
    Small,
    browser,
    close,
    longer,
    opened,
)
from tests.server.world import World

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
BROKER = "127.0.0.1:9092"
SIZES = {"desktop": (DESKTOP, "light"), "phone": (PHONE, "dark")}


class Empty(Served):
    """A server before there is a log."""

    def has_begun(self):
        return self.world.engine.status.why == "waiting for ingest to make the log"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    made = Small(tmp_path_factory.mktemp("page"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    made = Empty(World(tmp_path_factory.mktemp("empty"), server__api_keys=["reader"]))
    yield made
    made.stop()


def beat(name, state="running", age=0.0, silent=0.0, exists=True, **detail):
    return Beat(name=name, role=name, state=state, pid=1, age_seconds=age, exists=exists, alive=exists and age < 60,
                heartbeat_ns=int((time.time() - silent) * 1e9), detail=detail)


class Scene:
    """Shows a page what it would see of other processes and of its engine in some state."""

    def __init__(self, served, monkeypatch):
        self.page, self.status, self.monkeypatch = served.world.state.page, served.world.engine.status, monkeypatch
        self.roles()

    def roles(self, **given):
        def look():
            made = {name: of() for name, of in ({name: lambda n=name: beat(n) for name in ("ingest", "train", "serve")} | given).items()}
            return 1, made
        self.monkeypatch.setattr(self.page, "_roles", look)

    def engine(self, **fields):
        for name, value in fields.items():
            self.monkeypatch.setattr(self.status, name, value)
        # The engine would bring them up to date at its next turn.
        self.monkeypatch.setattr(self.page._engine, "_report", lambda follower: None)
        self.monkeypatch.setattr(self.page._engine, "_update_ready", lambda follower: None)


def well(scene):
    pass


def no_data(scene):
    scene.roles(ingest=lambda: beat("ingest", "connecting", missing_topics=["events"], why="create it, e.g. with kafka-topics.sh"), train=lambda: None)


def rebuilding(scene):
    scene.engine(state=EngineState.REBUILDING, why="reading the log, 42 %, 42 of 100 edges", rebuild=Reading(done=42, total=100, share=0.42, rate=5.0, seconds_left=11.6))


def kafka_dead(scene):
    scene.roles(ingest=lambda: beat("ingest", broker_age_seconds=95.0))


def wrong_broker(scene):
    scene.roles(ingest=lambda: beat("ingest", "connecting", unanswered_seconds=40.0, answers=True, why="The broker takes no user shop."))


def trainer_hung(scene):
    scene.roles(train=lambda: beat("train", "learning", age=240.0))


def trainer_stopped(scene):
    scene.roles(train=lambda: beat("train", "learning", age=30.0, silent=30.0))


def below_the_rule(scene):
    real = longer(scene.page._history.refresh())
    worse = [replace(r, scores=r.scores | {"live": r.scores["live"] | {"mrr": 0.01, "mrr_known": 0.01}}) for r in real]
    scene.monkeypatch.setattr(scene.page._history, "refresh", lambda: worse)


def catching_up(scene):
    scene.engine(version="rule", trained_until_us=None, next_version=NextVersion(scene.status.version, 0.12))


def refused(scene):
    scene.page._trend.refusals = RecentRefusals(num_records=3000, num_dead=2204, error="user_id is missing")


STATES = [(well, "", "good"), (no_data, f"Kafka {BROKER} has no topic events", "bad"), (rebuilding, "", "bad"),
          (kafka_dead, f"Kafka {BROKER} has not answered for 95 s: events wait there, and answers lack them", "bad"),
          (wrong_broker, f"Kafka {BROKER} does not serve ingest: The broker takes no user shop.", "bad"),
          (trainer_hung, "train hangs: its loop has not turned for 4 min", "bad"),
          (trainer_stopped, "train has sent no heartbeat for 30 s: after 60 s it is killed and restarted", "bad"), (below_the_rule, "", "good"),
          (catching_up, "catches up, 12 %, the rule answers until then", "late"),
          (refused, "2,204 of 3,000 records refused: user_id is missing", "bad")]


SHAPES = [
    pytest.param(*case, shape, id=f"{case[0].__name__}-{shape}", marks=pytest.mark.slow if shape == "phone" and case[0] not in (well, kafka_dead) else ())
    for case in STATES for shape in SIZES]
"""Every state on a desktop, and two of them on a phone; `make states` takes them all."""


@pytest.mark.parametrize(("state", "line", "colour", "shape"), SHAPES)
def test_each_state_has_its_line_and_its_colour(browser, small, empty, monkeypatch, tmp_path, state, line, colour, shape):  # noqa: F811
    served = empty if state is no_data else small
    monkeypatch.setattr(served.world.state.page._trend, "refusals", None)
    scene = Scene(served, monkeypatch)
    state(scene)
    size, scheme = SIZES[shape]
    page = opened(browser, served, key=None if served is empty else "reader", viewport=size, color_scheme=scheme)
    if served is empty:
        page.fill("#key", "reader")
        page.press("#key", "Enter")
        page.wait_for_selector("#main:not([hidden])")
    page.wait_for_selector(f"#state.{colour}")

    # One line; what is dead leaves no green dot.
    shown = page.inner_text("#troubles") if page.is_visible("#troubles") else ""
    assert line in shown and bool(line) == bool(shown)
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    if line:
        assert page.locator("#troubles summary, #troubles:not(:has(details))").first.bounding_box()["height"] < 130
    folder = Path(os.environ.get("PICTURES", tmp_path))
    page.screenshot(path=folder / f"{state.__name__}-{shape}.png")
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [n["target"] for n in v["nodes"]][:3]) for v in found if v["impact"] in ("serious", "critical")] == []
    close(page, served)


@pytest.mark.parametrize("shape", SIZES)
def test_the_arms_of_a_trial_are_compared_in_words(browser, small, monkeypatch, tmp_path, shape):  # noqa: F811
    def run(path, champion, rule):
        """A trial in which every second unit of each arm takes something."""
        state = TrialState(path, Definition(name="ranking", shares={"champion": 0.5, "rule": 0.5}, horizon_seconds=10, edge_set=None), 1)
        records = [Impression(answer=f"a{i}", trial="ranking", arm=arm, unit=f"u{i}", version="v", src="a", dst=["b"], edge_set="default", edge=0, time_us=1)
                   for i, arm in enumerate(["champion"] * 400 + ["rule"] * 400)]
        outcomes = [{"type": "outcome", "answer": one.answer, "time": 2, "value": (champion if one.arm == "champion" else rule) + i % 3}
                    for i, one in enumerate(records) if i % 2]
        state.take_records(map(msgspec.json.encode, [*records, *outcomes]), {0: 1}, 10)
        state.close_before(10**12)
        state.close()

    scene, trial = Scene(small, monkeypatch), TrialOnPage(tmp_path, "ranking")
    page = opened(browser, small, viewport=SIZES[shape][0], color_scheme=SIZES[shape][1])
    assert page.is_hidden("#trial"), "no trial runs"
    monkeypatch.setattr(scene.page, "_trial", trial)
    make_folder(tmp_path, TRIAL)
    for champion, rule, words, cell in ((5, 1, "rule brings less than the champion.", "−1.9"), (3, 3, "No arm clearly brings more or less than the champion.", "no clear difference")):
        run(state_path(tmp_path, "ranking"), champion, rule)
        # Playwright's loop runs in this thread.
        with ThreadPoolExecutor(1) as other:
            other.submit(asyncio.run, trial.refresh()).result()
        page.wait_for_selector(f"#trial-note:text-is('{words}')")
        assert page.inner_text("#trial-title") == "Trial ranking"
        assert cell in page.inner_text("#arms tr:last-child td:last-child") and page.inner_text("#arms tbody tr:first-child th") == "champion"
        state_path(tmp_path, "ranking").unlink()
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[shape][0]["width"]
    page.locator("#trial").screenshot(path=Path(os.environ.get("PICTURES", tmp_path)) / f"trial-{shape}.png")
    found = Axe().run(page).response["violations"]
    assert [v["id"] for v in found if v["impact"] in ("serious", "critical")] == []
    close(page, small)


@pytest.mark.parametrize("shape", SIZES)
def test_the_row_of_the_scoring_role_has_the_number_of_alarmed_sources(browser, small, monkeypatch, shape):  # noqa: F811
    scene = Scene(small, monkeypatch)
    page = opened(browser, small, viewport=SIZES[shape][0], color_scheme=SIZES[shape][1])
    for number, words in ((None, ""), (0, "0 sources with an alarm in the last day of events"), (1, "1 source with an alarm in the last day of events")):
        scene.roles(score=lambda n=number: beat("score", "scoring", **({} if n is None else {"alarmed_sources": n})))
        page.wait_for_function("words => document.querySelector('#roles tr:last-child td')?.innerText.trim() === ['scoring', words].join('\\n').trim()", arg=words)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[shape][0]["width"]
    close(page, small)


def test_before_the_first_window_the_page_names_the_time_it_waits_for(browser, small, empty, monkeypatch):  # noqa: F811
    Scene(small, monkeypatch)
    monkeypatch.setattr(small.world.state.page._history, "refresh", list)
    monkeypatch.setattr(small.world.state.page._trend, "num_waiting", lambda train: 0)
    page = opened(browser, small)
    assert page.inner_text("#sentence") == "Nothing is learned yet: the first window closes when events pass 1970-01-02 05:00 UTC."
    close(page, small)


def test_while_windows_are_over_and_not_learned_the_page_names_the_trainer_s_state(browser, small, monkeypatch):  # noqa: F811
    scene = Scene(small, monkeypatch)
    monkeypatch.setattr(small.world.state.page._history, "refresh", list)
    says = {"preparing": "the trainer is preparing (compiling kernels); 10 windows wait for it.", None: "the trainer has not started yet; 10 windows wait for it."}
    for state, words in says.items():
        scene.roles(train=lambda s=state: s and beat("train", s))
        page = opened(browser, small)
        page.wait_for_selector(f"#sentence:text-is('Nothing is learned yet: {words}')")
        assert page.inner_text("#windows-note") == "No window is learned yet: 10 windows wait."
        close(page, small)


def test_a_server_that_is_not_ready_is_not_called_answering(browser, small, monkeypatch):  # noqa: F811
    scene = Scene(small, monkeypatch)
    Heartbeat(small.world.path, "ingest").touch(HELD_STATE, held="all times are in 1970")
    scene.roles(ingest=lambda: beat("ingest", HELD_STATE, held="all times are in 1970"))
    page = opened(browser, small)
    assert small.world.client.get("/readyz").status_code == 503
    page.wait_for_selector("#state.bad:text-is('not ready')")
    shutil.rmtree(folder_of(small.world.path, "ingest"))
    scene.roles()
    page.wait_for_selector("#state:text-is('answering')")
    close(page, small)


def test_events_are_shown_as_they_come(browser, small):  # noqa: F811
    page = opened(browser, small)
    assert page.locator("#tap li").count() == 8
    small.happen(3, 4)
    page.wait_for_selector("#tap li.fresh:first-child:has-text('n:3 → n:4')")
    assert page.locator("#tap li").count() == 8 and page.locator("#tap li.fresh").count() == 1
    close(page, small)


def test_the_first_of_several_troubles_is_the_gravest_and_the_rest_opens(browser, small, monkeypatch):  # noqa: F811
    scene = Scene(small, monkeypatch)
    catching_up(scene)
    kafka_dead(scene)
    page = opened(browser, small)
    page.wait_for_selector("#state.bad")
    assert page.inner_text("#troubles summary").startswith(f"Kafka {BROKER} has not answered") and "and 1 more" in page.inner_text("#troubles")
    assert page.is_hidden("#troubles li")
    page.focus("#troubles summary")
    page.keyboard.press("Enter")
    assert "the rule answers until then" in page.inner_text("#troubles li:nth-child(2)")
    scene.roles()
    page.wait_for_selector("#troubles:not(:has-text('Kafka'))")
    assert "the rule answers now" in page.inner_text("#numbers") and "does not answer yet" in page.inner_text("#versions")
    close(page, small)
