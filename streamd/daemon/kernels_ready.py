"""The kernels of a role are compiled before its first event."""

import structlog

logger = structlog.get_logger()


def make_kernels_ready(device: str = "cpu") -> None:
    """Compile or load the kernels before the first event needs them. device: of the graph."""
    from streamd.graph.jit import compile_notice
    from streamd.graph.warm_up import warm_up

    # What is warmed up is what is imported.
    if device == "cuda":
        import streamd.gpu.changes  # noqa: F401
    if notice := compile_notice():
        logger.info("compiling_kernels", meaning=notice)
    logger.info("kernels_ready", seconds=round(warm_up(), 1))
