"""The documentation site as `make docs` built it: it asks no other server for anything, and its pages can be read."""

import functools
import html
import http.server
import importlib.util
import os
import re
import shutil
import threading
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlparse

import pytest

ROOT = Path(__file__).parents[2]
SITE = Path(os.environ.get("DOCS_SITE", "none"))
CHROMIUM = shutil.which("chromium")
built = pytest.mark.skipif(not SITE.is_dir(), reason="`make docs` builds the site and runs this")


def pages():
    return sorted(p.relative_to(SITE).as_posix() for p in SITE.rglob("*.html") if p.name != "404.html") if SITE.is_dir() else []


def test_every_page_of_the_docs_is_in_the_sites_menu():
    menu = set(re.findall(r'"([\w/-]+\.md)"', (ROOT / "docs" / "site" / "zensical.toml").read_text()))
    have = {p.name for p in (ROOT / "docs").glob("*.md")} | {"index.md", "contributing.md", "changelog.md", "reference/rest.md", "reference/library.md", "reference/client.md",
                                                                "reference/commands.md"}
    assert menu == have


def test_the_library_reference_has_what_the_librarys_page_imports():
    spec = importlib.util.spec_from_file_location("prepare", ROOT / "docs" / "site" / "prepare.py")
    prepare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare)
    named = {name for names in prepare.LIBRARY.values() for name in names}
    lines = re.findall(r"^from (streamd[\w.]*) import (.+)$", (ROOT / "docs" / "library.md").read_text(), re.M)
    assert {f"{module}.{name}" for module, names in lines for name in names.split(", ")} <= named


@built
def test_no_page_names_a_file_of_another_server():
    for name in pages():
        text = (SITE / name).read_text()
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]+src=\"?([^\" >]+)", text) + re.findall(r"<link(?![^>]+rel=\"?canonical)[^>]+href=\"?([^\" >]+)", text)
        assert loaded and [link for link in loaded if re.match(r"(https?:)?//", link)] == [], name
    for path in SITE.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", path.read_text()), path


@built
def test_links_lead_to_pages_and_headings_that_are_there():
    texts = {name: (SITE / name).read_text() for name in pages()}
    ids = {name: set(re.findall(r"\sid=\"?([^\" >]+)", text)) for name, text in texts.items()}
    broken = []
    for name, text in texts.items():
        for link in re.findall(r"<a[^>]+href=\"?([^\" >]+)", text):
            target, anchor = urldefrag(urljoin(f"http://site/{name}", html.unescape(link)))
            if urlparse(target).netloc != "site":
                continue
            path = unquote(urlparse(target).path).lstrip("/") or "index.html"
            is_there = (SITE / path).is_file()
            if not is_there or (anchor and path in ids and unquote(anchor) not in ids[path] | {"__skip", ""}):
                broken.append((name, link))
    assert broken == []


@built
def test_the_reference_has_the_names_and_routes_of_the_code():
    library = (SITE / "reference" / "library.html").read_text()
    assert all(f'id="streamd.{name}"' in library or f"id=streamd.{name}" in library for name in ("graph.TemporalSampler.sample", "models.build_model"))
    client = (SITE / "reference" / "client.html").read_text()
    assert all(f'id="streamd.client.{name}"' in client or f"id=streamd.client.{name}" in client for name in ("calls.recommend", "calls.explain", "AsyncClient"))
    rest = (SITE / "reference" / "rest.html").read_text()
    assert "POST /v1/recommend/batch" in rest and "exclude_seen" in rest


@built
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_opens_the_pages_without_faults_and_without_other_servers():
    from playwright.sync_api import sync_playwright

    handler = functools.partial(Quiet, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as started:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        origin = f"http://127.0.0.1:{server.server_port}/"
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 390, "height": 844})
        faults, asked = [], []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.on("response", lambda response: faults.append(response.url) if response.status >= 400 else None)
        for name in pages():
            page.goto(origin + name)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        assert faults == [] and len(asked) > len(pages())
        assert [url for url in asked if not url.startswith((origin, "data:", "blob:"))] == []
        browser.close()
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass
