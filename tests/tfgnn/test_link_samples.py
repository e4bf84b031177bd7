"""Training samples of events beside the plain reference: nothing in them is of the event's time or later."""

import itertools
import random
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest

from streamd.errors import SettingsError, TFGNNError
from streamd.events import split_key
from streamd.tfgnn.logs.link_samples import plan_link_run, sample_links
from streamd.tfgnn.schema.schema import read_schema
from tests.builders import settings
from tests.tfgnn import plain_sampler
from tests.tfgnn.live_world import BEGIN, NOTHING, SETS, LiveWorld, plain_graph, spelled
from tests.tfgnn.plain_sampler import hashed, mix, uniforms
from tests.tfgnn.test_live_sampling import Codec, append, files, later
from tests.tfgnn.test_tables import streamd, write

OPS = [
    ("seen", ("seed",), "views", 3, "RANDOM_WEIGHTED"),
    ("seen by", ("seed", "seen"), "rev_views", 2, "RANDOM_UNIFORM"),
    ("friends", ("seed", "seen by"), "follows", 2, "LATEST_K"),
    ("also", ("friends",), "views", 2, "TOP_K"),
]
ENDS = {"views": ("user", "item"), "follows": ("user", "user")}


class LinkWorld(LiveWorld):
    def __init__(self, path, seed=0, **options):
        super().__init__(path, seed, ops=OPS, **options)

    def write_spec(self, ops=None, head='symmetric_link_seed_op { op_name: "seed" }'):
        text = head
        for name, inputs, edges, size, strategy in OPS if ops is None else ops:
            quoted = ", ".join(f'"{i}"' for i in inputs)
            text += f'sampling_ops {{ op_name: "{name}" input_op_names: [{quoted}] edge_set_name: "{edges}" sample_size: {size} strategy: {strategy} }}'
        self.spec = self.path / "spec.pbtxt"
        self.spec.write_text(text)

    def run(self, output, progress=lambda *_: None, start_us=None, end_us=None, **options):
        source = self.source(start_us=start_us, end_us=end_us)
        run = plan_link_run(source.declared, self.spec, output, **{"with_reverse": True, "edge_set": "views", **options})
        return sample_links(run, source, progress)

    def graphs(self, output):
        return list(Codec(read_schema(output.parent / "schema.pbtxt")).read(output))

    def links(self, edge_set):
        """The events of a set that were not deleted: (event id, source, target, time), in order."""
        edges = [e for e in self.events if "edge_set" in e and "type" not in e]
        left = Counter(plain_edge[:3] for plain_edge in self.plain()[1][edge_set])
        found = [(i, str(e["src"]).encode(), str(e["dst"]).encode(), e["time"]) for i, e in enumerate(edges) if e["edge_set"] == edge_set]
        # A delete names all edges of its ends and time that came before it; what comes again later stays.
        kept = []
        for link in reversed(found):
            if left[link[1:]] > 0:
                left[link[1:]] -= 1
                kept.append(link)
        return kept[::-1]

    def pools(self, edge_set):
        """A function of a time: the nodes of the target set known before it, in the order in which the log saw them."""
        log, target = self.source().log, ENDS[edge_set][1]
        rank = {key: n for n, key in enumerate(log.keys) if key is not None}
        sets = {key: ("user", "item")[int(log.node_sets_of(np.array([n]))[0])] for key, n in rank.items()}
        numbered = {(sets[key], str(split_key(key)[1]).encode()): n for key, n in rank.items()}

        def known(until):
            nodes, edges = self.plain(until)
            seen = [numbered[s, i] for name, rows in edges.items() if name in ENDS for e in rows if e[2] < until
                    for s, i in zip(ENDS[name], e[:2], strict=True)]
            seen += [numbered[s, i] for s, table in nodes.items() for i, f in table.items() if self.had_update(s, i, until)]
            most = max(seen, default=-1)
            return [i for (s, i), n in sorted(numbered.items(), key=lambda x: x[1]) if s == target and n <= most]

        return known

    def had_update(self, node_set, id, until):
        newest = None
        for e in self.events:
            if e.get("type") == "node" and (e["node_set"], str(e["id"]).encode()) == (node_set, id) and (newest is None or newest < until):
                return True
            newest = e["time"] if "edge_set" in e and "type" not in e else newest
        return False


