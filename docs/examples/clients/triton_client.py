"""Scores by Triton's client: `pip install 'tritonclient[http]'`."""

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput

client = InferenceServerClient("localhost:8000")
src, dst = InferInput("src", [1], "BYTES"), InferInput("dst", [1, 2], "BYTES")
src.set_data_from_numpy(np.array(["user:34"], object))
dst.set_data_from_numpy(np.array([["page:8261", "page:8411"]], object))
print(client.infer("streamd", [src, dst], headers={"X-API-Key": "KEY"}).as_numpy("score"))
