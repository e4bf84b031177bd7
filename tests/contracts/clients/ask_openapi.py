"""A generated client asks a running server. Arguments: address, version served, API key."""

import importlib
import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

address, version, key = sys.argv[1:]
URL = f"http://{address}"

folder = Path(tempfile.mkdtemp())
spec, config = folder / "openapi.json", folder / "config.yaml"
with urllib.request.urlopen(f"{URL}/openapi.json") as answer:
    spec.write_bytes(answer.read())
config.write_text("post_hooks: []\n")
made = subprocess.run(
    [
        Path(sys.executable).parent / "openapi-python-client",
        "generate",
        "--path",
        spec,
        "--meta",
        "none",
        "--config",
        config,
        "--output-path",
        folder / "generated",
        "--fail-on-warning",
    ],
    capture_output=True,
    text=True,
)
assert made.returncode == 0, made.stdout + made.stderr
sys.path.insert(0, str(folder))

from generated import AuthenticatedClient, models  # noqa: E402


def function(operation):
    """The module of an operation, named after its id."""
    (found,) = (folder / "generated" / "api").glob(f"*/{operation}.py")
    return importlib.import_module(f"generated.api.{found.parent.name}.{operation}")


client = AuthenticatedClient(URL, token=key)
operations = [
    told["operationId"]
    for methods in json.loads(spec.read_text())["paths"].values()
    for told in methods.values()
]
assert all(function(name).sync_detailed for name in operations) and len(operations) >= 31


def call(operation, *path, **more):
    answer = function(operation).sync_detailed(*path, client=client, **more)
    assert answer.status_code == 200 and answer.parsed is not None, answer
    return answer.parsed


scored = call("score", body=models.ScoreRequest(src="n:3", dst=["n:20", "n:21"]))
assert scored.as_of.version == version and [s.known for s in scored.scores] == [True, True]
best = call("recommend", body=models.RecommendRequest(src="n:3", k=2))
assert len(best.scores) == 2
assert call("embedding", "n:3").known and call("models").champion == version

asked = models.InferRequest(
    inputs=[
        models.InputTensor(name="src", shape=[1], datatype="BYTES", data=["n:3"]),
        models.InputTensor(name="dst", shape=[1, 2], datatype="BYTES", data=["n:20", "n:21"]),
    ]
)
for answer in (
    call("infer", "streamd", body=asked),
    call("infer_version", "streamd", version, body=asked),
):
    assert answer.model_version == version
    assert [
        abs(a - s.score) < 1e-5 for a, s in zip(answer.outputs[0].data, scored.scores, strict=True)
    ] == [True, True]
assert call("server_metadata").extensions
assert call("model_metadata", "streamd") == call("version_metadata", "streamd", version)
assert call("model_config", "streamd") == call("version_config", "streamd", version)
assert (
    call("statistics")
    == call("model_statistics", "streamd")
    == call("version_statistics", "streamd", version)
)
assert [e.version for e in call("repository_index", body=models.IndexRequest(ready=True))] == [
    version
]

other = function("version_metadata").sync_detailed("streamd", "1-1", client=client)
assert other.status_code == 404 and "is not served" in other.parsed.error
refused = function("score").sync_detailed(
    client=client, body=models.ScoreRequest(src="n:3", dst=[])
)
assert refused.status_code == 422 and refused.parsed.detail.startswith("body.dst")
