"""Every benchmark by its name."""

from tests.benchmarks import (
    alarms,
    cache,
    checkpoints,
    explain,
    failover,
    files,
    gpu,
    graph,
    growth,
    inference,
    ingest,
    ingest_sets,
    labels,
    nightly,
    overload,
    ranks,
    ranks_model,
    recommend,
    replica,
    restart_sets,
    sampling,
    sampling_hub,
    sampling_sets,
    scores,
    server_memory,
    serving,
    small_windows,
    store,
    table,
    tfgnn,
    tgb,
    traces,
    training,
    trial_cost,
    trials,
)

ALL = {"files": files.run, "graph": graph.run, "graph-taus": graph.layouts_of_presets, "ingest": ingest.run, "ingest-sets": ingest_sets.run, "training": training.run,
       "serving": serving.run, "serving-fresh": serving.freshness_of_one_partition, "explain": explain.run, "recommend": recommend.run, "traces": traces.run,
       "server-memory": server_memory.run, "inference": inference.run, "cache": cache.run, **growth.PARTS, "tgb": tgb.run, "labels": labels.run,
       "tfgnn": tfgnn.run, "sampling": sampling.run, "sampling-hub": sampling_hub.run, "sampling-sets": sampling_sets.run,
       "restart-sets": restart_sets.run, **ranks.PARTS, "replica": replica.run, "failover": failover.run, "checkpoints": checkpoints.run,
       "store": store.run, "table": table.run, "scores": scores.run, "nightly": nightly.run, "small-windows": small_windows.run, "alarms": alarms.run, "trials": trials.run, "trial-cost": trial_cost.run, "overload": overload.run, **ranks_model.PARTS, **gpu.PARTS}


def named(words: list[str]) -> list[str]:
    """The benchmarks that words name, "gpu" all its parts; all where there are no words. Raises ValueError for a word that names none."""
    unknown = set(words) - {part for name in ALL for part in (name, name.split("-")[0])}
    if unknown:
        raise ValueError(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    return [name for name in ALL if not words or {name, name.split("-")[0]} & set(words)]
