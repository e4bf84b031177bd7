"""A plain reference of the sampler: dicts, lists and Python's integers, nothing of the samplers' code.

nodes: {set: {id: features}}, None for a set without a table; edges: {set: [(source, target, time, weight, features)]}; sets: {edge set:
(source set, target set)}; ops: [(name, inputs, edge set, size, strategy)]. Features are tuples.
"""

from collections import Counter

M = 2**64 - 1


def mix(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & M
    x = (x ^ x >> 27) * 0x94D049BB133111EB & M
    return x ^ x >> 31


def hashed(data):
    found = 0xCBF29CE484222325
    for byte in data:
        found = (found ^ byte) * 0x100000001B3 & M
    return mix(found)


def uniforms(key):
    """The numbers of a draw in turn."""
    place = 0
    while True:
        place += 1
        yield (mix(key + place * 0x9E3779B97F4A7C15 & M) >> 11) / 2**53


def draw(strategy, size, edges, key):
    """Which of a node's edges, in their order, are taken: their places. edges: as above."""
    number = uniforms(key)
    count = len(edges)
    if strategy == "RANDOM_WEIGHTED":
        weights = [e[3] for e in edges]
        heavy = [i for i in range(count) if weights[i] > 0]
        return heavy if count <= size else weighted(size, weights, number)
    if count <= size:
        return list(range(count))
    if strategy == "TOP_K":
        return sorted(range(count), key=lambda i: (edges[i][3] or 0, i))[-size:]
    if strategy == "LATEST_K":
        return list(range(count))[-size:]
    taken = []
    for last in range(count - size, count):
        i = int(next(number) * (last + 1))
        taken.append(last if i in taken else i)
    return taken


def weighted(size, weights, number):
    taken = []
    while len(taken) < size:
        found = None
        for _ in range(8):
            x, total = next(number) * running(weights)[-1], 0.0
            hit = next((i for i, total in enumerate(running(weights)) if total > x), None)
            if hit is not None and hit not in taken:
                found = hit
                break
        if found is None:
            rest = [i for i in range(len(weights)) if i not in taken]
            x, total = next(number) * running([weights[i] for i in rest])[-1], 0.0
            for i in rest:
                if weights[i] > 0:
                    found, total = i, total + weights[i]
                    if x < total:
                        break
        if found is None:
            break
        taken.append(found)
    return taken


def running(weights):
    sums, total = [], 0.0
    for weight in weights:
        total += weight
        sums.append(total)
    return sums


def sample(nodes, edges, sets, seed_set, ops, seed_id, *, nth=0, until=None, seed=0, aggregation="edge", starts=None, name=None):
    """One sample: ({node set: ids in order}, {edge set: [(source, target, features)] in order}).

    starts: where it begins, as (set, id), and name: of the sample; those of the seed otherwise.
    """
    name_of_sample = b"%d:%s" % (nth, seed_id) if name is None else name
    starts = {(seed_set, seed_id)} if starts is None else set(starts)

    def order(e):
        return e[2] or 0, e[1], e[3] or 0, e[4]

    def of(name, node):
        return sorted((e for e in edges[name] if e[0] == node and (until is None or e[2] < until)), key=order)

    ends = {"seed": starts}
    visited = Counter(starts)
    walked = {}
    for op, inputs, name, size, strategy in ops:
        ends[op] = set()
        for _, node in {pair for i in inputs for pair in ends[i] if pair[0] == sets[name][0]}:
            key = mix(mix(hashed(f"{seed} {op}".encode()) ^ hashed(name_of_sample)) ^ hashed(node))
            found = of(name, node)
            for place in draw(strategy, size, found, key):
                walked.setdefault(name, {})[node, place] = found[place]
                ends[op].add((sets[name][1], found[place][1]))
                visited[sets[name][1], found[place][1]] += 1

    kept = {name: {id for s, id in visited if s == name and (table is None or id in table)} for name, table in nodes.items()}
    for name, ids in kept.items():
        kept[name] = sorted(ids, key=lambda id, name=name: ((name, id) != (seed_set, seed_id), id))
    found = {}
    for name, (source, target) in sets.items():
        some = list(walked.get(name, {}).values())
        if aggregation == "node":
            some = [e for node in kept[source] for e in of(name, node)]
        some = [e for e in some if e[0] in kept[source] and e[1] in kept[target]]
        some.sort(key=lambda e: (kept[source].index(e[0]), kept[target].index(e[1]), order(e)))
        found[name] = [(e[0], e[1], e[4]) for e in some]
    return kept, found
