"""Backup, restore and exports of tables over the protocol of S3, with faults, from an environment of its own: `make contract CLIENTS=store`."""

import json
import os
import subprocess
import sys
import sysconfig
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from streamd.eventlog.reader import LogReader
from streamd.eventlog.upkeep.verify import verify_log
from tests.store.test_store import committed, rich_log

ROOT = Path(__file__).parents[2]


@pytest.mark.contract
@pytest.mark.timeout(600)
def test_the_store_on_s3_survives_500s_half_uploads_timeouts_and_a_changed_key_and_names_one_that_is_away(tmp_path):
    with closing(rich_log(tmp_path / "log")):
        asked = subprocess.run(
            [f"{sys.prefix}-contract-store/bin/python", ROOT / "tests/contracts/clients/ask_store.py",
             sysconfig.get_paths()["purelib"], tmp_path / "log", tmp_path],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=500, check=False)
    assert asked.returncode == 0, asked.stderr[-3000:]
    said = json.loads(asked.stdout.splitlines()[-1])
    for mode in ("", "500", "half", "hang"):
        sent, named, left, again, *swept = said[mode]
        assert sent == named == left > 5 and again == 0 and swept == [0, 0], mode
        assert committed(tmp_path / f"back-{mode}") == committed(tmp_path / "log")
        assert verify_log(tmp_path / f"back-{mode}")[1] == []
    for mode in ("", "500", "half", "hang"):
        error, seq, num_manifests, unneeded, places = said[f"archive {mode}"]
        assert (error, seq, num_manifests, unneeded) == ("", 12, 1, 0), mode
        assert places >= 1, "a key is found in objects on S3"
    log = LogReader.open(tmp_path / "log")
    ids = (log.first_edge + np.flatnonzero(~log.hidden(log.first_edge, log.num_edges))).tolist()
    for mode in ("", "500", "half"):
        assert said[f"export {mode}"] == ids, mode
    assert "s3://bucket/archive-" in said["archive away"]
    assert "cannot be listed in s3://bucket/away" in said["away"]["error"] and said["away"]["seconds"] < 60
    assert "s3://no-such-bucket/log: " in said["missing"]["error"]
    refused, read = said["rotated"]
    assert "a cannot be read from s3://bucket/rotated: PermissionError" in refused and read == "12", "a changed file counts without a restart"
    assert "sesame" not in asked.stdout + asked.stderr
