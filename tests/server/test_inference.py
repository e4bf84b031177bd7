"""The inference protocol as its clients speak it: bytes, compressed, untyped; Triton's routes."""

import gzip
import json
import struct
import zlib

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from streamd.server.http.middleware import MAX_BODY_BYTES
from streamd.server.v2.binary import DTYPES, INTEGERS
from tests.builders import HOUR, stream, write_log
from tests.server.world import SCHEMA, World, ask

PATH = "/v2/models/streamd/infer"
SRC, DST = ["n:3", "n:4"], [["n:20", "n:21", "n:22"], ["n:23", "é:1", "n:25"]]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """No version yet: the rule answers."""
    path = tmp_path_factory.mktemp("inference")
    write_log(path, *stream(300), SCHEMA, watermark=100 * HOUR)
    made = World(path, server__max_candidates=64).start()
    yield made
    made.stop()


def as_bytes(array):
    array = np.asarray(array)
    if array.dtype.kind != "U":
        return array.tobytes()
    texts = [str(text).encode() for text in array.reshape(-1)]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def tensor(name, values, datatype="BYTES", **changes):
    """An input whose values are behind the JSON, and those."""
    array = np.array(values) if datatype == "BYTES" else np.array(values, DTYPES[datatype])
    raw = as_bytes(array)
    told = {
        "name": name,
        "shape": list(array.shape),
        "datatype": datatype,
        "parameters": {"binary_data_size": len(raw)},
    }
    return told | changes, raw


def body_of(*tensors, **more):
    """A request's body, and the length of its JSON."""
    text = json.dumps({"inputs": [told for told, _ in tensors], **more}).encode()
    return text + b"".join(raw for _, raw in tensors), len(text)


def send(world, body, json_length=None, **headers):
    """As the clients do: with no content-type, and no accept-encoding of the test client's."""
    length = {} if json_length is None else {"Inference-Header-Content-Length": str(json_length)}
    return world.client.post(PATH, content=body, headers={"accept-encoding": ""} | length | headers)


def read(answer):
    """Outputs of an answer by name, those behind the JSON too."""
    assert answer.status_code == 200, answer.text
    length = int(answer.headers.get("Inference-Header-Content-Length", len(answer.content)))
    said, rest, found = json.loads(answer.content[:length]), answer.content[length:], {}
    for output in said["outputs"]:
        if "data" in output:
            values = output["data"]
        else:
            size = output["parameters"]["binary_data_size"]
            values, rest = np.frombuffer(rest[:size], DTYPES[output["datatype"]]), rest[size:]
        found[output["name"]] = np.reshape(values, output["shape"])
    assert not rest
    return found


def refused(answer, status=400):
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


def test_tensors_as_bytes_are_answered_as_those_in_json_are(world):
    given = [
        {"name": "src", "shape": [2], "datatype": "BYTES", "data": SRC},
        {"name": "dst", "shape": [2, 3], "datatype": "BYTES", "data": DST},
    ]
    plain = read(world.client.post(PATH, json={"inputs": given}))
    single = [
        s["score"]
        for src, dst in zip(SRC, DST, strict=True)
        for s in ask(world, src, dst)["scores"]
    ]
    answer = send(
        world,
        *body_of(tensor("src", SRC), tensor("dst", DST), parameters={"binary_data_output": True}),
    )
    assert answer.headers["content-type"] == "application/octet-stream"
    found = read(answer)
    assert (found["score"].dtype, found["known"].dtype) == (np.float32, bool)
    np.testing.assert_allclose(found["score"].reshape(-1), single, atol=1e-5)
    assert plain["known"].tolist() == found["known"].tolist() == [[True] * 3, [True, False, True]]
    mixed = read(send(world, *body_of(tensor("dst", DST), (given[0], b""))))
    np.testing.assert_array_equal(mixed["score"], plain["score"])


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integer_keys_are_taken_as_bytes_of_every_width(world, datatype):
    low = np.iinfo(DTYPES[datatype]).min
    src, dst = tensor("src", [1], datatype), tensor("dst", [[max(low, -(2**63) + 1), 5]], datatype)
    assert read(send(world, *body_of(src, dst, tensor("time", [7], "INT64"))))[
        "known"
    ].tolist() == [[False, False]]