def wrong_targets(pool, name, target, count, seed):
    """The negatives of an event."""
    others = [id for id in pool if id != target]
    key = mix(mix(hashed(f"{seed} _readout".encode()) ^ hashed(name)) ^ hashed(target))
    return [others[int(u * len(others))] for u in itertools.islice(uniforms(key), count)] if others else []


@pytest.mark.parametrize("aggregation", ["edge", "node"])
@pytest.mark.parametrize(("edge_set", "seed"), [("views", 0), ("follows", 1), ("views", 2)])
def test_samples_are_those_of_the_plain_reference(tmp_path, edge_set, seed, aggregation):
    world = LinkWorld(tmp_path / "in", seed)
    # Both ends of `follows` are users: nothing goes from them along rev_views.
    ops = [(n, inputs if edge_set == "views" or e != "rev_views" else inputs[1:], e, k, s) for n, inputs, e, k, s in OPS]
    world.write_spec(ops)
    total, _ = world.run(tmp_path / "out" / "s.tfrecord@3", edge_set=edge_set, negatives=3, seed=seed, aggregation=aggregation)
    graphs, links, pool = world.graphs(tmp_path / "out" / "s.tfrecord@3"), world.links(edge_set), world.pools(edge_set)
    assert len(graphs) == len(links) == total > 60
    source_set, target_set = ENDS[edge_set]
    equal_times = 0
    # The shards are one after the other in the order of the log.
    for graph, (event, source, target, at) in zip(graphs, links, strict=True):
        name = b"%s:%d" % (edge_set.encode(), event)
        assert graph.context["sample_id"].tolist() == [name] and graph.context["seed_time"].tolist() == [at]
        wrong = wrong_targets(pool(at), name, target, 3, seed)
        nodes, edges = world.plain(at)
        starts = {(source_set, source), (target_set, target), *((target_set, w) for w in wrong)}
        want = plain_sampler.sample(nodes, edges, SETS, None, ops, None, until=at, seed=seed, aggregation=aggregation, starts=starts, name=name)
        assert spelled(graph) == ({n: [(i, nodes[n][i]) for i in found] for n, found in want[0].items()}, want[1])
        readout = graph.node_sets["_readout"]
        assert readout.features["label"].tolist() == [1] + [0] * len(wrong)
        ids = {name: graph.node_sets[name].features["#id"].tolist() for name in ("user", "item")}
        to_source, to_target = (graph.edge_sets[f"_readout/{end}"] for end in ("source", "target"))
        assert [ids[source_set][n] for n in to_source.source_E] == [source] * len(readout.features["label"])
        assert [ids[target_set][n] for n in to_target.source_E] == [target, *wrong]
        assert to_source.target_E.tolist() == to_target.target_E.tolist() == list(range(1 + len(wrong)))
        equal_times += any(e[2] == at and e[:2] != (source, target) for e in edges[edge_set])
    # Many events share their moment with others, none of which may be in the sample.
    assert equal_times > 10


@pytest.mark.parametrize("seed", range(3))
def test_what_comes_at_an_events_time_or_later_is_in_no_sample(tmp_path, seed):
    """A sample of all that happened is the same as one of a log that ends before the event, but for the event itself."""
    world = LinkWorld(tmp_path / "in", seed)
    world.run(tmp_path / "out" / "s.tfrecord", negatives=2, seed=seed)
    first_seen, newest = {}, None
    for e in world.events:
        ids = [(e["node_set"], e["id"])] if e.get("type") == "node" else []
        if "edge_set" in e and "type" not in e:
            newest, ids = e["time"], list(zip(ENDS[e["edge_set"]], (e["src"], e["dst"]), strict=True))
        for s, i in ids:
            # A node of a node event was there once the edges before it were.
            first_seen.setdefault((s, str(i).encode()), (newest, e.get("type")))
    checked = 0
    for graph in world.graphs(tmp_path / "out" / "s.tfrecord"):
        at = int(graph.context["seed_time"][0])
        nodes, edges = spelled(graph)
        assert all(features[0] < at for rows in edges.values() for _, _, features in rows)
        own = {"user": graph.edge_sets["_readout/source"].source_E[0], "item": graph.edge_sets["_readout/target"].source_E[0]}
        for name, found in nodes.items():
            # Features that a plain reading of the events before it gives, and no others.
            before = plain_graph([e for e in world.events if e.get("type") != "delete"], at)[0][name]
            for place, (id, features) in enumerate(found):
                assert features == before.get(id, NOTHING[name])
                when, kind = first_seen[name, id]
                is_end = place == own[name]
                assert is_end or when is None or when < at or (kind == "node" and when <= at)
                checked += not is_end
    assert checked > 100


