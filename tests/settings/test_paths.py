"""The directories of a role."""

from streamd.settings.paths import Paths
from tests.builders import settings


def test_what_a_role_keeps_lies_with_the_log(tmp_path):
    s = settings(tmp_path)
    for role in ("serve", "serve-2", "train", "train-rank-1", "score"):
        paths = Paths.of(s, role)
        assert (paths.log, paths.learned, paths.role) == (tmp_path, tmp_path, role)
        assert paths.folder == tmp_path / "roles" / role


def test_only_the_trainer_and_its_ranks_use_the_checkpoint_dir(tmp_path):
    log, learned = tmp_path / "log", tmp_path / "shared"
    s = settings(log, training__checkpoint_dir=learned)
    for role in ("train", "train-rank-1"):
        assert Paths.of(s, role) == Paths(log, learned, role)
        assert Paths.of(s, role).folder == learned / "roles" / role
    for role in ("ingest", "serve", "archive", "follow", "score"):
        assert Paths.of(s, role) == Paths(log, log, role)
