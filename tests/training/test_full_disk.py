"""A trainer whose disk is full, as a process on a small file system."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamd.daemon.run_role import _as_disk_error
from streamd.errors import DiskError
from streamd.events import Schema
from streamd.registry import Registry
from streamd.settings.loading import as_environment
from tests.builders import HOUR, settings, stream, write_log
from tests.crash.cluster import small_disks
from tests.server.world import wait

SCHEMA = Schema(2, 0, 0)


def test_what_a_full_disk_does_not_take_is_a_disk_error_and_nothing_else_is(tmp_path):
    s = settings(tmp_path, training__checkpoint_dir=tmp_path / "kept")
    with pytest.raises(DiskError, match=f"train could not write its files in {tmp_path}/kept: No space left"), _as_disk_error("train", s):
        Path("/dev/full").write_bytes(b"1")
    with pytest.raises(DiskError, match=f"serve could not write its files in {tmp_path}"), _as_disk_error("serve", s):
        Path("/dev/full").write_bytes(b"1")
    with pytest.raises(FileNotFoundError), _as_disk_error("train", s):
        (tmp_path / "nothing").read_bytes()


@pytest.mark.slow
def test_a_full_disk_is_said_by_name_and_the_next_start_goes_on(tmp_path):
    path = tmp_path / "small"
    with small_disks([path]) as mounted:
        if not mounted:
            pytest.skip("needs the right to mount a small file system")
        write_log(path, *stream(600), SCHEMA, watermark=100 * HOUR, segment_edges=600)
        s = settings(path, stream__edge_feature_dim=2, model__name="pair", telemetry__train_port=0)

        def trainer():
            return subprocess.Popen([sys.executable, "-m", "streamd", "run", "--role", "train"], env=os.environ | as_environment(s),
                                    stderr=subprocess.PIPE, text=True)

        # Not a byte is free, beside what is written already.
        filler = path / "filler"
        with filler.open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(b"\0" * 4096)
                except OSError:
                    break
        child = trainer()
        _, said = child.communicate(timeout=220)
        assert child.returncode == 1 and "Traceback" not in said, said
        refused, = [line for line in said.splitlines() if "refused" in line]
        assert "DiskError" in refused and f"train could not write its files in {path}: No space left" in refused

        # Once there is room, the next start learns.
        filler.unlink()
        child = trainer()
        try:
            wait(lambda: (path / "models").is_dir() and Registry.of(s).champion(), 120)
        finally:
            child.terminate()
            child.communicate(timeout=60)
        assert child.returncode == 0
