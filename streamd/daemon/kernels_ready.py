"""Compiles or loads the kernels of a role before its first event."""

from collections.abc import Callable

import structlog

logger = structlog.get_logger()


def make_kernels_ready(
    device: str = "cpu", should_stop: Callable[[], bool] = lambda: False
) -> None:
    """Compile the kernels, or load them from the cache.

    device: "cpu" or "cuda", where the graph is. should_stop: called a few times a second
    meanwhile; True ends the work.
    """
    from streamd.graph.jit import cache_problem, compile_notice
    from streamd.graph.warm_up import warm_up

    # The warm-up covers the kernels of all imported modules.
    if device == "cuda":
        import streamd.gpu.changes  # noqa: F401
    if problem := cache_problem():
        logger.warning("kernels_not_kept", why=problem)
    if notice := compile_notice():
        logger.info("compiling_kernels", meaning=notice)
    logger.info("kernels_ready", seconds=round(warm_up(should_stop), 1))
