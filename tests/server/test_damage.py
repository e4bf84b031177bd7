"""What may lie in the data directory when a role starts: damage, strangers, files of a newer release. None takes it down."""

import json
import shutil

import pytest
import structlog
import torch
from safetensors.torch import load_file, save
from structlog.testing import capture_logs
from typer.testing import CliRunner

from streamd.cli.main import app as cli
from streamd.errors import VersionError
from streamd.eventlog.layout import MOVES, WINDOWS
from streamd.eventlog.upkeep.verify import verify_log
from streamd.events import Schema
from streamd.roles import FACTS, MEMORY, folder_of
from streamd.serving import retention_hold
from streamd.serving.memory_store import INDEX
from streamd.telemetry import metrics
from streamd.tensors import file_checksum
from tests.builders import HOUR, stream, write_log
from tests.readings import reading
from tests.server.world import World, ask, wait

SCHEMA = Schema(2, 0, 0)


@pytest.fixture
def world(tmp_path):
    """A few versions; the newest is the champion, the one before it the proven one."""
    write_log(tmp_path, *stream(500), SCHEMA, watermark=100 * HOUR, segment_edges=200)
    made = World(tmp_path)
    made.train(4)
    made.registry.prove(made.registry.names()[-2], "as good")
    yield made
    made.stop()