def test_an_output_says_for_itself_whether_it_is_bytes(world):
    tensors = tensor("src", SRC), tensor("dst", DST)
    for everything, own, is_json in (
        (True, False, True),
        (False, True, False),
        (True, None, False),
        (None, None, True),
    ):
        wanted = (
            {"name": "known"}
            if own is None
            else {"name": "known", "parameters": {"binary_data": own}}
        )
        more = {} if everything is None else {"parameters": {"binary_data_output": everything}}
        answer = send(world, *body_of(*tensors, outputs=[wanted], **more))
        assert ("Inference-Header-Content-Length" not in answer.headers) == is_json
        assert read(answer)["known"].shape == (2, 3)


@pytest.mark.parametrize(
    ("src", "rest", "said"),
    [
        (tensor("src", SRC, parameters={"binary_data_size": 10**18}), b"", "bytes are left"),
        (tensor("src", SRC, parameters={"binary_data_size": -1}), b"", "bytes are left"),
        (tensor("src", SRC, parameters={"binary_data_size": True}), b"", "bytes are left"),
        (tensor("src", SRC, parameters={"binary_data_size": "14"}), b"", "bytes are left"),
        (tensor("src", SRC, parameters={}), b"", "neither data nor"),
        (
            tensor("src", SRC, parameters={"shared_memory_region": "mine"}),
            b"",
            "shared_memory_region is not supported",
        ),
        (tensor("src", SRC, data=["a", "b"]), b"", "both data and"),
        (tensor("src", SRC, shape=[3]), b"", "are 2 values, its shape has 3"),
        (tensor("src", SRC, shape=[1]), b"", "are 2 values, its shape has 1"),
        (tensor("src", [1, 2], "INT32", shape=[1_000_000] * 8), b"", "of INT32 are 4000000"),
        (
            tensor("src", [1], "INT64", shape=[2]),
            b"",
            "2 values of INT64 are 16 bytes, binary_data_size is 8",
        ),
        (tensor("src", [1.0, 2.0], "FP32"), b"", "FP32 is not supported as bytes"),
        (tensor("src", [2**63, 1], "UINT64"), b"", "not all of its values are"),
        (tensor("src", ["", "n:3"]), b"", "text of 1 to 1024"),
        (
            (tensor("src", ["aa", "bb"])[0], b"\xff\xff\xff\xffaa\x02\0\0\0bb"),
            b"",
            "value 0 ends after",
        ),
        ((tensor("src", ["aa", "bb"])[0], b"\x02\0\0\0aa\x03\0\0\0bb"), b"", "value 1 ends after"),
        ((tensor("src", ["aa", "b"])[0], b"\x06\0\0\0aaaaaa\0"), b"", "value 1 ends after"),
        (
            (tensor("src", ["aa", "bb"])[0], b"\x02\0\0\0aa\x02\0\0\0\xc3("),
            b"",
            "value 1 is not UTF-8",
        ),
        (tensor("src", SRC), b"more", "4 bytes after the JSON belong to no input"),
    ],
)
def test_bytes_that_do_not_fit_are_refused_with_what_is_wrong(world, src, rest, said):
    body, length = body_of(src, tensor("dst", DST))
    assert said in refused(send(world, body + rest, length))


def test_the_length_of_the_json_is_checked_before_it_is_used(world):
    body, length = body_of(tensor("src", SRC), tensor("dst", DST))
    for wrong in (len(body) + 1, -1, "", "1e2", "9" * 5000, b"\xb2", "0x10", " ", "1_0"):
        assert "Inference-Header-Content-Length is" in refused(
            send(
                world,
                body,
                **{
                    "Inference-Header-Content-Length": wrong
                    if isinstance(wrong, bytes)
                    else str(wrong)
                },
            )
        )
    for wrong in (0, length - 1, length + 1, len(body), None):
        assert refused(send(world, body, wrong), 422).startswith("body")
    assert "0 bytes are left" in refused(send(world, body[:length])), "the JSON alone"


def test_an_output_that_is_not_served_is_refused_rather_than_another_given(world):
    tensors = tensor("src", SRC), tensor("dst", DST)
    for parameters in ({"classification": 2}, {"shared_memory_region": "mine"}):
        body = body_of(*tensors, outputs=[{"name": "score", "parameters": parameters}])
        assert "is not supported" in refused(send(world, *body))


