"""Each role writes under its own name, and takes over what it wrote before it had one."""

import json

import msgspec
import pytest

from streamd import roles
from streamd.errors import SettingsError
from streamd.eventlog.upkeep.holds import (
    Hold,
    ask_to_compact,
    asked_to_compact,
    read_holds,
    write_hold,
)
from streamd.roles import ROLES, check_name, folder_of, make_folder, names_in, rank_names, take_over
from streamd.storage import DISK, Disk
from streamd.telemetry.heartbeat import Heartbeat, read_beats

OLD = {"holds/serve": msgspec.json.encode(Hold(64, 90)), "holds/train": msgspec.json.encode(Hold(32, 40)),
       "serve/facts/00000000000000000064.safetensors": b"facts", "serve/memory.safetensors": b"memory",
       "train/facts/00000000000000000032.safetensors": b"facts of train", "train/windows.jsonl": b"{}\n",
       "run/serve.json": json.dumps({"role": "serve"}).encode(), "run/compact.json": b"{}"}
NEW = {"roles/serve/hold": OLD["holds/serve"],
       "roles/serve/facts/00000000000000000064.safetensors": b"facts"}


@pytest.fixture
def old(tmp_path):
    """A directory of a release in which all roles wrote side by side."""
    for path, content in OLD.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    ask_to_compact(tmp_path, 90)
    return tmp_path


def files(path):
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_role_takes_over_its_own_files_and_leaves_the_others(old):
    take_over(old, "serve")
    left = {p: c for p, c in OLD.items() if "train" in p}
    assert files(old) == NEW | left | {"holds/compact": b"90"} and not (old / "serve").exists()
    take_over(old, "serve")
    assert files(old) == NEW | left | {"holds/compact": b"90"}
    assert read_holds(old) == {"serve": Hold(64, 90), "train": Hold(32, 40)} and asked_to_compact(old) == 90


def test_a_kill_at_any_step_leaves_every_hold_and_what_it_relies_on(old, monkeypatch):
    class KilledAfter(Disk):
        """A disk on which the process is killed before the rename after so many."""

        moves = 0

        def __init__(self, count):
            self.count = count

        def replace(self, old, new):
            if KilledAfter.moves == self.count:
                raise InterruptedError
            KilledAfter.moves += 1
            super().replace(old, new)

    for count in range(2):
        monkeypatch.setattr(roles, "DISK", KilledAfter(count))
        with pytest.raises(InterruptedError):
            take_over(old, "serve")
        assert read_holds(old)["serve"] == Hold(64, 90)
        kept = sorted(c for p, c in OLD.items() if "serve" in p and c != b"memory")
        assert sorted(c for p, c in files(old).items() if "serve" in p and c != b"memory") == kept
    monkeypatch.setattr(roles, "DISK", DISK)
    take_over(old, "serve")
    assert NEW.items() <= files(old).items() and not list(old.glob("run/*"))


def test_a_hold_that_moves_while_holds_are_read_is_read_in_one_place_or_the_other(old, monkeypatch):
    from streamd.eventlog.upkeep import holds

    def moved_before(data_dir):
        take_over(data_dir, "serve")
        return names_in(data_dir)

    monkeypatch.setattr(holds, "names_in", moved_before)
    assert read_holds(old) == {"serve": Hold(64, 90), "train": Hold(32, 40)}


def test_no_further_server_takes_over_what_another_wrote(old):
    before = files(old)
    for name in ("serve-2", "edges"):
        take_over(old, name)
    assert files(old) == before


def test_a_hold_written_anew_counts_before_one_in_the_old_place(old):
    write_hold(old, "serve", Hold(70, 95))
    write_hold(old, "serve-2", Hold(5, 5))
    assert read_holds(old) == {"serve": Hold(70, 95), "serve-2": Hold(5, 5), "train": Hold(32, 40)}


def test_heartbeats_are_found_by_role_under_whatever_name(tmp_path):
    kept = [Heartbeat(tmp_path, role, name) for role, name in (("train", ""), ("serve", "b"), ("serve", ""), ("ingest", ""))]
    for beat in kept:
        beat.touch("well")
    make_folder(tmp_path, "never-ran")
    (tmp_path / "roles/Not a name").mkdir()
    assert [b.name for b in read_beats(tmp_path)] == ["ingest", "train", "b", "serve"]
    assert [b.name for b in read_beats(tmp_path, "serve")] == ["b", "serve"]


@pytest.mark.parametrize("name", ["", "-x", "Serve", "a b", "../train", "a" * 33, "ingest", "train", "compact"])
def test_names_that_cannot_be_are_refused(name):
    with pytest.raises(SettingsError):
        check_name("serve", name)


def test_only_servers_take_names(tmp_path):
    check_name("serve", "serve-2")
    with pytest.raises(SettingsError, match="another part's name"):
        check_name("serve", rank_names(2)[1])
    assert folder_of(tmp_path, "serve-2") == tmp_path / "roles/serve-2"
    for role in ROLES[:2]:
        with pytest.raises(SettingsError, match="takes no --name"):
            check_name(role, "other")
