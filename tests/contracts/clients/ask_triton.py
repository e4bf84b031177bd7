"""Triton's client asks a running server. Arguments: address, version served, API key."""

import asyncio
import sys

import numpy as np
import tritonclient.http.aio
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

address, version, key = sys.argv[1:]
KEY = {"X-API-Key": key}


def inputs(src, dst, datatype="BYTES", binary=True):
    given = []
    for name, values in (("src", src), ("dst", dst)):
        values = np.array(values, object if datatype == "BYTES" else datatype.lower())
        given.append(InferInput(name, list(values.shape), datatype))
        given[-1].set_data_from_numpy(values, binary_data=binary)
    return given


def infer(given, **more):
    return client.infer("streamd", given, headers=dict(KEY), **more)


client = InferenceServerClient(address)
assert client.is_server_live() and client.is_server_ready()
assert client.is_model_ready("streamd", headers=KEY) and client.is_model_ready(
    "streamd", version, headers=KEY
)
assert not client.is_model_ready("streamd", "1-1", headers=KEY)
told = client.get_server_metadata()
assert (told["name"], told["extensions"]) == (
    "streamd",
    ["binary_tensor_data", "model_configuration", "statistics"],
)
assert client.get_model_metadata("streamd", version, headers=KEY) == client.get_model_metadata(
    "streamd", headers=KEY
)
assert client.get_model_config("streamd", version, headers=KEY)["max_batch_size"] == 32

# As bytes, its own way, then in lists, then compressed: the same answer each time.
src, dst = ["n:3", "n:4"], [["n:20", "n:21"], ["n:22", "strange"]]
first = infer(inputs(src, dst), request_id="42")
assert (first.get_response()["model_version"], first.get_response()["id"]) == (version, "42")
score, known = first.as_numpy("score"), first.as_numpy("known")
assert (
    score.shape == (2, 2)
    and score.dtype == np.float32
    and known.tolist() == [[True, True], [True, False]]
)
json_outputs = [InferRequestedOutput("score", binary_data=False)]
for more in (
    {},
    {"model_version": version},
    {"outputs": [InferRequestedOutput("score")]},
    {"outputs": json_outputs},
    {"request_compression_algorithm": "gzip"},
    {"request_compression_algorithm": "deflate"},
    {"parameters": {"any": 1}},
    {"priority": 1, "timeout": 1000},
):
    for binary in (True, False):
        np.testing.assert_array_equal(
            infer(inputs(src, dst, binary=binary), **more).as_numpy("score"), score
        )

# An answer of a size that is compressed.
many = inputs(["n:3"] * 32, [[f"n:{i}" for i in range(50)]] * 32)
for coding in ("gzip", "deflate"):
    answer = infer(
        many, response_compression_algorithm=coding, request_compression_algorithm=coding
    )
    np.testing.assert_array_equal(answer.as_numpy("score"), infer(many).as_numpy("score"))

for datatype in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"):
    assert not infer(inputs([3], [[20, 21]], datatype)).as_numpy("known").any()


def refused(call, status, said):
    try:
        call()
    except InferenceServerException as error:
        assert error.status() == status and said in error.message(), error
    else:
        raise AssertionError(f"not refused with {said}")


refused(lambda: infer(inputs(src, [["n:20"]])), "400", "N must agree")
refused(lambda: infer(inputs(src, dst), model_version="1-1"), "404", "is not served")
refused(
    lambda: infer(inputs(src, dst), outputs=[InferRequestedOutput("score", class_count=2)]),
    "400",
    "classification",
)
refused(lambda: client.get_model_config("streamd"), "401", "API key")

for name, of in (("streamd", version), ("streamd", ""), ("", "")):
    (stats,) = client.get_inference_statistics(name, of, headers=KEY)["model_stats"]
    assert stats["version"] == version and stats["inference_stats"]["success"]["count"] >= 20
    assert stats["inference_stats"]["fail"]["count"] >= 1
ready = [
    entry for entry in client.get_model_repository_index(headers=KEY) if entry["state"] == "READY"
]
assert [(entry["name"], entry["version"]) for entry in ready] == [("streamd", version)]
client.close()


async def ask_asynchronously():
    async with tritonclient.http.aio.InferenceServerClient(address) as other:
        answer = await other.infer("streamd", inputs(src, dst), headers=dict(KEY))
        np.testing.assert_array_equal(answer.as_numpy("score"), score)


asyncio.run(ask_asynchronously())
