import ast
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import streamd
from streamd.cli.main import app
from streamd.errors import SettingsError
from streamd.roles import ARCHIVE, ROLES, roles_of
from streamd.schema import EdgeSet, NodeSet, Schema
from streamd.settings.loading import (
    as_environment,
    effective,
    leaves,
    load_settings,
    schema_of,
    with_schema,
)
from streamd.settings.nearest import nearest


def test_sources_override_one_another_and_are_named(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("training: {epochs: 3, seed: 7}\nserver: {port: 1}\n")
    s, origin = load_settings(file, {"server.port": 9}, {"STREAMD_TRAINING__EPOCHS": "5", "OTHER": "x"})
    assert (s.training.epochs, s.training.seed, s.server.port) == (5, 7, 9)
    assert [origin[k] for k in ("training.epochs", "training.seed", "server.port", "model.dim")] == [
        "environment", "file", "command line", "default"]


def raised_with_one_argument(path):
    """The lines of a file that raise an error of settings without an action. mistakes.py collects texts that have their own."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "SettingsError")
    return [f"{path}:{call.lineno}" for call in calls if len(call.args) + len(call.keywords) < 2 and path.name != "mistakes.py"
            and not any(isinstance(argument, ast.Starred) for argument in call.args)]


def test_each_error_of_settings_has_an_action():
    assert [line for path in Path(streamd.__file__).parent.rglob("*.py") for line in raised_with_one_argument(path)] == []


@pytest.mark.parametrize("words", [("run", "--role", "trainr"), ("health", "--role", "trainr"), ("config", "-c", "none.yaml"), ("train", "--static", "--model", "x"), ("run", "--name", "serve-2")])
def test_mistakes_on_the_command_line_have_an_action_too(words):
    error = str(CliRunner().invoke(app, words).exception)
    assert "Operator action: " in error and "Errno" not in error
    assert "trainr" not in words or "did you mean 'train'?" in error


def each_is_a_line(text):
    """Whether one error is one line, and several are a line each after a head that counts them; each has an action of the operator."""
    head, *lines = text.split("\n")
    assert all(re.search(r"[.?] Operator action: \w.*\.$", line) for line in lines or [head]), text
    if not lines:
        return head.startswith(("Setting", "Unknown variable", "Variable"))
    return head == f"The settings have {len(lines)} errors:" and len(lines) > 1 and all(line.startswith("- Setting") for line in lines)


@pytest.mark.parametrize(("yaml", "environ", "says"), [
    ("trainin: {}", {}, "trainin"), ("training: {epoch: 1}", {}, "did you mean 'training.epochs'"), ("model: {epochs: 1}", {}, "did you mean 'training.epochs'"), ("", {"STREAMD_MODEL__EPOCHS": "3"}, "did you mean STREAMD_TRAINING__EPOCHS"),
    *(("", {name: "s.yaml"}, f"Unknown variable {name}; did you mean STREAMD_CONFIG") for name in ("STREAMD_CONFIGG", "STREAMD_CONFG", "STREAMD_CONFGI", "STREAMD_CONFIG_FILE")),
    ("", {"STREAMD_MODELL__NAME": "pair"}, "did you mean STREAMD_MODEL__NAME"), ("data_dir: 7", {}, "must be a path, as text, got 7"),
    ("training: 5", {}, "Setting training .*mapping"), ("training: {epochs: 0}", {}, r"Setting training\.epochs .*greater than 0"), ("[1]", {}, "mapping"),
    ("a: b: c", {}, r"s\.yaml cannot be read: line 1, column 5: mapping values are not allowed here, after 'a: b'\. Operator action: put text"),
    ("kafka:\n  topics: [a, b\nserver: {port: 1}", {}, r"line 3, column 7: expected ',' or ']', but got ':' while parsing a flow sequence from line 2, after 'server'"),
    ("kafka:\n\ttopics: [a]", {}, r"line 2, column 1: found character '\\t'"), ("a: \x07", {}, r"character 4, U\+0007, is not allowed"),
    ("kafka: {topics: rides}", {}, r"kafka\.topics .*: it must be a list: \[rides\]\. Operator action: correct"), ("training: {mesh: 4}", {}, r"it must be a list: \[4\]\. Operator action: correct"),
    ("server: {api_keys: hush}", {}, r"api_keys .*: it must be a list\. Operator action: correct"), ("sources: rides", {}, r"it must be a list of mappings, each with a topic, got 'rides'"),
    ("sources: [{topic: t, time: s, where: view, fields: {src: a, dst: b, time: c}}]", {}, r"where .*: it must be a mapping, such as \{kind: \[view\]\}, got 'view'\. Operator action: correct"),
    ("sources: [{topic: t, time: s, drop_keys: [[1]], fields: {src: a, dst: b, time: c}}]", {}, r"Setting sources\.0\.drop_keys\.0 \("),
    ("graph: {node_sets: {reader: {}, item: {}}, edge_sets: {loan: {source: readr, target: item}}}", {}, r"did you mean 'reader'\? Operator action: correct"), ("model: {dim: 7}", {}, r"model\.dim \(file .* line 1\): 7 .*model\.heads"),
    ("", {"STREAMD_SERVER__PROT": "1"}, "STREAMD_SERVER__PORT"), ("", {"STREAMD_KAFKA__TOPICS": "x"}, "STREAMD_KAFKA__TOPICS.*JSON"),
    ("trials: {name: a, topic: t, arms: {champion: .5, rul: .5}}", {}, r"trials\.arms\.rul .* did you mean 'rule'.*champion, last_midnight, rule, popularity and the names of `streamd models list`\.$"),
    ("trials: {name: a, topic: t, arms: {champion: .5, last_noon: .5}}", {}, r"last_noon .* no such arm"),
    ("trials: {name: a, topic: t, arms: {champion: .2, last_midnight: .2, 1-1: .2, 2-1: .2, 3-1-2: .2}}", {}, r"4 arms have a version of their own, at most 3"),
    ("trials: {name: a, topic: t, arms: {champion: .5, rule: .4}}", {}, r"add up to 0\.9, not 1"),
    ("trials: {name: a, topic: t, arms: {champion: 1, rule: 0}}", {}, r"above 0 and below 1, not 1"),
    ("trials: {name: a, topic: t, arms: {rule: .5, popularity: .5}}", {}, r"compares the champion"),
    ("trials: {name: a, topic: t, arms: {champion: 1}}", {}, r"compares the champion"), ("trials: {name: a b, topic: t}", {}, r"trials\.name"),
    ("trials: {name: a, arms: {champion: .5, rule: .5}}", {}, r"needs a topic"), ("trials: {name: a, topic: t, arms: {champion: .5, rule: .5}, edge_set: buys}", {}, r"trials\.edge_set .*buys is not in graph\.edge_sets"),
    ("ingest: {start: yesterday}", {}, r"Setting ingest\.start \(.* line 1\).*it is earliest, latest or a time like"),
    ("trials: {topic: t}", {}, r"no effect without trials\.name"),
    ("trials: {name: a, topic: events, arms: {champion: .5, rule: .5}}", {}, r"events is in kafka\.topics"),
    ("{trials: {name: a, topic: t, arms: {champion: .5, rule: .5}}, server: {score_topic: t}}", {}, r"t is server\.score_topic too"),
    ("", {"STREAMD_SERVER__PORT": "http"}, "server.port"), ("kafka: {client: {group_id: x}}", {}, "group_id")])
def test_a_wrong_setting_is_one_line_that_names_it(tmp_path, yaml, environ, says):
    file = tmp_path / "s.yaml"
    file.write_text(yaml)
    with pytest.raises(SettingsError, match=says) as caught:
        load_settings(file, {}, environ)
    assert each_is_a_line(str(caught.value))


WRONG = """
server: {tls_cert_file: a.pem, prot: 1}
training:
  epochs: 0
  epochs: many
model.dim: 7
trainin: {}
graph:
  edge_sets: {buys: {sorce: user, target: item}, views: {}}
sources:
  - topic: clicks
    fields: {dts: v, time: t}
  - topic: views
    format: csv
    fields: {src: u, dst: v, time: t}
windows: 5
"""


def test_all_that_is_wrong_is_told_at_once_by_file_and_line(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(WRONG)
    environ = {"STREAMD_SERVER__PROT": "1", "STREAMD_KAFKA__TOPICS": "x", "STREAMD_TRAINING__SEED": "soon"}
    with pytest.raises(SettingsError) as caught:
        load_settings(file, {"ingest.max_nodes": 0}, environ)
    head, *lines = str(caught.value).split("\n")
    found = [line.removeprefix("- ").replace(str(file), "F") for line in lines]
    assert head == f"The settings have {len(lines)} errors:"
    expected = [
        r"Setting server\.prot \(file F line 2\) is unknown; did you mean 'server\.port'\?", r"Setting server\.tls_cert_file \(file F line 2\): .*belong together.*action: set",
        r"Settings file F line 5: 'epochs' is there twice\.", r"Setting training\.epochs \(file F line 5\): .*integer.*got 'many'\.", r"Setting model\.dim \(file F line 6\): 7 is not",
        r"Setting trainin \(file F line 7\) is unknown; did you mean 'training'\?", r"Setting graph\.edge_sets\.buys\.sorce \(file F line 9\) is unknown; did you mean 'source'\?",
        r"Setting sources\.0\.fields\.src \(file F line 12\): Field required\.", r"Setting sources\.0\.fields\.dts \(file F line 12\) is unknown; did you mean 'dst'\?",
        r"Setting sources\.1\.format \(file F line 14\): ", r"Setting windows \(file F line 16\): it must be a mapping",
        r"Unknown variable STREAMD_SERVER__PROT; did you mean STREAMD_SERVER__PORT\?", r"Variable STREAMD_KAFKA__TOPICS must be JSON",
        r"Setting training\.seed \(environment STREAMD_TRAINING__SEED\): .*got 'soon'", r"Setting ingest\.max_nodes \(command line\): .*got 0"]
    assert len(found) == len(expected) and all(any(re.match(one, text) for text in found) for one in expected), "\n".join(found)
    positions = [int(n) for n in re.findall(r"line (\d+)", "\n".join(found))]
    assert positions == sorted(positions) and "command line" in found[-1], "in the order of the file, then variables, then options"


FARE = "graph: {edge_sets: {default: {features: {fare: number}}}}\n"


@pytest.mark.parametrize(("text", "expected"), [
    (FARE + "sources: [{topic: t, fields: {src: u}}]", [r"sources\.0 .*fields needs a time", r"sources\.0\.fields\.dst .*Field required", r"sources\.0\.fields .*fare of .* has no path"]),
    (FARE + "sources: [{topic: t, time: s, each: a, fields: {src: u, features: {fare: $envelope.f}}, labels: {fields: {target: y}}}]",
     [r"0\.fields\.dst .*Field required", r"labels\.fields\.node .*Field required", r"0 .*fields needs a time", r"0 .*labels\.fields needs a time", r"labels has no where", r"\$envelope\.f needs an envelope", r"0\.labels .*there are no labels"]),
    ("sources: [{topic: t, format: csv, fields: {src: u, dst: v}}, {topic: b, time: s, fields: {src: u, dst: v, features: {fare: f}}}]", [r"sources\.0\.format ", r"sources\.1 .*fields needs a time", r"sources\.1\.fields\.features\.fare .*is not declared"]),
    ("graph: {edge_sets: {default: {features: {fare: numbr}}}}\nsources: [{topic: t, fields: {src: u, dst: v, features: {fare: f}}}]", [r"features\.fare\.type ", r"sources\.0 .*fields needs a time"]),
    # No path leads into the list, or the one that is missing may.
    ("sources: [{topic: t, time: record, each: a, fields: {src: u, dst: v}}, {topic: b, time: record, each: a, fields: {src: u}}]", [r"sources\.0 .*no field leads into an element of a", r"sources\.1\.fields\.dst .*Field required"]),
    ("sources: [{topic: t, time: record, each: $envelope.a, fields: {src: u, dst: v}}, {topic: b}]", [r"sources\.0\.each .*outside", r"sources\.1 .*needs fields"])])
def test_an_error_in_a_source_hides_no_other(tmp_path, text, expected):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(SettingsError, match=f"have {len(expected)} errors") as caught:
        load_settings(tmp_path / "s.yaml", environ={})
    lines = str(caught.value).split("\n")[1:]
    assert all(any(re.search(one, line) for line in lines) for one in expected), "\n".join(lines)


def test_a_server_without_keys_is_listed_with_other_errors_only(tmp_path):
    """Commands other than run need no keys."""
    file = tmp_path / "s.yaml"
    file.write_text("server: {host: 0.0.0.0, prot: 1}\n")
    with pytest.raises(SettingsError, match=r"have 2 errors[^$]*Setting server\.host \(file .*line 1\): other machines can reach 0\.0\.0\.0, but server\.api_keys is empty\. Operator action: set STREAMD_SERVER__API_KEYS"):
        load_settings(file, environ={})
    for wrong in ("admin_keys_file: [1]", "api_keys: 5"):
        file.write_text(f"server: {{host: 0.0.0.0, {wrong}}}\n")
        with pytest.raises(SettingsError, match="^Setting server.a"):
            load_settings(file, environ={})
    file.write_text("server: {host: 0.0.0.0}\n")
    assert load_settings(file, environ={})[0].server.host == "0.0.0.0"


def test_what_follows_from_a_value_that_was_not_meant_is_no_error(tmp_path):
    """heads is the default while its own value is wrong, and sources are not known while one of them is."""
    file = tmp_path / "s.yaml"
    file.write_text("model: {dim: 130, heads: two}\nschema_registry: {user: me, secert: hush}\n"
                    "graph: {edge_sets: {a: {features: {x: numbr}}}}\nsources: [{topic: t, time: record, fields: {src: a, dst: b, features: {x: x}}}]\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(file, {}, {})
    text = str(caught.value)
    assert "have 3 errors" in text and "hush" not in text
    assert all(name in text for name in ("model.heads (file", "schema_registry.secert (file", "x.type (file"))


def test_declarations_that_contradict_one_another_are_told_together(tmp_path):
    text = SOURCES.replace("src: u", "src: {constant: ''}").replace("seconds: s", "secs: {path: s, prefix: x}").replace("number", "number, more: number")
    text = text.replace("graph:", "schema_registry: {user: me}\nstream: {edge_feature_dim: 3}\ngraph:")
    with pytest.raises(SettingsError, match="have 6 errors") as caught:
        of_sources(tmp_path, text)
    for says in ("it is 3, but", "secs is not declared", "only keys have a prefix", "more of .* has no path", r"src\.constant .*a key is", "needs schema_registry.secret"):
        assert re.search(says, str(caught.value)), says


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


SOURCES = """
graph:
  edge_sets:
    default:
      features: {seconds: number, how: {categories: [card, cash]}}
sources:
  - topic: clicks
    fields: {src: u, dst: v, time: t, features: {seconds: s, how: h}}
    where: {kind: [view]}
    deletes: {where: {kind: forget}, fields: {node: u}}
"""


def of_sources(tmp_path, text=SOURCES, **values):
    file = tmp_path / "s.yaml"
    file.write_text(text)
    return load_settings(file, values, {})[0]


def test_widths_and_topics_follow_from_what_is_declared(tmp_path):
    s = of_sources(tmp_path)
    assert (s.stream.edge_feature_dim, s.stream.node_feature_dim, s.kafka.topics) == (4, 0, ("clicks",))
    assert load_settings(environ=as_environment(s))[0] == s
    assert effective(s)["sources"][0]["where"] == {"kind": ["view"]}
    assert of_sources(tmp_path, **{"kafka.topics": ["clicks", "own"], "stream.edge_feature_dim": 4}).kafka.topics == ("clicks", "own")


@pytest.mark.parametrize(("old", "new", "says"), [
    ("dst: v, ", "", r"sources\.0\.fields\.dst \(file .*s\.yaml line 8\): Field required"), ("dst: v", "dts: v", r"fields\.dts .*line 8\) is unknown; did you mean 'dst'"),
    ("topic: clicks", "topic: clicks\n    format: csv", r"sources\.0\.format .*line 8\): Input should be 'json'"), ("src: u", "src: a..b", r"fields\.src .*a path is"),
    ("topic: clicks", "where: {kind: [view]}\n    topic: clicks", r"line 10: 'where' is there twice"), ("src: u", "src: 'a\"b.c'", r"fields\.src .*no quotation mark"), ("src: u", r"src: 'a\b'", r"backslash"), ("src: u", "src: $kee.x", r"a path begins with"), ("src: u", "src: $envelope.x", r"needs an envelope"), ("src: u", "src: {}", r"a field is a path"),
    ("src: u", "src: {constant: a, prefix: b}", r"neither prefix nor default"), ("time: t", "time: {path: t, prefix: x}", r"fields\.time .*line 8\): only keys have a prefix"),
    ("time: t, ", "", r"sources\.0 .*fields needs a time"), ("topic: clicks", "topic: clicks\n    time: record", r"time is record"),
    ("seconds: s", "secs: s", r"features\.secs .*line 8\): secs is not declared"), ("seconds: s, ", "", r"line 8\): seconds of .* has no path here, and no `missing`"),
    ("where: {kind: forget}, ", "", r"deletes has no where, so nothing is left for fields"), ("[view]", "[]", r"kind has no values"), ("topic: clicks", "topic: clicks\n    drop_keys: [null]", r"drop_keys .*null is no key: write default: anonymous"), ("{node: u}", "{src: u}", r"src, dst and time"),
    ("number", "numbr", r"features\.seconds\.type .*line 5\): a feature is number, bool, categories: .*hash: N, text: N or vector: N, got 'numbr'"), ("number", "{type: category}", r"seconds\.type .*line 5\): a feature is number, bool, .*got 'category'"), ("number", "{hash: 0}", r"features\.seconds\.hash .*line 5\).*greater than 0"),
    ("number", "{hash: 2, vector: 2}", r"a feature is number, bool"), ("number", "{hash: 2, text: 2}", r"a feature is number, bool"), ("number", "{text: 0}", r"features\.seconds\.text .*line 5\).*greater than 0"), ("number", "{text: 2, missing: [1]}", r"missing is not a value of text: 2"), ("number", "{vector: 2, missing: [1]}", r"missing is not a value of vector: 2"),
    ("seconds: s", "seconds: {path: s, default: soon}", r"features\.seconds .*line 8\): default is no value of number"), ("seconds: s", "seconds: {constant: s}", r"constant is no value of number"),
    ("number", "{type: number, missing: .nan}", r"line 5\): missing is not a value of number"), ("src: u", "src: {constant: ''}", r"src\.constant .*a key is .*not empty"),
    ("[card, cash]", "[1, '1']", r"categories has '1' twice"), ("sources:", "stream: {edge_feature_dim: 3}\nsources:", "it is 3, but .* 4 wide"),
    ("sources:", "kafka: {topics: [own]}\nsources:", r"sources\.0\.topic .*clicks is not in kafka\.topics"), ("sources:", "sources:\n  - {topic: clicks, time: record, nodes: {fields: {id: x}}}", "nothing is left for it"),
    ("deletes: {where: {kind: forget}", "labels: {where: {kind: forget}", r"labels\.fields\.target"), ("graph:", "stream: {edge_feature_dim: 4}\nxgraph:", "xgraph"),
    ("deletes: {where: {kind: forget}, fields: {node: u}}", "labels: {where: {kind: x}, fields: {node: u, time: t, target: y}}", "stream.label_dim is 0"),
])
def test_a_wrong_source_is_one_line_that_names_key_and_line(tmp_path, old, new, says):
    assert old in SOURCES
    with pytest.raises(SettingsError, match=says) as caught:
        of_sources(tmp_path, SOURCES.replace(old, new, 1))
    assert each_is_a_line(str(caught.value))


def test_features_that_are_wide_but_not_declared_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="edge features are 4 wide; declare them in graph.edge_sets.default.features"):
        of_sources(tmp_path, "sources: [{topic: x, time: record, fields: {src: a, dst: b}}]", **{"stream.edge_feature_dim": 4})


SETS = """
graph:
  node_sets:
    user: {features: {age: number, country: {categories: [de, fr, us]}}}
    item: {}
  edge_sets:
    views: {source: user, target: item, features: {seconds: number}}
    buys: {source: user, target: item, features: {price: number, how: {categories: [card, cash]}}}
sources:
  - topic: clicks
    edge_set: views
    time: record
    fields: {src: u, dst: v, features: {seconds: s}}
    where: {kind: view}
    deletes: {where: {kind: forget}, node_set: user, fields: {node: u}}
    nodes: {where: {kind: user}, node_set: user, fields: {id: u, features: {age: a, country: c}}}
"""


def test_the_schema_follows_from_the_declared_sets(tmp_path):
    s = of_sources(tmp_path, SETS)
    assert without_names(schema_of(s)) == Schema.declared(
        [NodeSet("user", 5), NodeSet("item", 0)], [EdgeSet("views", "user", "item", 1), EdgeSet("buys", "user", "item", 4)])
    # The widths are those of rows: a place for each set, then the features of all.
    assert (s.stream.edge_feature_dim, s.stream.node_feature_dim) == (2 + 1 + 4, 2 + 5)
    again = load_settings(environ=as_environment(s))[0]
    assert again == s and schema_of(again) == schema_of(s)
    assert effective(s)["graph.edge_sets"]["buys"]["target"] == "item" and list(effective(s)["graph.node_sets"]) == ["user", "item"]


@pytest.mark.parametrize(("graph", "want"), [
    ("{}", Schema(3, 2)), ("{edge_sets: {default: {}}, node_sets: {default: {}}}", Schema(3, 2)),
    ("{edge_sets: {default: {features: {a: {vector: 3}}}}}", Schema(3, 2)),
    ("{edge_sets: {rides: {features: {a: {vector: 3}}}}}", Schema.declared([NodeSet("default", 2)], [EdgeSet("rides", feature_dim=3)])),
    ("{node_sets: {user: {features: {a: {vector: 2}}}}}", Schema.declared([NodeSet("user", 2)], [EdgeSet("default", "user", "user", 3)])),
])
def test_a_set_that_declares_no_features_has_the_width_of_the_stream(tmp_path, graph, want):
    s = of_sources(tmp_path, f"graph: {graph}", **{"stream.edge_feature_dim": 3, "stream.node_feature_dim": 2})
    assert without_names(schema_of(s)) == want
    assert schema_of(load_settings(environ=as_environment(s))[0]) == schema_of(s) == Schema.restored(json.loads(json.dumps(schema_of(s).fields())))
    if schema_of(s).is_declared:
        assert schema_of(with_schema(s, schema_of(s))) == schema_of(s)


def without_names(schema):
    """What a log's schema says but for the names of features."""
    bare = {k: tuple(replace(one, features=()) for one in getattr(schema, k)) for k in ("node_sets", "edge_sets")}
    return replace(schema, edge_features=(), node_features=(), **bare)


@pytest.mark.parametrize(("old", "new", "says"), [
    ("buys:", "2buys:", r"graph\.edge_sets\.2buys \(file .*line 8\): the name of a set is a letter"), ("buys:", "a/b:", "the name of a set"),
    ("buys: {source: user", "buys: {source: usr", r"edge_sets\.buys\.source .*line 8\): usr is not in graph.node_sets; there are user, item; did you mean 'user'"),
    ("buys: {source: user, target: item", "buys: {source: user", r"edge_sets\.buys .*line 8\): it needs a target: one of user, item"),
    ("buys: {source", "buys: {sorce", r"buys\.sorce .*line 8\) is unknown; did you mean 'source'"),
    ("    item: {}", "    item: {}\n" + "\n".join(f"    n{i}: {{}}" for i in range(60)), r"graph\.node_sets .*line 3\): 62 sets are declared, at most 60"),
    ("sources:", "stream: {edge_feature_dim: 6}\nsources:", "it is 6, but the features in graph.edge_sets are 7 wide"),
    ("edge_set: views", "edge_set: vews", r"sources\.0\.edge_set .*line 11\): vews is not in graph.edge_sets; there are views, buys; did you mean 'views'"),
    ("    edge_set: views\n", "", r"sources\.0\.edge_set .*: it is not set, and there are several: views, buys"),
    ("edge_set: views", "edge_set: buys", r"seconds is not declared in graph\.edge_sets\.buys\.features"),
    ("node_set: user, fields: {node", "fields: {node", r"sources\.0\.deletes\.node_set .*: it is not set, and there are several: user, item"),
    ("node_set: user, fields: {node", "edge_set: views, fields: {node", r"deletes\.edge_set .*they delete nodes"),
    ("node_set: user, fields: {node: u}", "node_set: user, fields: {src: u, dst: v, time: t}", "time is record"),
    ("node_set: user, fields: {id", "node_set: item, fields: {id", r"age is not declared in graph\.node_sets\.item\.features"),
])
def test_a_wrong_set_is_one_line_that_names_key_and_line(tmp_path, old, new, says):
    assert old in SETS
    with pytest.raises(SettingsError, match=says) as caught:
        of_sources(tmp_path, SETS.replace(old, new, 1))
    assert each_is_a_line(str(caught.value))


@pytest.mark.parametrize(("graph", "says"), [
    ("{node_sets: {a: {}, b: {}}}", r"graph\.node_sets .*several node sets need graph.edge_sets"),
    ("{edge_sets: {a: {source: user}}}", r"a\.source .*user is not in graph.node_sets; there are default"),
])
def test_edges_are_between_declared_sets(tmp_path, graph, says):
    with pytest.raises(SettingsError, match=says):
        of_sources(tmp_path, f"graph: {graph}")


@pytest.mark.parametrize("missing", ["log.name", "log.store"])
def test_a_standby_needs_a_name_and_a_store(missing):
    whole = {"log.name": "t", "log.store": "file:///x", "log.member": "standby"}
    found, _ = load_settings(None, whole, environ={})
    assert found.log.follows and roles_of(found.log.name, found.log.store, "standby") == (*ROLES, ARCHIVE)
    with pytest.raises(SettingsError, match="standby, which needs log.name and log.store"):
        load_settings(None, {k: v for k, v in whole.items() if k != missing}, environ={})


@pytest.mark.parametrize(("timeout", "heartbeat"), [(2, 2 / 3), (3, 1.0), (10, 1.0), (600, 1.0)])
def test_a_leader_is_heard_three_times_within_the_timeout(timeout, heartbeat):
    found, _ = load_settings(None, {"leader.timeout_seconds": timeout}, environ={})
    assert found.leader.heartbeat_seconds == heartbeat
    for wrong in (1.9, 601):
        with pytest.raises(SettingsError, match="leader.timeout_seconds"):
            load_settings(None, {"leader.timeout_seconds": wrong}, environ={})


def test_a_log_in_the_root_of_a_volume_is_used_until_the_folder_in_it_exists(tmp_path):
    environ = {"STREAMD_DATA_DIR": str(tmp_path / "log"), "STREAMD_TRAINING__CHECKPOINT_DIR": str(tmp_path / "log")}

    def found(overrides=None):
        s, _ = load_settings(None, overrides, environ)
        assert s.training.checkpoint_dir == s.data_dir or overrides
        return s.data_dir

    assert found() == tmp_path / "log", "a new volume"
    (tmp_path / "published").touch()
    assert found() == tmp_path
    assert found({"data_dir": tmp_path / "log"}) == tmp_path / "log", "a restore names the folder"
    (tmp_path / "log").mkdir()
    assert found() == tmp_path / "log"


@pytest.mark.parametrize(("content", "says"), [
    ('kafka: {bootstrap_servers: ""}', r"kafka\.bootstrap_servers .*line 1\): it is empty; set it, or leave it out for 127\.0\.0\.1:9092\. Operator action: correct"),
    ('kafka: {bootstrap_servers: "a:9092,"}', "one of the addresses between its commas is empty"),
    ('data_dir: ""', r"data_dir .*: it is empty; set it, or leave it out for streamd-data"),
    ('server: {host: " "}', r"server\.host .*: it is empty"), ('log: {store: " "}', r"log\.store .*: it is empty; .* out for nothing"),
    ('server: {api_keys_file: ""}', r"server\.api_keys_file .*: it is empty"), ('schema_registry: {secret: ""}', r"schema_registry\.secret .*: it is empty"),
    ('kafka: {group_id: ""}', r"kafka\.group_id .*: it is empty"), ('ingest: {dead_letter_topic: ""}', r"ingest\.dead_letter_topic .*: it is empty"),
    ('kafka: {topics: [""]}', r"kafka\.topics .*: '' is no name of a topic"), ('ingest: {dead_letter_topic: a b}', "'a b' is no name of a topic"),
    ('server: {api_keys: ["k", ""]}', r"server\.api_keys .*: one of the keys is empty")])
def test_text_that_means_nothing_is_refused_by_the_name_of_its_setting(tmp_path, content, says):
    (tmp_path / "s.yaml").write_text(content)
    with pytest.raises(SettingsError, match=says):
        load_settings(tmp_path / "s.yaml", environ={})


def test_empty_text_that_turns_something_off_is_taken():
    off = {f"STREAMD_{name}": "" for name in ("LOG__NAME", "LOG__STORE", "SERVER__PAGE_NOTE", "SERVER__SCORE_TOPIC", "TRIALS__NAME", "MLFLOW__TRACKING_URI")}
    assert load_settings(environ=off)[0] == load_settings(environ={})[0]


@pytest.mark.parametrize(("content", "near"), [
    ("retention: {max_age: 5}", "retention.max_age_seconds"), ("max_age: 5", "retention.max_age_seconds"), ("windows: {width: 5}", "windows.width_seconds"),
    ("sasl_password: x", "kafka.client.sasl_plain_password"), ("kafka: {sasl_password: x}", "kafka.client.sasl_plain_password"),
    ("security_protocol: SSL", "kafka.client.security_protocol"), ("kafka: {servers: x}", "kafka.bootstrap_servers"),
    ("bootstrap_servers: x", "kafka.bootstrap_servers"), ("server: {prot: 1}", "server.port")])
def test_the_nearest_setting_may_be_longer_or_in_another_section(tmp_path, content, near):
    (tmp_path / "s.yaml").write_text(content)
    with pytest.raises(SettingsError, match=rf"is unknown; did you mean '{near}'\?"):
        load_settings(tmp_path / "s.yaml", environ={})
    assert nearest("ssl_ca", ("ssl_check_hostname", "ssl_cafile")) == "ssl_cafile" and nearest("x", ("topics",)) is None
