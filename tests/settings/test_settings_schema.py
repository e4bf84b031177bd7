"""`streamd config --schema`: what an editor checks is what the settings take."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.errors import SettingsError
from streamd.settings.loading import Settings, leaves, load_settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def validator():
    done = CliRunner().invoke(app, ["config", "--schema"])
    assert done.exit_code == 0
    schema = json.loads(done.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def examples():
    """Every block of the docs that is a settings file, and the files of the examples."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S)):
            read = yaml.safe_load(block)
            if isinstance(read, dict) and read.keys() <= Settings.model_fields.keys():
                yield pytest.param(read, id=f"{page.name} {number}")
    for file in sorted((ROOT / "docs/examples").glob("*.yaml")):
        yield pytest.param(yaml.safe_load(file.read_text()), id=file.name)


def test_there_are_examples_to_check():
    assert len(list(examples())) >= 8


@pytest.mark.parametrize("example", list(examples()))
def test_every_example_of_the_docs_fits(validator, example):
    validator.validate(example)


def test_every_setting_is_in_it_with_its_meaning(validator):
    schema = validator.schema
    for path in leaves():
        at = schema
        for name in path:
            at = at.get("properties", at)[name]
            at = schema["$defs"][at["$ref"].rsplit("/", 1)[1]] if "$ref" in at else at
        assert at.get("description"), path


def test_all_defaults_fit(validator):
    validator.validate(json.loads(Settings().model_dump_json(exclude={"server": {"api_keys", "admin_keys"}})))


FINE = [
    {"sources": [{"topic": "t", "time": "record", "fields": {"src": "a", "dst": {"path": "b", "prefix": "x:"}}, "where": {"kind": "view", "n": [1, None]}}]},
    {"sources": [{"topic": "t", "time": "record", "labels": {"fields": {"node": "a", "target": "b"}}}], "stream": {"label_dim": 1}},
    {"sources": [{"topic": "t", "time": "record", "labels": {"fields": {"node": "a", "target": ["b", {"path": "c"}]}}}], "stream": {"label_dim": 2}},
    {"graph": {"edge_sets": {"default": {"features": {"a": "number", "b": {"categories": ["x", 1]}, "c": {"hash": 4}, "d": {"text": 64, "missing": ""}}}}}},
    {"model": {"name": "pair", "half_lives_seconds": [1, 2, 3, 4, 5]}, "device": "cpu", "retention": {"max_age_seconds": None}},
]
WRONG = [
    {"modle": {}}, {"model": {"nam": "pair"}}, {"model": {"name": "nope"}}, {"training": {"epochs": -1}}, {"training": {"epochs": "many"}},
    {"sources": {"topic": "t"}}, {"sources": [{"topik": "t"}]}, {"sources": [{"topic": "t", "fields": {"src": 1, "dst": "b"}}]},
    {"graph": {"edge_sets": {"default": {"features": {"a": "text"}}}}}, {"device": "tpu"}, {"kafka": {"topics": [1]}},
]


@pytest.mark.parametrize("given", FINE)
def test_what_the_settings_take_fits(validator, given, tmp_path):
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(given))
    load_settings(tmp_path / "s.yaml", None, {})
    validator.validate(given)


@pytest.mark.parametrize("given", WRONG)
def test_what_the_settings_refuse_does_not(validator, given, tmp_path):
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(given))
    with pytest.raises(SettingsError):
        load_settings(tmp_path / "s.yaml", None, {})
    assert not validator.is_valid(given)