@hypothesis.settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(st.data())
def test_no_bytes_and_no_lengths_break_the_server(world, data):
    body, length = body_of(tensor("src", SRC), tensor("dst", DST), tensor("time", [1, 2], "INT64"))
    at = data.draw(st.integers(length, len(body)))
    body = body[:at] + data.draw(st.binary(max_size=8)) + body[at + data.draw(st.integers(0, 8)) :]
    answer = send(
        world,
        body,
        data.draw(st.sampled_from([length, None, len(body)]) | st.integers(-9, 999)),
        **data.draw(
            st.sampled_from([{}, {}, {"content-encoding": "gzip"}, {"content-encoding": "deflate"}])
        ),
    )
    assert answer.status_code in (200, 400, 422), answer.text


@pytest.mark.parametrize(
    ("coding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("GZIP", gzip.compress)],
)
def test_a_compressed_request_is_answered_as_a_plain_one_is(world, coding, pack):
    body, length = body_of(tensor("src", SRC), tensor("dst", DST))
    plain, packed = (
        send(world, body, length),
        send(world, pack(body), length, **{"content-encoding": coding}),
    )
    assert packed.content == plain.content and packed.status_code == 200


def test_a_compressed_request_is_bounded_by_what_it_expands_to(world):
    for pack, coding in ((gzip.compress, "gzip"), (zlib.compress, "deflate")):
        for size, status in (
            (MAX_BODY_BYTES, 422),
            (MAX_BODY_BYTES + 1, 413),
            (8 * MAX_BODY_BYTES, 413),
        ):
            bomb = pack(bytes(size))
            assert len(bomb) < MAX_BODY_BYTES
            refused(send(world, bomb, **{"content-encoding": coding}), status)


def test_a_body_that_is_not_what_its_coding_says_is_refused(world):
    body, length = body_of(tensor("src", SRC), tensor("dst", DST))
    packed = gzip.compress(body)
    for wrong, coding in (
        (body, "gzip"),
        (packed, "deflate"),
        (packed[:-1], "gzip"),
        (packed + b"more", "gzip"),
        (packed[:-8] + bytes(8), "gzip"),
        (b"", "gzip"),
        (packed, "br"),
        (packed, "gzip, gzip"),
    ):
        assert coding in refused(send(world, wrong, length, **{"content-encoding": coding}))


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("br, deflate;q=0.5, gzip;q=0.1", "gzip"),
        ("gzip;q=0, deflate", "deflate"),
        ("gzip; q=0.000", None),
        ("br", None),
        ("", None),
        ("identity", None),
    ],
)
def test_a_large_answer_is_compressed_where_that_is_accepted(world, accepted, coding):
    tensors = tensor("src", ["n:3"] * 32), tensor("dst", [[f"n:{i}" for i in range(64)]] * 32)
    for more in ({}, {"parameters": {"binary_data_output": True}}):
        plain = send(world, *body_of(*tensors, **more))
        answer = send(world, *body_of(*tensors, **more), **{"accept-encoding": accepted})
        assert answer.headers.get("content-encoding") == coding
        assert answer.content == plain.content, "the test client expands it"
        assert (int(answer.headers["content-length"]) < len(plain.content)) == (coding is not None)
    small = send(
        world, *body_of(tensor("src", SRC), tensor("dst", DST)), **{"accept-encoding": accepted}
    )
    assert "content-encoding" not in small.headers


def test_a_body_of_no_content_type_is_taken_by_infer_alone_and_other_types_by_none(world):
    """A page elsewhere can send a body of no type, or a form's: what changes data refuses it."""
    changing = [
        (path, "{}")
        for path, told in world.client.get("/openapi.json").json()["paths"].items()
        if "post" in told and not path.endswith("/infer")
    ]
    assert len(changing) >= 9
    for path, body in [*changing, (PATH, None)]:
        for kind in (
            "text/plain",
            "application/x-www-form-urlencoded",
            *(() if path == PATH else (None,)),
        ):
            headers = {} if kind is None else {"content-type": kind}
            content = (
                body
                or body_of(
                    ({"name": "src", "shape": [1], "datatype": "BYTES", "data": ["a"]}, b"")
                )[0]
            )
            answer = world.client.post(
                path.replace("{version}", "1-1"), content=content, headers=headers
            )
            assert answer.status_code == 422, (path, kind, answer.text)


