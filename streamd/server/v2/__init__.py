"""The Open Inference Protocol under /v2, with Triton's extensions."""
