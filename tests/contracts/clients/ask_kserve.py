"""KServe's client asks a running server. Arguments: address, version served, API key."""

import asyncio
import sys

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

address, version, key = sys.argv[1:]
URL, KEY = f"http://{address}", {"X-API-Key": key}


def request(binary, **more):
    given = []
    for name, values in (("src", ["n:3", "n:4"]), ("dst", [["n:20", "n:21"], ["n:22", "strange"]])):
        array = np.array(values, object)
        given.append(InferInput(name, list(array.shape), "BYTES"))
        given[-1].set_data_from_numpy(array, binary_data=binary)
    return InferRequest("streamd", given, **more)


def values(answer, name):
    return next(output for output in answer.outputs if output.name == name).as_numpy()


async def ask():
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        assert await client.is_server_live(URL) and await client.is_server_ready(URL)
        assert await client.is_model_ready(URL, "streamd", headers=KEY)
        assert not await client.is_model_ready(URL, "other", headers=KEY)

        lists = await client.infer(
            URL, request(binary=False), model_name="streamd", headers=dict(KEY)
        )
        assert values(lists, "known").tolist() == [[True, True], [True, False]]
        for more in (
            {},
            {"parameters": {"binary_data_output": True}},
            {"request_outputs": [RequestedOutput("score", {"binary_data": True})]},
        ):
            for binary in (True, False):
                answer = await client.infer(
                    URL, request(binary, **more), model_name="streamd", headers=dict(KEY)
                )
                np.testing.assert_allclose(
                    values(answer, "score"), values(lists, "score"), atol=1e-6
                )

        wrong = request(binary=True)
        wrong.inputs[0].shape = [3]
        try:
            await client.infer(URL, wrong, model_name="streamd", headers=dict(KEY))
        except httpx.HTTPStatusError as error:
            assert error.response.status_code == 400 and "its shape has 3" in str(error)
        else:
            raise AssertionError("a shape that does not fit was not refused")


asyncio.run(ask())
