"""The Open Inference Protocol under /v2."""
