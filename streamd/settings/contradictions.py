"""Checks that settings agree with one another, which no check of a single setting can find."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import BaseModel

from streamd.schema import Schema
from streamd.settings.sets import Contradiction, SetSettings, first_names, nearest_of
from streamd.settings.sources import (
    ENVELOPE,
    REGISTRY_FORMATS,
    DeleteRule,
    EdgeFields,
    Fields,
    LabelFields,
    SourceSettings,
    fields_of,
    steps_of,
)
from streamd.settings.tree import Settings, schema_of
from streamd.settings.trials import (
    ARMS,
    CHAMPION,
    MAX_VERSIONS,
    RULES,
    VERSION_NAME,
    TrialSettings,
)

KeySteps = tuple[str | int, ...]
"""The steps of a key, such as ("sources", 0, "fields")."""


def check_widths(s: Settings, origin: Mapping[str, str]) -> Iterator[Contradiction]:
    """Check that feature widths in the settings equal those of the declared features. origin:
    dotted key -> source of its value."""
    schema = schema_of(s)
    for kind in ("edge", "node"):
        name = f"{kind}_feature_dim"
        given, follows = getattr(s.stream, name), getattr(schema, name)
        if origin[f"stream.{name}"] != "default" and given != follows:
            yield Contradiction(
                ("stream", name),
                f"it is {given}, but the features in graph.{kind}_sets are {follows} wide; "
                "leave it out",
            )


def check_topics(s: Settings) -> Iterator[Contradiction]:
    """Check that ingest reads the topics of all sources."""
    for i, source in enumerate(s.sources):
        if source.topic not in s.kafka.topics:
            near = nearest_of(source.topic, s.kafka.topics)
            yield Contradiction(
                ("sources", i, "topic"), f"{source.topic} is not in kafka.topics{near}"
            )


def check_branches(s: Settings) -> Iterator[Contradiction]:
    """Check settings of different branches, and settings that come in pairs, against one
    another."""
    # The server: TLS files and port.
    if (s.server.tls_cert_file is None) != (s.server.tls_key_file is None):
        yield Contradiction(
            ("server", "tls_key_file" if s.server.tls_cert_file is None else "tls_cert_file"),
            "server.tls_cert_file and server.tls_key_file belong together",
            "set both, or neither.",
        )
    if s.server.alarm_topic and not s.server.score_topic:
        yield Contradiction(
            ("server", "alarm_topic"),
            "alarms come from the role that scores events",
            "set server.score_topic too.",
        )
    if s.server.workers > 1 and not s.server.port:
        yield Contradiction(
            ("server", "workers"),
            "the workers share one port, and server.port is 0",
            "set server.port to a number.",
        )

    # A standby reads the leader's log from the changelog and the store.
    if s.log.member == "standby" and not (s.log.name and s.log.store):
        yield Contradiction(
            ("log", "member"),
            "it is standby, which needs log.name and log.store",
            "set both, or set log.member: leader on a single machine.",
        )

    # Model and graph: sizes that must fit one another.
    if s.model.dim % s.model.heads:
        yield Contradiction(
            ("model", "dim"), f"{s.model.dim} is not a multiple of model.heads, {s.model.heads}"
        )
    if s.graph.max_block_entries & (s.graph.max_block_entries - 1):
        yield Contradiction(
            ("graph", "max_block_entries"),
            f"it is {s.graph.max_block_entries}, which is not a power of two",
        )
    if any(h <= 0 for h in s.model.half_lives_seconds):
        yield Contradiction(("model", "half_lives_seconds"), "all of them must be above 0")

    # Kafka: options with a key of their own, and the shard of partitions.
    for name in ("group_id", "bootstrap_servers"):
        if name in s.kafka.client:
            yield Contradiction(("kafka", "client", name), f"set kafka.{name} instead")
    if s.ingest.shard is not None:
        index, count = (int(x) for x in s.ingest.shard.split("/"))
        if index > count:
            yield Contradiction(
                ("ingest", "shard"),
                f"{s.ingest.shard} does not exist: shards are 1/{count} to {count}/{count}",
            )
    yield from _check_schema_registry(s)
    yield from _check_trial(s.trials)
    yield from _check_trial_topic(s)


def _check_schema_registry(s: Settings) -> Iterator[Contradiction]:
    """Check the registry's address and credentials, and that the address is set if a source needs
    it."""
    r = s.schema_registry
    for i, source in enumerate(s.sources):
        if source.format in REGISTRY_FORMATS and r.url is None:
            yield Contradiction(
                ("sources", i, "format"),
                f"{source.topic} is {source.format}, but schema_registry.url is not set",
                "set it to the registry's address.",
            )
    # Credentials: one origin of the secret, and each part with its counterpart.
    if r.secret is not None and r.secret_file is not None:
        yield Contradiction(
            ("schema_registry", "secret"), "schema_registry.secret_file is set too", "keep one."
        )
    if r.user is not None and r.secret is None and r.secret_file is None:
        yield Contradiction(("schema_registry", "user"), "it needs schema_registry.secret")
    if r.key_file is not None and r.cert_file is None:
        yield Contradiction(("schema_registry", "key_file"), "it needs schema_registry.cert_file")
    # Certificates are used over TLS only.
    is_https = r.url is not None and r.url.startswith("https")
    for name in ("ca_file", "cert_file"):
        if getattr(r, name) is not None and not is_https:
            yield Contradiction(
                ("schema_registry", name), "it has no effect unless schema_registry.url is https"
            )


def _check_trial(trial: TrialSettings) -> Iterator[Contradiction]:
    """Check the arms of a trial and their shares."""
    at = ("trials", "arms")
    if not trial.name:
        for name in ("arms", "topic"):
            if getattr(trial, name):
                yield Contradiction(("trials", name), "it has no effect without trials.name")
        return
    # Each arm, then all of them together.
    for arm, share in trial.arms.items():
        if arm not in ARMS and not VERSION_NAME.fullmatch(arm):
            yield Contradiction(
                (*at, arm),
                f"there is no such arm{nearest_of(arm, ARMS)}",
                f"choose among {', '.join(ARMS)} and the names of `streamd models list`.",
            )
        if not 0 < share < 1:
            yield Contradiction((*at, arm), f"a share is above 0 and below 1, not {share:g}")
    num_versions = sum(arm not in (CHAMPION, *RULES) for arm in trial.arms)
    if num_versions > MAX_VERSIONS:
        yield Contradiction(
            at, f"{num_versions} arms have a version of their own, at most {MAX_VERSIONS}"
        )
    if CHAMPION not in trial.arms or len(trial.arms) < 2:
        yield Contradiction(at, "a trial compares the champion with at least one other arm")
    elif abs(sum(trial.arms.values()) - 1) > 1e-9:
        yield Contradiction(at, f"the shares add up to {sum(trial.arms.values()):g}, not 1")


def check_trial_edges(
    trial: TrialSettings, edge_sets: Mapping[str, SetSettings]
) -> Iterator[Contradiction]:
    """Check that the outcomes of a trial belong to a declared set."""
    name = trial.edge_set
    if trial.name and name is not None and name not in edge_sets:
        yield Contradiction(
            ("trials", "edge_set"),
            f"{name} is not in graph.edge_sets{nearest_of(name, list(edge_sets))}",
        )


def _check_trial_topic(s: Settings) -> Iterator[Contradiction]:
    """Check that a trial has a topic, which nothing else uses."""
    if not s.trials.name:
        return
    # Its records would be dead letters of ingest, or read as scores.
    topic = s.trials.topic
    used = {"ingest.dead_letter_topic": s.ingest.dead_letter_topic}
    used["server.score_topic"] = s.server.score_topic
    if not topic:
        yield Contradiction(("trials", "topic"), "a trial needs a topic for its impressions")
    elif topic in s.kafka.topics:
        yield Contradiction(("trials", "topic"), f"{topic} is in kafka.topics, as a topic to read")
    for key, other in used.items():
        if topic and topic == other:
            yield Contradiction(("trials", "topic"), f"{topic} is {key} too")


def check_rules(sources: tuple[SourceSettings, ...]) -> Iterator[Contradiction]:
    """Check the rules and the paths of each source by itself."""
    for i, source in enumerate(sources):
        yield from _check_rules(source, ("sources", i))
        yield from _check_paths(source, ("sources", i))


def check_sources(
    sources: tuple[SourceSettings, ...],
    node_sets: Mapping[str, SetSettings],
    edge_sets: Mapping[str, SetSettings],
    schema: Schema,
) -> Iterator[Contradiction]:
    """Check sources against the declared sets and their features.

    schema: of the log under these declarations.
    """
    for i, source in enumerate(sources):
        here = ("sources", i)
        yield from _check_topic(source, [s for s in sources[:i] if s.topic == source.topic], here)
        if source.labels is not None and not schema.label_dim:
            yield Contradiction(
                (*here, "labels"), "there are no labels while stream.label_dim is 0"
            )

        # Each rule belongs to a declared set; edges and node features have that set's features.
        of_edges = source.deletes is not None and source.deletes.fields.node is None
        if source.edge_set is not None and source.fields is None and not of_edges:
            yield Contradiction(
                (*here, "edge_set"), "the source has no edges and no deletes of them"
            )
        if source.fields is not None:
            of_edges_at = (*here, "fields")
            yield from _check_fields(source.fields, of_edges_at)
            yield from _check_set(source.edge_set, edge_sets, (*here, "edge_set"))
            if (name := _chosen(source.edge_set, edge_sets)) is not None:
                columns = schema.edge_columns(list(edge_sets).index(name))
                declared = _Declared(f"graph.edge_sets.{name}.features", edge_sets[name], columns)
                yield from _check_features(source.fields.features, declared, of_edges_at)
        if source.nodes is not None:
            of_nodes_at = (*here, "nodes", "fields")
            yield from _check_fields(source.nodes.fields, of_nodes_at)
            yield from _check_set(source.nodes.node_set, node_sets, (*here, "nodes", "node_set"))
            if (name := _chosen(source.nodes.node_set, node_sets)) is not None:
                columns = schema.node_columns(list(node_sets).index(name))
                declared = _Declared(f"graph.node_sets.{name}.features", node_sets[name], columns)
                yield from _check_features(source.nodes.fields.features, declared, of_nodes_at)
        if source.labels is not None:
            yield from _check_set(source.labels.node_set, node_sets, (*here, "labels", "node_set"))
            yield from _check_fields(source.labels.fields, (*here, "labels", "fields"))
        if source.deletes is not None:
            at = (*here, "deletes")
            yield from _check_deletes(source, source.deletes, node_sets, edge_sets, at)


def _check_rules(source: SourceSettings, at: KeySteps) -> Iterator[Contradiction]:
    """Check that a source makes events, that each rule can get records, and that each event has one
    time."""
    rules = {"deletes": source.deletes, "labels": source.labels, "nodes": source.nodes}
    made = [name for name, rule in rules.items() if rule is not None]
    if source.fields is None and not made:
        yield Contradiction(at, "a source needs fields: {src: ..., dst: ...}")
    if source.fields is None and source.where:
        yield Contradiction(at, "where is a condition of fields, which are missing")

    # A rule without `where` takes all remaining records.
    made += ["fields"] if source.fields is not None else []
    for name in made[:-1]:
        rule = rules[name]
        if rule is not None and not rule.where:
            yield Contradiction(at, f"{name} has no where, so nothing is left for {made[-1]}")

    # The record's timestamp needs no path; every other time needs one.
    times: list[tuple[str, EdgeFields | LabelFields]] = []
    if source.fields is not None:
        times.append(("fields", source.fields))
    if source.labels is not None:
        times.append(("labels.fields", source.labels.fields))
    for name, fields in times:
        if source.time == "record" and fields.time is not None:
            yield Contradiction(at, f"time is record, so {name} needs no path of a time")
        if source.time != "record" and fields.time is None:
            yield Contradiction(at, f"{name} needs a time, or time: record")
    of_edge = source.deletes is not None and source.deletes.fields.time is not None
    if source.time == "record" and of_edge:
        yield Contradiction(at, "time is record, so a delete cannot identify its edge")


def _check_paths(source: SourceSettings, at: KeySteps) -> Iterator[Contradiction]:
    """Check paths against the envelope and the list of a source."""
    for path in dict.fromkeys(source.paths()):
        if source.envelope is None and steps_of(path)[0] == ENVELOPE:
            yield Contradiction(at, f"{path} needs an envelope")
    if source.each is None:
        return
    # Paths relative to the element are an easy mistake: none of them would exist.
    each = source.each
    steps = steps_of(each)
    of_fields = (steps_of(path) for path in list(source.paths())[1:])
    if not any(path[: len(steps)] == steps for path in of_fields):
        yield Contradiction(
            at, f"no field leads into an element of {each}: a path such as {each}.id does"
        )


def _check_topic(
    source: SourceSettings, before: Sequence[SourceSettings], at: KeySteps
) -> Iterator[Contradiction]:
    """Check a source against those before it with the same topic."""
    for one in before:
        # All sources of a topic must have the same value of these.
        for name in ("format", "envelope", "unavailable_value"):
            if getattr(one, name) != getattr(source, name):
                what = f"it is {getattr(one, name) or 'none'} in a source before this one"
                yield Contradiction((*at, name), f"a topic has one {name}, and {what}")
        # A format with typed times has one form of time for all sources of the topic.
        timed = {one.time, source.time} - {"record"}
        if len(timed) > 1 and source.format not in ("json", "ndjson"):
            what = f"it is {one.time or 'stream.time_unit'} in a source before this one"
            yield Contradiction(
                (*at, "time"), f"a topic of {source.format} has one form, and {what}"
            )
        # A source must be able to get records.
        if one.takes_all and not source.also:
            yield Contradiction(
                at,
                "nothing is left for it, since a source before it has no where and takes all "
                "records; give that one a where, or this one also: true",
            )


def _check_deletes(
    source: SourceSettings,
    rule: DeleteRule,
    node_sets: Mapping[str, SetSettings],
    edge_sets: Mapping[str, SetSettings],
    at: KeySteps,
) -> Iterator[Contradiction]:
    """Check that deletes belong to a declared set."""
    yield from _check_fields(rule.fields, (*at, "fields"))
    if rule.fields.node is None:
        if rule.node_set is not None:
            yield Contradiction((*at, "node_set"), "they delete edges, which have an edge_set")
        # If only the source names the set, it was checked there.
        if rule.edge_set is not None or source.fields is None:
            yield from _check_set(rule.edge_set or source.edge_set, edge_sets, (*at, "edge_set"))
    else:
        if rule.edge_set is not None:
            yield Contradiction((*at, "edge_set"), "they delete nodes, which have a node_set")
        yield from _check_set(rule.node_set, node_sets, (*at, "node_set"))


def _check_set(
    name: str | None, sets: Mapping[str, SetSettings], at: KeySteps
) -> Iterator[Contradiction]:
    """Check that a rule names a declared set, and that it names one if there are several."""
    if name is None and len(sets) > 1:
        yield Contradiction(at, f"it is not set, and there are several: {first_names(list(sets))}")
    if name is not None and name not in sets:
        yield Contradiction(at, f"{name} is not in graph.{at[-1]}s{nearest_of(name, list(sets))}")


def _chosen(name: str | None, sets: Mapping[str, SetSettings]) -> str | None:
    """The set of a rule: the named one, or the only one; None if there is no such set."""
    name = next(iter(sets)) if name is None and len(sets) == 1 else name
    return name if name in sets else None


class _Declared(NamedTuple):
    """A declared set. key: of the declaration of its features. columns: of its features in a
    row."""

    key: str
    settings: SetSettings
    columns: slice


def _check_fields(fields: BaseModel, at: KeySteps) -> Iterator[Contradiction]:
    """Refuse options of keys on other fields, and constants that do not fit."""
    for steps, field in fields_of(fields):
        is_key = steps[0] in ("src", "dst", "node", "id")
        if field.prefix and not is_key:
            yield Contradiction((*at, *steps), "only keys have a prefix")
        if field.type and not is_key:
            yield Contradiction((*at, *steps), "only keys have a type")
        for word, value in (("default", field.default), ("constant", field.constant)):
            is_wrong = type(value) not in (str, int) or value == ""
            if is_key and value is not None and is_wrong:
                yield Contradiction(
                    (*at, *steps, word), "a key is text or an integer, and not empty"
                )
        if field.constant is not None and steps[0] in ("time", "target"):
            yield Contradiction((*at, *steps), f"{steps[0]} cannot be a constant")


def _check_features(given: Fields, declared: _Declared, at: KeySteps) -> Iterator[Contradiction]:
    """Check a source's features against the declared ones."""
    key, features = declared.key, declared.settings.features
    for name, field in given.items():
        if name not in features:
            near = nearest_of(name, features)
            yield Contradiction((*at, "features", name), f"{name} is not declared in {key}{near}")
            continue
        feature = features[name]
        for word, value in (("default", field.default), ("constant", field.constant)):
            if value is not None and not feature.takes(value):
                yield Contradiction(
                    (*at, "features", name), f"{word} is no value of {feature.words}"
                )
    # A misspelt name also makes the right one missing: report only the misspelt one.
    unknown = [name for name in given if name not in features]
    for name, feature in features.items():
        is_misspelt = bool(difflib.get_close_matches(name, unknown, 1, 0.5))
        if name not in given and feature.missing is None and not is_misspelt:
            yield Contradiction(
                at, f"{name} of {key} has no path here, and no `missing` value in its declaration"
            )
    width = declared.columns.stop - declared.columns.start
    if width and not features:
        kind = key.split(".")[1].removesuffix("_sets")
        yield Contradiction(at, f"{kind} features are {width} wide; declare them in {key}")