def test_negatives_are_drawn_uniformly_of_what_was_seen(tmp_path):
    """Of ten items that were there from the start each event draws one of the nine others as often."""
    world = LinkWorld(tmp_path / "in", 0, num=40)
    append(world, [{"edge_set": "views", "src": "u1", "dst": f"x{i}", "time": world.time, "features": {"weight": 1, "agent": "a"}} for i in range(10)])
    draw = random.Random(0)
    targets = [f"x{draw.randrange(10)}" for _ in range(3000)]
    append(world, [{"edge_set": "views", "src": "u1", "dst": t, "time": world.time + 5, "features": {"weight": 1, "agent": "a"}} for t in targets])
    world.write_spec([])
    world.run(tmp_path / "out" / "s.tfrecord", negatives=4, start_us=world.time + 5)
    drawn = Counter()
    for graph, target in zip(world.graphs(tmp_path / "out" / "s.tfrecord"), targets, strict=True):
        ids = graph.node_sets["item"].features["#id"]
        pair = [ids[n].decode() for n in graph.edge_sets["_readout/target"].source_E]
        assert pair[0] == target and target not in pair[1:] and len(pair) == 5
        drawn.update(pair[1:])
    items = {e["dst"] for e in world.events if e.get("edge_set") == "views"} | {e["id"] for e in world.events if e.get("node_set") == "item" and "id" in e}
    num = len(items) + 10
    assert len(drawn) == num
    # Each item is drawn with the chance 1 / (num - 1) wherever it is not the own target: within 5 standard deviations.
    for item, count in drawn.items():
        chance = 1 / (num - 1)
        draws = 4 * (3000 - targets.count(item))
        assert abs(count - draws * chance) < 5 * (draws * chance) ** 0.5


def test_processes_and_shards_change_nothing(tmp_path):
    world = LinkWorld(tmp_path / "in", 3, num=1500)
    for name, options in (("a", {}), ("b", {"processes": 2}), ("c", {"processes": 5})):
        world.run(tmp_path / name / "s.tfrecord@2", negatives=2, **options)
    assert files(tmp_path / "a") == files(tmp_path / "b") == files(tmp_path / "c")
    world.run(tmp_path / "d" / "s.tfrecord", negatives=2)
    whole = (tmp_path / "d" / "s.tfrecord").read_bytes()
    assert whole == b"".join((tmp_path / "a" / f"s.tfrecord-0000{i}-of-00002").read_bytes() for i in range(2))
    # Of part of the time, events have the samples that they have of all.
    start, end = world.times()[80], world.times()[200]
    world.run(tmp_path / "e" / "s.tfrecord", negatives=2, start_us=start, end_us=end)
    part = (tmp_path / "e" / "s.tfrecord").read_bytes()
    assert len(part) > 1000 and part in whole


def test_a_killed_run_goes_on_to_the_same_files_while_the_log_grows(tmp_path):
    world = LinkWorld(tmp_path / "in", 2, num=4000)
    whole, out = tmp_path / "whole" / "s.tfrecord@60", tmp_path / "out" / "s.tfrecord@60"
    world.run(whole, negatives=2)
    command = [sys.executable, "-m", "streamd", "tfgnn", "export", out, "--samples", world.spec, "--edge-set", "views", "--negatives", "2",
               "--reversed", "--config", tmp_path / "in" / "shop.yaml", "--data-dir", world.settings.data_dir]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(out.parent.glob("s.*")):
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.wait()
    there = {path: path.stat().st_mtime_ns for path in out.parent.glob("s.*")}
    assert 0 < len(there) < 60
    append(world, later(world))
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert "of them written before" in done.stdout and "sampling: 100 %" in done.stderr
    assert all(path.stat().st_mtime_ns == at for path, at in there.items())
    assert files(whole.parent) == files(out.parent)
    with pytest.raises(TFGNNError, match="or a finished one"):
        world.run(out, negatives=2)


