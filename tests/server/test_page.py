"""The status page in a real browser, headless, without the internet."""

import json
import os
import shutil
import socket
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import structlog
import uvicorn
from typer.testing import CliRunner

from streamd.cli import app as cli
from streamd.server.app import create_app
from streamd.windows.history import SetScores
from tests.builders import HOUR, stream, write_log
from tests.server.world import SCHEMA, World, wait

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright
    with sync_playwright() as started:
        made = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("page")
    write_log(tmp_path, *stream(2000, hours=24), SCHEMA, watermark=100 * HOUR)
    world = World(tmp_path, server__api_keys=["reader"], server__admin_keys=["admin"], registry__gate_events=300)
    world.train()
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(world.state), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    wait(lambda: world.engine.status.version == world.registry.champion())
    yield world, f"http://127.0.0.1:{listening.getsockname()[1]}/"
    server.should_exit = True
    thread.join()
    listening.close()


def opened(browser, address, **options):
    context = browser.new_context(**options)
    page = context.new_page()
    page.faults, page.asked = [], []
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("dialog", lambda dialog: dialog.accept("reader"))
    page.goto(address)
    page.wait_for_selector("#versions button")
    return page


def confirm(page, why, key):
    page.fill("#why", why)
    page.fill("#admin", key)
    page.click("#yes")


def test_an_operator_sees_the_plot_and_promotes_and_rolls_back(browser, served):
    world, address = served
    page = opened(browser, address, viewport={"width": 1100, "height": 1250}, color_scheme="light")
    assert page.inner_text("#ready") == "answering" and page.locator("#plot canvas").count() == 1
    assert page.locator("#timeline i").count() == 24 and "events/s" in page.inner_text("#cards")
    painted = page.evaluate("""() => { const c = document.querySelector("#plot canvas"), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
                                       return d.some((v, i) => i % 4 === 3 && v > 0); }""")
    assert painted, "the plot has something in it"
    champion, proven = world.registry.champion(), world.registry.shadow()
    other = next(n for n in world.registry.names() if n not in (champion, proven) and world.registry.is_servable(world.registry.manifest(n)))
    page.click(f"button[data-version='{other}']")
    confirm(page, "a look at an older one", "reader")
    page.wait_for_selector("#said.bad")
    assert "admin_keys" in page.inner_text("#said") and world.registry.champion() == champion
    page.click(f"button[data-version='{other}']")
    confirm(page, "a look at an older one", "admin")
    page.wait_for_selector("#said.good")
    assert world.registry.champion() == other
    page.wait_for_selector(f"#moves td:has-text('{other}')")
    page.click("#rollback")
    confirm(page, "enough seen", "admin")
    page.wait_for_selector("#said:has-text('rollback')")
    assert world.registry.champion() == proven and world.registry.journal.last().why == "enough seen"
    assert page.faults == [] and all(url.startswith((address, "data:")) for url in page.asked), "nothing from elsewhere"
    if shot := os.environ.get("STREAMD_SCREENSHOT"):
        page.wait_for_selector(f"#cards b:has-text('{proven}')")
        page.screenshot(path=Path(shot))


def test_a_log_of_several_edge_sets_has_a_row_for_each(browser, served, monkeypatch):
    world, address = served
    page = opened(browser, address)
    assert not page.is_visible("#kinds")
    scores = {"live": {"mrr": 0.5}, "edgebank": {"mrr": 0.25}}
    records = [replace(r, edge_sets={"views": SetScores(num_scored=30, scores=scores), "b<i>uys": SetScores(num_scored=10, scores=scores)})
               for r in world.state.page._history.refresh()]
    monkeypatch.setattr(world.state.page._history, "refresh", lambda: records)
    page.wait_for_selector("#sets td")
    rows = page.locator("#sets tr").all_inner_texts()
    assert rows[1].split("\t") == ["views", f"{30 * len(records)}", "75.0 %", "0.500, 0.250", "0.500"] and "b<i>uys" in rows[2]
    assert page.faults == []


def test_the_page_has_one_time_zone_wherever_it_is_read(browser, served):
    world, address = served
    seen = []
    for zone in ("Etc/UTC", "Asia/Kolkata", "America/St_Johns"):
        page = opened(browser, address, viewport={"width": 1100, "height": 800}, timezone_id=zone)
        assert "all times in UTC" in page.inner_text("header")
        page.wait_for_selector("#plot canvas")
        seen.append((page.inner_text("#versions"), page.inner_text("#moves"),
                     page.evaluate("document.querySelector('#plot canvas').toDataURL()")))
    assert seen[0] == seen[1] == seen[2]


def test_the_page_names_what_is_no_version_and_shows_the_rest(browser, served):
    world, address = served
    folder, last = world.registry.folder, world.registry.journal.last()
    (folder / "lost+<b>found").mkdir()
    known = asdict(world.registry.manifest(world.registry.names()[0]))
    for name, scores in (("1-1", {"mrr": 0.5}), ("1-2", {"ap": 0.5})):
        (folder / name).mkdir()
        (folder / name / "manifest.json").write_text(json.dumps(known | {"name": name, "scores": {"live": scores}}))
    with (folder / "journal.jsonl").open("a") as file:
        file.write("neither\n" + json.dumps(asdict(last) | {"time": 1e300}) + "\n")
    page = opened(browser, address)
    page.wait_for_selector("#strangers:has-text('lost+<b>found')")
    assert "journal.jsonl: neither" in page.inner_text("#strangers") and page.faults == []
    assert page.inner_text("#ready") == "answering" and page.locator("#versions td:has-text('1-1')").count() >= 1
    listed = CliRunner().invoke(cli, ["models", "list", "--data-dir", str(world.path)])
    structlog.reset_defaults()
    assert listed.exit_code == 0 and [line.split()[3] for line in listed.stdout.splitlines()[1:3]] == ["0.5000", "-"]


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_the_page_fits_a_phone_and_follows_its_colours(browser, served, scheme):
    _, address = served
    page = opened(browser, address, viewport={"width": 375, "height": 700}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    background = page.evaluate("getComputedStyle(document.documentElement).colorScheme")
    light, dark = (page.evaluate(f"matchMedia('(prefers-color-scheme: {s})').matches") for s in ("light", "dark"))
    assert "dark" in background and (dark if scheme == "dark" else light) and page.faults == []


def test_the_docs_are_drawn_without_the_internet(browser, served):
    _, address = served
    page = browser.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address + "docs")
    page.wait_for_selector(".opblock-summary-path")
    assert page.locator(".opblock").count() >= 20 and all(url.startswith((address, "data:")) for url in asked)
