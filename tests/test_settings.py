import pytest

from streamd.errors import SettingsError
from streamd.settings import as_environment, effective, leaves, load_settings


def test_sources_override_one_another_and_are_named(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("training: {epochs: 3, seed: 7}\nserver: {port: 1}\n")
    s, origin = load_settings(file, {"server.port": 9}, {"STREAMD_TRAINING__EPOCHS": "5", "OTHER": "x"})
    assert (s.training.epochs, s.training.seed, s.server.port) == (5, 7, 9)
    assert [origin[k] for k in ("training.epochs", "training.seed", "server.port", "model.dim")] == [
        "environment", "file", "command line", "default"]


@pytest.mark.parametrize(("yaml", "environ", "says"), [
    ("trainin: {}", {}, "trainin"), ("training: {epoch: 1}", {}, "did you mean 'training.epochs'"),
    ("training: 5", {}, "Setting training .*mapping"), ("training: {epochs: 0}", {}, r"Setting training\.epochs .*greater than 0"), ("[1]", {}, "mapping"),
    ("a: b: c", {}, "cannot be read"), ("server: {host: 0.0.0.0}", {}, r"server\.api_keys"), ("model: {dim: 7}", {}, r"model\.dim 7 .*model\.heads"),
    ("", {"STREAMD_SERVER__PROT": "1"}, "STREAMD_SERVER__PORT"), ("", {"STREAMD_KAFKA__TOPICS": "x"}, "STREAMD_KAFKA__TOPICS.*JSON"),
    ("", {"STREAMD_SERVER__PORT": "http"}, "server.port"), ("kafka: {client: {group_id: x}}", {}, "group_id")])
def test_a_wrong_setting_is_one_line_that_names_it(tmp_path, yaml, environ, says):
    file = tmp_path / "s.yaml"
    file.write_text(yaml)
    with pytest.raises(SettingsError, match=says) as caught:
        load_settings(file, {}, environ)
    assert "\n" not in str(caught.value)


def test_settings_are_frozen():
    s, _ = load_settings(environ={})
    with pytest.raises(ValueError, match="frozen"):
        s.training.epochs = 5


def test_secrets_are_masked_and_reach_the_roles_all_the_same():
    environ = {"STREAMD_SERVER__API_KEYS": '["hush"]', "STREAMD_KAFKA__CLIENT": '{"sasl_plain_password": "hush", "acks": 1}'}
    s, _ = load_settings(environ=environ)
    assert "hush" not in str(effective(s)) + repr(s.server) and effective(s)["kafka.client"]["acks"] == 1
    again, _ = load_settings(environ=as_environment(s))
    assert again == s


def test_a_wrong_secret_is_not_printed():
    with pytest.raises(SettingsError) as caught:
        load_settings(environ={"STREAMD_SERVER__API_KEYS": '[["hush"]]'})
    assert "hush" not in str(caught.value)


def test_every_setting_reaches_the_roles_through_the_environment(tmp_path):
    s, _ = load_settings(None, {"data_dir": tmp_path, "ingest.dead_letter_topic": "d", "kafka.client": {"api_version": [2, 3]},
                                "model.half_lives_seconds": (1, 2, 3, 4, 5.5)}, {})
    assert load_settings(environ=as_environment(s))[0] == s
    assert len(list(leaves())) > 40