def test_what_cannot_be_asked_is_refused_by_name(tmp_path):
    world = LinkWorld(tmp_path / "in", 1, num=60)
    out = tmp_path / "out" / "s.tfrecord"
    for words, options in (("has the edge sets views, follows.*name the one", {"edge_set": None}), ("no edge set 'buys'; there are views", {"edge_set": "buys"})):
        with pytest.raises(TFGNNError, match=words):
            world.run(out, **options)
    world.write_spec([("x", ("seed",), "rev_views", 2, "TOP_K")])
    with pytest.raises(TFGNNError, match="'x' follows 'rev_views' from the seeds. The source of that edge set is 'item'; the endpoints of 'follows' are 'user' and 'user'"):
        world.run(out, edge_set="follows")
    world.write_spec([], 'seed_op { op_name: "seed" node_set_name: "user" }')
    with pytest.raises(TFGNNError, match="'seed' of the sampling spec are nodes of 'user'.*write a symmetric_link_seed_op"):
        world.run(out)
    given = ["tfgnn", "export", out, "--data-dir", world.settings.data_dir]
    with pytest.raises(SettingsError, match="--format is for tables, not for --samples"):
        streamd(*given, "--samples", world.spec, "--format", "csv")
    with pytest.raises(SettingsError, match="--negatives needs --samples"):
        streamd(*given, "--negatives", 0)
    assert not out.parent.exists()


def test_a_log_of_one_set_and_events_before_which_nothing_was(tmp_path):
    made = settings(tmp_path / "log")
    write(made, [{"src": s, "dst": t, "time": at} for s, t, at in (("a", "b", 5), ("c", "d", 5), ("a", "d", 7), ("b", "a", 8))])
    (tmp_path / "spec.pbtxt").write_text(
        'symmetric_link_seed_op { op_name: "ends" }'
        'sampling_ops { op_name: "hop" input_op_names: "ends" edge_set_name: "default" sample_size: 5 strategy: LATEST_K }')
    text = streamd("tfgnn", "export", tmp_path / "out" / "s.tfrecord", "--samples", tmp_path / "spec.pbtxt", "--negatives", 2, "--data-dir", made.data_dir)
    assert "4 samples in" in text
    found = []
    for graph in Codec(read_schema(tmp_path / "out" / "schema.pbtxt")).read(tmp_path / "out" / "s.tfrecord"):
        ids, edges = graph.node_sets["default"].features["#id"].tolist(), graph.edge_sets["default"]
        pairs = [[ids[n] for n in graph.edge_sets[f"_readout/{end}"].source_E] for end in ("source", "target")]
        found.append((ids[:2], list(zip(*pairs, strict=True)), sorted((ids[s], ids[t]) for s, t in zip(edges.source_E, edges.target_E, strict=True))))
    # Nothing was seen before the first two, which came at once.
    assert found[:2] == [([b"a", b"b"], [(b"a", b"b")], []), ([b"c", b"d"], [(b"c", b"d")], [])]
    (_, third, edges), (_, fourth, _) = found[2:]
    assert third[0] == (b"a", b"d") and len(third) == 3 and all(s == b"a" and t in (b"a", b"b", b"c") for s, t in third[1:])
    assert (b"a", b"b") in edges and set(edges) <= {(b"a", b"b"), (b"c", b"d")}
    assert fourth[0] == (b"b", b"a") and all(t in (b"b", b"c", b"d") for _, t in fourth[1:])


def test_a_range_without_events_has_no_samples(tmp_path):
    world = LinkWorld(tmp_path / "in", 1, num=60)
    assert world.run(tmp_path / "b" / "s.tfrecord@2", start_us=world.time + 1) == (0, 0)
    assert world.run(tmp_path / "c" / "s.tfrecord@2", end_us=BEGIN - 1) == (0, 0)
    assert len(files(tmp_path / "b")) == 3