def flip(path, at=-5):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change_manifest(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def not_finite(folder):
    """A NaN in the weights, with a checksum that says it is meant."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["pair.0.weight"][0, 0] = torch.nan
    path.write_bytes(save(tensors))
    manifest = json.loads((folder / "manifest.json").read_text())
    change_manifest(folder / "manifest.json", checksums=manifest["checksums"] | {path.name: file_checksum(path)})


DAMAGES = {
    "a flipped bit of the weights": lambda folder: flip(folder / "model.safetensors"),
    "a flipped bit of the memory": lambda folder: flip(folder / "memory-000.safetensors"),
    "half of the weights": lambda folder: truncate(folder / "model.safetensors"),
    "no memory": lambda folder: (folder / "memory-001.safetensors").unlink(),
    "an empty manifest": lambda folder: (folder / "manifest.json").write_bytes(b""),
    "a manifest of noise": lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe"),
    "a newer format": lambda folder: change_manifest(folder / "manifest.json", format=99),
    "a newer model setting": lambda folder: change_manifest(folder / "manifest.json", model={"name": "tgn", "warp": 9}),
    "weights that are no numbers": not_finite,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_champion_that_cannot_be_served_falls_back_to_the_proven_version_with_an_alarm(world, damage):
    champion, proven = world.registry.champion(), world.registry.shadow()
    DAMAGES[damage](world.registry.folder / champion)
    world.start()
    wait(lambda: world.engine.status.version == proven)
    assert ask(world)["as_of"]["version"] == proven
    assert reading(metrics.champion_not_served) == 1
    for path in ("/v1/models", "/status.json", "/metrics"):
        assert world.client.get(path).status_code == 200
    refused = world.client.post(f"/v1/models/{champion}/promote", json={"why": "again"})
    assert refused.status_code in (404, 409), refused.text
    with pytest.raises(VersionError):
        world.registry.promote(champion, "me", "again")
    world.registry.promote(world.registry.names()[0], "me", "it can be read")
    wait(lambda: world.engine.status.version == world.registry.champion() and reading(metrics.champion_not_served) == 0)


@pytest.mark.parametrize(("damage", "advice"), [("a newer format", "use the streamd that made it."), ("half of the weights", "remove its folder from models/, or restore it from a backup.")])
def test_the_log_gives_one_advice_which_is_that_of_the_reason(world, damage, advice):
    DAMAGES[damage](world.registry.folder / world.registry.champion())
    with capture_logs() as logs:
        world.start()
        wait(lambda: world.engine.status.version == world.registry.shadow())
    (said,) = [line for line in logs if line["event"] == "version_not_served"]
    assert said["error"].endswith(f"Operator action: {advice}") and "action" not in said
    assert "retried only when the server restarts" in said["meaning"]


def test_a_version_of_which_retention_dropped_the_event_says_so_and_that_another_is_needed(world):
    folder = world.registry.folder / world.registry.champion()
    change_manifest(folder / "manifest.json", edge=10**6)
    with capture_logs() as logs:
        world.start()
        wait(lambda: world.engine.status.version == world.registry.shadow())
    (said,) = [line for line in logs if line["event"] == "version_not_served"]
    assert "is at event 1000000, but the log has events [0, " in said["error"] and "promote another version" in said["error"]


def test_without_any_version_that_can_be_served_the_rule_answers(world):
    for name in world.registry.names():
        flip(world.registry.folder / name / "model.safetensors")
    world.start()
    assert ask(world)["as_of"]["version"] == "rule"
    wait(lambda: reading(metrics.champion_not_served) == 1)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_trainer_goes_on_beside_a_damaged_champion_and_a_damaged_proven_version(world, damage):
    champion, proven = world.registry.champion(), world.registry.shadow()
    for name in (champion, proven):
        DAMAGES[damage](world.registry.folder / name)
    world.train()
    assert world.registry.champion() not in (champion, proven)
    world.registry.load(world.registry.champion())
    world.registry.load(world.registry.shadow())


def test_strangers_beside_the_versions_are_named_and_passed_over_by_api_and_command_line(world):
    folder = world.registry.folder
    names, champion = world.registry.names(), world.registry.champion()
    shutil.copytree(folder / champion, folder / f"{champion} (copy)")
    shutil.copytree(folder / champion, folder / "99-99")
    (folder / "lost+found").mkdir()
    (folder / "5-5" / "manifest.json").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with (world.path / MOVES).open("ab") as file:
        file.write(b"\x00\xff not a move\n[]\n\n")
    assert world.registry.names() == names and world.registry.champion() == champion
    world.start()
    wait(lambda: world.engine.status.version == champion)
    status = world.client.get("/status.json").json()
    assert [v["name"] for v in status["versions"]] == names[::-1] and status["champion"] == champion
    told = world.client.get("/v1/models").json()
    assert [v["name"] for v in told["versions"]] == names and told["passed_over"] == status["passed_over"]
    assert {f"{champion} (copy)", "99-99", "lost+found", "5-5", "moves.jsonl: []"} < set(told["passed_over"])
    assert f"copy of version {champion}" in told["passed_over"]["99-99"] and len(told["passed_over"]) == 6
    listed = CliRunner().invoke(cli, ["models", "list", "--data-dir", str(world.path)])
    structlog.reset_defaults()
    assert all(name in listed.stderr for name in ("lost+found", "99-99", "(copy)", "5-5", "not a move"))
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["version", *names]
    world.train()
    assert world.registry.champion() != champion and len(world.registry.journal.moves()) >= 4


@pytest.mark.parametrize("damage", [flip, truncate, lambda path: path.write_bytes(b"")])
def test_a_damaged_checkpoint_is_passed_over_and_learning_goes_on_from_the_champion(world, damage):
    (checkpoint,) = (world.path / "train/checkpoints").iterdir()
    champion, records = world.registry.champion(), (world.path / WINDOWS).read_bytes()
    damage(checkpoint / "state.safetensors")
    world.train()
    assert (world.path / WINDOWS).read_bytes().startswith(records), "windows learned before are not learned again"
    assert world.registry.champion() != champion
    kept = [m.parent for m in map(world.registry.manifest, world.registry.names()) if m.name > champion]
    assert champion in kept, "it goes on from the champion's weights"


def test_beside_a_damaged_checkpoint_a_champion_with_a_damaged_memory_is_not_followed_and_learning_begins_anew(world):
    (checkpoint,) = (world.path / "train/checkpoints").iterdir()
    champion = world.registry.champion()
    flip(checkpoint / "memory-001.safetensors")
    flip(world.registry.folder / champion / "memory-001.safetensors")
    with capture_logs() as logs:
        world.train()
    told = {line["event"]: line for line in logs}
    assert "checkpoint_lost" in told and "memory-001" in told["champion_not_followed"]["reason"]
    assert told["trainer_started"]["edge"] == 0 and world.registry.champion() != champion


@pytest.mark.parametrize("damage", [flip, truncate, lambda path: path.write_bytes(b"")])
def test_damaged_facts_memory_and_replay_are_made_again_or_left_out(world, damage, monkeypatch):
    monkeypatch.setattr(retention_hold, "MEMORY_EVERY", 0)
    world.train()
    world.start()
    wait(lambda: world.engine.status.version == world.registry.champion())
    want = ask(world)["scores"]
    folder = folder_of(world.path, "serve")
    wait(lambda: (folder / MEMORY / INDEX).exists() and list((folder / FACTS).glob("*")))
    world.stop()
    damaged = [*world.path.glob("roles/*/facts/*.safetensors"), *world.path.glob("roles/*/memory/*"),
               *world.path.glob("train/replay/*.safetensors")]
    assert len(damaged) >= 4
    for path in damaged:
        damage(path)
    (world.path / "roles/serve/facts/strange.safetensors").write_bytes(b"?")
    again = World(world.path)
    again.train()
    again.start()
    wait(lambda: again.engine.status.version == again.registry.champion())
    got = ask(again)["scores"]
    assert [s["dst"] for s in got] == [s["dst"] for s in want]
    for a, b in zip(got, want, strict=True):
        assert a["score"] == pytest.approx(b["score"], abs=1e-5)
    again.stop()


def test_a_record_that_is_damaged_in_the_log_is_left_out_and_verified(world):
    path = world.path / WINDOWS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"\x00" * (len(lines[1]) - 1) + b"\n", *lines[2:]]))
    world.train()
    world.start()
    windows = world.client.get("/status.json").json()["windows"]
    assert len(windows) >= len(lines) - 1 >= 2 and all(w["events"] for w in windows)
    assert [damage.path for damage in verify_log(world.path)[1]] == [WINDOWS]


def test_a_version_that_says_what_is_no_number_is_taken_out_of_service_while_it_serves(world, monkeypatch):
    champion, proven = world.registry.champion(), world.registry.shadow()
    world.start()
    wait(lambda: world.engine.status.version == champion)
    from streamd.serving.loaded_version import LoadedVersion
    scores = LoadedVersion.scores

    def broken(self, *args):
        return scores(self, *args) * (torch.nan if self.manifest.name == champion else 1)

    monkeypatch.setattr(LoadedVersion, "scores", broken)
    assert ask(world)["as_of"]["version"] == "rule", "no request fails for it"
    wait(lambda: world.engine.status.version == proven)
    assert reading(metrics.champion_not_served) == 1


def test_verify_names_every_damaged_file_beside_the_log(world):
    from streamd.cli.maintenance import damage_outside_the_log

    assert list(damage_outside_the_log(world.settings)) == []
    flip(world.registry.folder / world.registry.champion() / "memory-000.safetensors")
    (checkpoint,) = (world.path / "train/checkpoints").iterdir()
    chunk = min(world.path.glob("train/replay/*.safetensors"))
    flip(checkpoint / "state.safetensors")
    flip(chunk)
    said = list(damage_outside_the_log(world.settings))
    assert len(said) == 3 and all("differs from its checksum" in s for s in said)
    assert world.registry.champion() in said[0] and checkpoint.name in said[1] and chunk.name in said[2]