def test_tritons_configuration_says_inputs_outputs_and_limits(world):
    for path in ("/v2/models/streamd/config", "/v2/models/streamd/versions/rule/config"):
        told = world.client.get(path).json()
        assert (told["name"], told["max_batch_size"]) == (
            "streamd",
            world.settings.server.max_batch,
        )
        assert {i["name"]: (i["data_type"], i["dims"], i["optional"]) for i in told["input"]} == {
            "src": ("TYPE_STRING", [], False),
            "dst": ("TYPE_STRING", [-1], False),
            "time": ("TYPE_INT64", [], True),
        }
        assert {o["name"]: (o["data_type"], o["dims"]) for o in told["output"]} == {
            "score": ("TYPE_FP32", [-1]),
            "known": ("TYPE_BOOL", [-1]),
        }
        assert told["parameters"] == {"max_candidates": {"string_value": "64"}}
    for path in ("/v2/models/other/config", "/v2/models/streamd/versions/1-1/config"):
        assert world.client.get(path).status_code == 404


def test_tritons_statistics_count_what_was_answered_and_refused_since_the_version_was_loaded(world):
    def counts(path="/v2/models/stats"):
        (told,) = world.client.get(path).json()["model_stats"]
        assert told["version"] == "rule" and told["batch_stats"] == []
        durations = told["inference_stats"]
        assert all(
            durations[k] == {"count": 0, "ns": 0} for k in durations if k not in ("success", "fail")
        )
        return (
            told["inference_count"],
            told["execution_count"],
            durations["success"],
            durations["fail"],
        )

    before = counts()
    assert send(world, *body_of(tensor("src", SRC), tensor("dst", DST))).status_code == 200
    refused(send(world, *body_of(tensor("src", SRC))))
    after = counts()
    assert (after[0] - before[0], after[1] - before[1]) == (2, 1)
    assert [after[i]["count"] - before[i]["count"] for i in (2, 3)] == [1, 1]
    assert after[2]["ns"] > before[2]["ns"] and after[3]["ns"] > before[3]["ns"]
    assert (
        counts("/v2/models/streamd/stats")
        == counts("/v2/models/streamd/versions/rule/stats")
        == after
    )
    assert world.client.get("/v2/models/streamd/versions/1-1/stats").status_code == 404
    assert world.state.inferences.of("1-1").answered == 0, "another version begins at nought"


def test_tritons_index_lists_the_versions_and_which_of_them_serves(world, monkeypatch):
    monkeypatch.setattr(world.registry, "names", lambda: ["1-1", "2-2"])

    def index(**body):
        answer = world.client.post("/v2/repository/index", **body)
        assert answer.status_code == 200, answer.text
        return [(e["version"], e["state"], e["reason"][:5]) for e in answer.json()]

    rule = ("rule", "READY", "")
    assert (
        index()
        == index(json={})
        == [("1-1", "UNAVAILABLE", "rule "), ("2-2", "UNAVAILABLE", "rule "), rule]
    )
    assert index(json={"ready": True}) == [rule]
    reason = world.client.post("/v2/repository/index").json()[0]["reason"]
    assert reason == "rule serves; this one is kept without its memory and cannot serve"
    monkeypatch.setattr(world.engine.status, "version", "2-2")
    assert index()[1] == ("2-2", "READY", "") and len(index()) == 2
    monkeypatch.setattr(world.state, "draining", True)
    assert index()[1] == ("2-2", "UNAVAILABLE", "stopp") and index(json={"ready": True}) == []


def test_operations_have_short_names_that_do_not_change_and_paths_whole_parameters(world):
    """A generated client's functions are named after them."""
    operations = {
        (method, path): told
        for path, methods in world.client.get("/openapi.json").json()["paths"].items()
        for method, told in methods.items()
    }
    names = [told["operationId"] for told in operations.values()]
    assert sorted(names) == [
        "embedding",
        "embeddings",
        "erase",
        "erasure",
        "events",
        "explain",
        "infer",
        "infer_version",
        "labels",
        "labels_of_many",
        "livez",
        "model_config",
        "model_metadata",
        "model_ready",
        "model_statistics",
        "models",
        "nodes",
        "prometheus",
        "promote",
        "readyz",
        "recommend",
        "recommend_batch",
        "repository_index",
        "request_outcome",
        "rollback",
        "schema",
        "score",
        "score_batch",
        "server_live",
        "server_metadata",
        "server_ready",
        "similar",
        "statistics",
        "status_json",
        "trials",
        "version_config",
        "version_metadata",
        "version_ready",
        "version_statistics",
    ]
    inside = [
        (path, p)
        for (_, path), told in operations.items()
        for p in told.get("parameters", [])
        if p["in"] == "path"
    ]
    assert len(inside) >= 14
    for path, parameter in inside:
        assert parameter["required"] and parameter["schema"]["type"] == "string", path
