"""The history of windows: which of its bytes count where learning goes back."""

import msgspec
from structlog.testing import capture_logs

from streamd.windows.history import (
    FILE,
    HistoryReader,
    SetScores,
    WindowRecord,
    append_record,
    history_until,
)


def record_of(end_edge):
    sets = {"views": SetScores(num_scored=3, scores={"live": {"mrr": 0.5}}), "buys": SetScores(num_scored=1, scores={"live": {"mrr": 1.0}})}
    return WindowRecord(start_us=0, end_us=1, first_edge=end_edge - 10, end_edge=end_edge, num_scored=4, version="v", scored_by="v", promoted=True, reason="",
                        scores={"live": {"mrr": 0.625}}, loss=None, seconds={}, finished_at=0.0, edge_sets=sets)


def test_the_bytes_of_records_of_an_older_release_and_of_damaged_lines_count_as_they_are(tmp_path):
    append_record(tmp_path, record_of(10))
    path = tmp_path / FILE
    # A release before wrote fewer fields of each edge set.
    fields = msgspec.json.decode(path.read_bytes())
    older = msgspec.json.encode(fields | {"edge_sets": {name: {"num_scored": 1, "scores": {}} for name in fields["edge_sets"]}}) + b"\n"
    assert len(older) != len(path.read_bytes())
    lines = [older, b"{damaged\n", record_of(20).line(), record_of(30).line()]
    path.write_bytes(b"".join(lines) + b'{"half')
    with capture_logs() as logs:
        for edge, num in ((9, 0), (10, 2), (19, 2), (20, 3), (100, 4)):
            assert history_until(tmp_path, edge) == sum(map(len, lines[:num])), edge
        assert [r.end_edge for r in HistoryReader(tmp_path).refresh()] == [10, 20, 30]
    passed = [log for log in logs if log["event"] == "history_line_skipped"]
    assert len(passed) == 5 and {log["at_byte"] for log in passed} == {len(older)}
    assert history_until(tmp_path / "none", 5) == 0
