"""Clients that others wrote ask a running server, each from an environment: `make contract`."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from streamd.daemon.supervisor import role_environment
from streamd.demo.broker import free_port
from tests.builders import HOUR, stream, write_log
from tests.server.world import SCHEMA, World, wait

CLIENTS = Path(__file__).parent / "clients"
KEY = "sesame"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A serve role that has loaded a version; its address and that version."""
    path = tmp_path_factory.mktemp("contract")
    write_log(path, *stream(300), SCHEMA, watermark=100 * HOUR)
    world = World(path, server__port=free_port(), server__api_keys=[KEY])
    world.train(1)
    address, version = f"127.0.0.1:{world.settings.server.port}", world.registry.champion()
    process = subprocess.Popen(
        [sys.executable, "-m", "streamd", "run", "--role", "serve"],
        env=role_environment(world.settings, "serve", os.environ),
    )

    def serves():
        asked = urllib.request.Request(
            f"http://{address}/v2/models/streamd/versions/{version}/ready",
            headers={"X-API-Key": KEY},
        )
        try:
            with urllib.request.urlopen(asked, timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    try:
        wait(serves, 60)
        yield address, version
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.contract
@pytest.mark.parametrize("client", ["triton", "kserve", "openapi"])
def test_a_client_of_others_is_answered(server, client):
    python = f"{sys.prefix}-contract-{client}/bin/python"
    asked = subprocess.run(
        [python, CLIENTS / f"ask_{client}.py", *server, KEY],
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert asked.returncode == 0, asked.stdout + asked.stderr


@pytest.mark.contract
def test_what_serializers_of_others_write_is_read_registry():
    """Confluent's own serializers register their schemas and write values; we read both."""
    from streamd.decode.sources.registry_framing import JSONValues, RegistryValues
    from streamd.settings.loading import SchemaRegistrySettings
    from tests.decode.registry import Registry

    registry = Registry()
    try:
        asked = subprocess.run(
            [f"{sys.prefix}-contract-registry/bin/python", CLIENTS / "ask_registry.py", registry.url],
            timeout=60,
            capture_output=True,
            text=True,
        )
        assert asked.returncode == 0, asked.stdout + asked.stderr
        wrote = json.loads(asked.stdout)
        assert set(wrote) == {"avro", "protobuf", "json-schema"}
        for format, cases in wrote.items():
            settings = SchemaRegistrySettings(url=registry.url)
            values = JSONValues() if format == "json-schema" else RegistryValues(format, settings)
            for case in cases:
                assert values.decode(bytes.fromhex(case["value"])) == [case["row"]], case
    finally:
        registry.stop()
