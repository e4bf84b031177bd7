"""The queries of docs/table.md give rows on a log of views and buys."""

import re
from pathlib import Path

import pytest

import streamd
from streamd.eventlog.reader import LogReader
from streamd.scoring.stored_scores import FileScores
from streamd.table.sql.session import SqlSession
from tests.builders import settings
from tests.table.logs import score_lines, visible_ids

PAGE = (Path(streamd.__file__).parents[1] / "docs" / "table.md").read_text()
QUERIES = dict(re.findall(r"\n([^\n`|]+?):\n\n```sql\n(.*?)```", PAGE, re.S))
MIN_ROWS = {"Score by window, with the best rule": 6, "Late events, with their delay": 17}
"""Rows that a query must give at least, if they are more than one."""


@pytest.fixture(scope="module")
def session(shop, tmp_path_factory):
    scores = tmp_path_factory.mktemp("scores") / "scores.ndjson"
    scores.write_bytes(b"\n".join(score_lines(shop, range(300, 900))))
    with streamd.open_log(shop) as snapshot:
        yield SqlSession(snapshot, 1 << 28, settings("x").model, FileScores(scores))


def test_the_page_has_its_queries():
    assert len(QUERIES) == PAGE.count("```sql") >= 12


@pytest.mark.parametrize("title", QUERIES)
def test_a_query_gives_rows_without_nulls_alone(session, title):
    rows = session.query(QUERIES[title]).read_all().to_pylist()
    assert len(rows) >= MIN_ROWS.get(title, 1)
    for name in rows[0]:
        assert any(row[name] is not None for row in rows), f"{name} is always null"


def test_queries_find_what_a_plain_search_of_the_log_finds(session, shop):
    log = LogReader.open(shop)
    src, dst, time = log.edges(0, 900)
    ids = visible_ids(log)
    views = [i for i in ids.tolist() if log.edge_sets(i, i + 1)[0] == 0]
    three = log.num_nodes - 15 + 3

    def rows(begin):
        (text,) = (query for title, query in QUERIES.items() if title.startswith(begin))
        return [tuple(row.values()) for row in session.query(text).read_all().to_pylist()]

    saw = {f"u:{src[i]}" for i in views if dst[i] == three and time[i] < 3 * 3600 * 10**6}
    assert {user for (user,) in rows("Who saw")} == saw != set()
    assert sum(count for _, count in rows("New pairs")) == len({(src[i], dst[i]) for i in ids.tolist()})
    assert sum(count for *_, count in rows("Events an hour")) == len(ids)
    assert {event for event, *_ in rows("Late events")} == {i for i in range(29, 900, 50) if i in set(ids.tolist())}
    hidden = int(sum(count for _, count in rows("Events that are hidden")))
    assert hidden == int(ids[-1] - ids[0]) + 1 - len(ids) > 0
    ((node, event, versions),) = rows("Remains of deleted nodes")
    assert (node, event) == (5, 700) and versions
