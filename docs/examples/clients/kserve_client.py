"""Scores by KServe's client: `pip install kserve`."""

import asyncio

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig


async def main():
    src, dst = InferInput("src", [1], "BYTES"), InferInput("dst", [1, 2], "BYTES")
    src.set_data_from_numpy(np.array(["user:34"], object), binary_data=True)
    dst.set_data_from_numpy(np.array([["page:8261", "page:8411"]], object), binary_data=True)
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        answer = await client.infer("http://localhost:8000", InferRequest("streamd", [src, dst]),
                                    model_name="streamd", headers={"X-API-Key": "KEY"})
    print(answer.outputs[0].as_numpy())

asyncio.run(main())
