"""The log as a plain list, built from its published commits and the records of the broker; what both say must agree."""

import json

import numpy as np

from streamd.eventlog.layout import DELETIONS, FEATURES, KEYS, feature_row
from streamd.eventlog.node_keys import decode_keys
from streamd.events import DELETION
from tests.simulator.learned import Learned
from tests.simulator.records import (
    DELETE_EDGE,
    DELETE_NODE,
    EDGE,
    LABEL,
    NODE,
    REFUSED,
    START,
    Item,
    passed,
)
from tests.simulator.scheduler import Failure


class Model:
    """Owner: the checks. places: (topic, partition) -> the position of the newest line. edges: as they were sent, by event id. hidden: event
    ids that deletes hide. may_lose: whether lost records may be passed over. lost: places of events that were.
    letters: places of events that are dead letters. learned: moves, windows and versions."""

    def __init__(self, broker, is_letter):
        """is_letter: whether there is a dead letter of an event of a place."""
        self._broker, self._is_letter = broker, is_letter
        self.places, self.edges, self.hidden, self.keys, self.newest_us = {}, [], set(), [], 0
        self.learned = Learned()
        self.letters, self.may_lose, self.lost = [], False, set()
        self._deleted = set()
        """Keys of all nodes that were ever deleted."""
        self._erased, self._is_compacted = set(), False
        """Event ids of which nothing may be left at the end; whether a compaction was ever asked for."""
        self.max_record_events = 0
        """A record of more is refused; the world sets it."""
        self._gone_before = set()
        """Places of events that may have been trimmed before the first look at their partition."""
        self._ids_of_topics = {}
        """Topic -> its id in the newest line."""
        self._ids = {}
        """Place of each edge that the log has -> its event id."""
        self._first = 0
        """The oldest edge that retention left."""
        self._labels, self._hidden_labels, self._erased_labels = {}, set(), set()
        """Id of a label -> id of its node; ids of those whose node was deleted; of those of which nothing may be left."""
        self._visible = {}
        """Key, and edge set, key, target and time -> the event ids of its edges that are not hidden."""
        self._known = set()
        """Keys that a node has."""

    @property
    def num_edges(self):
        return len(self.edges)

    def take(self, directory, fields):
        """Take a line in that is shown for the first time; `directory` has its rows. Raises: Failure."""
        self._seq = fields["seq"]
        due = {sent.where: sent for sent in self._due(fields)}
        if fields.get("dropped"):
            self._first = directory.refreshed().first_edge
        self._take_keys(directory, fields)
        self.learned.take(directory, fields)
        edges = self._edges(directory, fields)
        deletes = self._rows(directory, fields, DELETIONS, DELETION)
        self._take_nodes(directory, fields, due)
        self._take_labels(directory, fields, due)
        self._take_in_order(edges, deletes, due)

        # Whatever else the positions passed was refused, and is kept.
        for sent in due.values():
            if sent.where in self._gone_before:
                self.lost.add(sent.where)
                continue
            if not self._is_letter(sent.where):
                raise Failure(f"commit {self._seq} passes {sent}, which is neither in the log nor a dead letter")
            self._check_letter(sent)
            self.letters.append(sent.where)

    def _due(self, fields):
        """The events between the positions of this line and those before it."""
        progress = fields["progress"]
        gaps = self._gaps(fields)
        for topic, parts in progress["positions"].items():
            for number, (offset, index, ahead, *_) in parts.items():
                where = progress["topics"][topic], int(number)
                after = offset, index, tuple(tuple(run) for run in ahead)
                first, end = gaps.get(where, (0, 0))
                partition, before = self._broker.by_id[where[0]].partitions[where[1]], self.places.get(where, START)
                for sent in passed(partition, before, after):
                    if first <= sent.place[0] < end:
                        self.lost.add(sent.where)
                    else:
                        if before == START and sent.place[0] < partition.start:
                            self._gone_before.add(sent.where)
                        yield sent
                self.places[where] = after

    def _gaps(self, fields):
        """What a line says that it passes over: (id of a topic, partition) -> first offset and end. Raises: Failure where it is not lost."""
        ids, out = fields["progress"]["topics"], {}
        remade = {topic for topic, now in ids.items() if self._ids_of_topics.setdefault(topic, now) != now}
        wanted = {(topic, n) for topic in remade for (old, n) in self.places if old == self._ids_of_topics[topic]}
        for topic, number, first, end in fields.get("gaps", ()):
            if not self.may_lose:
                raise Failure(f"commit {self._seq} passes over a loss of {topic}-{number}, which nobody allowed")
            if end < 0:
                wanted.discard((topic, number))
                continue
            partition = self._broker.by_id[ids[topic]].partitions[number]
            if end > partition.start or first != self.places.get((ids[topic], number), START)[0]:
                raise Failure(f"commit {self._seq} passes over {first} to {end} of {topic}-{number}, which begins at {partition.start}")
            out[ids[topic], number] = first, end
        if wanted:
            raise Failure(f"commit {self._seq} goes on with another topic, and says nothing of the loss of {sorted(wanted)}")
        self._ids_of_topics |= ids
        return out

    def _rows(self, directory, fields, path, dtype):
        """The rows that this line appended to a file."""
        for change in fields["files"]:
            if change["path"] == path and "revision" not in change:
                first, end = change["bytes"]
                with (directory.path / path).open("rb") as file:
                    file.seek(first)
                    return np.frombuffer(file.read(end - first), dtype)
        return np.zeros(0, dtype)

    def _take_keys(self, directory, fields):
        raw = self._rows(directory, fields, KEYS, np.uint8).tobytes()
        self.keys += list(decode_keys(raw))
        if len(self.keys) != fields["nodes"]:
            raise Failure(f"commit {self._seq} counts {fields['nodes']} nodes, and there are {len(self.keys)} keys")

    def _edges(self, directory, fields):
        """(id, source, target, time, set) of the edges of this line."""
        first = self.num_edges
        end = max([first, *(start + rows for start, rows, *_ in fields["segments"])])
        reader = directory.refreshed()
        if first == end:
            return []
        ids = reader.features_of(np.arange(first, end)).max(axis=1)
        columns = (*reader.edges(first, end), reader.edge_sets(first, end))
        return list(zip(ids.astype(int).tolist(), *(column.tolist() for column in columns), strict=True))

    def _take_nodes(self, directory, fields, due):
        """Features of nodes: each that is due, once."""
        dim = directory.refreshed().state.schema.node_feature_dim
        waiting = {sent.item.id: sent for sent in due.values() if sent.item.kind == NODE}
        for row in self._rows(directory, fields, FEATURES, feature_row(dim)):
            sent = waiting.pop(int(row["values"].max()), None)
            if sent is None or self.keys[row["node"]] != sent.item.key:
                raise Failure(f"commit {self._seq} has features {row}, which its positions do not cover")
            del due[sent.where]
            self._known.add(sent.item.key)

    def _take_labels(self, directory, fields, due):
        """Each label that is due, once. A delete of its node hides it, wherever it lies."""
        spans = {change["path"]: change["labels"] for change in fields["files"] if "labels" in change and "revision" not in change}
        if not any(first < end for first, end in spans.values()):
            return
        waiting = {sent.item.id: sent for sent in due.values() if sent.item.kind == LABEL}
        for state, files in directory.refreshed().segments():
            first, end = spans.get(state.path, (0, 0))
            if first == end:
                continue
            for node, time_us, target in zip(*(column[first:].tolist() for column in files.label_columns(end)), strict=True):
                sent = waiting.pop(int(target[0]), None)
                if sent is None or self.keys[node] != sent.item.key or time_us < sent.item.time_us:
                    raise Failure(f"commit {self._seq} has label {target} of {self.keys[node]} at {time_us}, and its positions cover {sent}")
                del due[sent.where]
                self._labels[sent.item.id] = node

    def _take_in_order(self, edges, deletes, due):
        """Edges and deletes, as they lie between each other."""
        by_id = {sent.item.id: sent for sent in due.values() if sent.item.kind == EDGE}
        waiting = [sent for sent in due.values() if sent.item.kind in (DELETE_NODE, DELETE_EDGE)]
        at, rows = 0, []
        for row in deletes:
            while self.num_edges < row["edge"]:
                self._take_edge(edges[at], by_id, due)
                at += 1
            rows.append(self._take_delete(row, waiting))
        for edge in edges[at:]:
            self._take_edge(edge, by_id, due)
        self._match(rows, due)

    def _take_edge(self, edge, by_id, due):
        number, source, target, time_us, edge_set = edge
        sent = by_id.pop(number, None)
        if sent is None:
            raise Failure(f"commit {self._seq} has edge {number}, which its positions do not cover, or twice")
        item = sent.item
        if (self.keys[source], self.keys[target], edge_set) != (item.key, item.target, item.edge_set) or time_us < item.time_us or time_us < self.newest_us:
            raise Failure(f"commit {self._seq} has {item} as {self.keys[source]}, {self.keys[target]}, {time_us}")
        del due[sent.where]
        self.newest_us = time_us
        event = self.num_edges
        self.edges.append(sent)
        self._ids[sent.where] = event
        for name in _names_of(item):
            self._visible.setdefault(name, set()).add(event)
        self._known |= {item.key, item.target}

    def _take_delete(self, row, waiting):
        """A delete hides what it names of the edges before it. Returns: what it names, and those of `waiting` that it may be, each with why not,
        "" where nothing is against it."""
        is_node = row["dst"] < 0
        kind, key = DELETE_NODE if is_node else DELETE_EDGE, self.keys[row["src"]]
        names = (kind, key) if is_node else (kind, key, self.keys[row["dst"]], int(row["time"]), int(row["edge_set"]))
        found = self._named(Item(kind, 0, 0, key, *names[2:]))
        candidates = {sent: self._wrong_order(sent, found) for sent in waiting if _names(sent.item) == names}
        for event in found:
            self._hide(event)
        if is_node:
            self._known.discard(key)
            self._deleted.add(key)
            self._hidden_labels |= {number for number, node in self._labels.items() if node == row["src"]}
        return names, candidates

    def _match(self, rows, due):
        """Find a delete for each row: several may have the same names, of which each order fits some rows only. One that is a dead letter
        too, of an attempt before a kill, is taken only where no other is left. Raises: Failure."""
        taken = {}

        def place(number, seen, with_letters):
            _, candidates = rows[number]
            for sent in sorted(candidates, key=lambda sent: sent.item.number):
                if not candidates[sent] and sent not in seen and (with_letters or not self._is_letter(sent.where)):
                    seen.add(sent)
                    if sent not in taken or place(taken[sent], seen, with_letters):
                        taken[sent] = number
                        return True
            return False

        left = [number for number in range(len(rows)) if not place(number, set(), False)]
        for number in left:
            names, candidates = rows[number]
            if not place(number, set(), True):
                why = next(filter(None, candidates.values()), "its positions cover no such delete, or one less")
                raise Failure(f"commit {self._seq} deletes {names}: {why}")
        for sent in taken:
            del due[sent.where]

    def _named(self, item):
        """Visible edges that a delete names."""
        name = item.key if item.kind == DELETE_NODE else (item.edge_set, item.key, item.target, item.time_us)
        return sorted(event for event in self._visible.get(name, ()) if event >= self._first)

    def _hide(self, event):
        self.hidden.add(event)
        for name in _names_of(self.edges[event].item):
            self._visible[name].discard(event)

    def _wrong_order(self, sent, found):
        """Why a delete cannot lie here, "" where it can: in its partition a delete of a node lies before all that came after, and behind each
        edge that it names and that came before."""
        if sent.item.kind == DELETE_NODE:
            for event in found:
                other = self.edges[event]
                if other.partition == sent.partition and other.place > sent.place:
                    return f"{sent} hides {other}, which follows it"
        partition = self._broker.by_id[sent.partition[0]].partitions[sent.partition[1]]
        for entry in partition.history[max(0, sent.place[0] - 200): sent.place[0] + 1]:
            for index, item in enumerate(entry.told or ()):
                where = (*sent.partition, entry.offset, index)
                is_before = (entry.offset, index) < sent.place and item.kind == EDGE and _is_named(sent.item, item)
                is_passed = where in self._ids or where in self.lost or where in self._gone_before
                if is_before and not is_passed and _was_read(entry) and not self._is_letter(where):
                    return f"{sent} comes before {item}, which it names and follows"
        return ""

    def _check_letter(self, sent):
        """Check that an event could be refused. Raises: Failure."""
        entry = self._broker.by_id[sent.partition[0]].partitions[sent.partition[1]].history[sent.place[0]]
        if sent.item.kind == REFUSED or len(entry.told) > self.max_record_events:
            return
        if sent.item.kind in (DELETE_NODE, DELETE_EDGE):
            mine = [e for e in self._named(sent.item) if self.edges[e].partition == sent.partition and self.edges[e].place < sent.place]
            if mine:
                raise Failure(f"{sent} is refused, and names {self.edges[mine[0]]}")
        elif sent.item.kind not in (EDGE, LABEL):
            raise Failure(f"{sent} is refused")

    def deleted(self):
        """Ids of the edges and of the labels that deletes hide now."""
        return set(self.hidden), set(self._hidden_labels)

    def ask_compaction(self):
        """A compaction may remove dead letters from now on."""
        self._is_compacted = True

    def compact(self, edges, labels):
        """The log is to lose these edges and labels."""
        self._erased |= edges
        self._erased_labels |= labels

    def may_be_purged(self, where):
        """Whether a compaction may have removed a dead letter: one with a key of a node that was deleted before it or while it ran, and each that is
        not JSON, which may have one."""
        entry = self._broker.by_id[where[0]].partitions[where[1]].history[where[2]]
        has_key = any(key in self._deleted for item in entry.told for key in (item.key, item.target))
        return self._is_compacted and (has_key or entry.value[:1] not in b"{[")

    def compare(self, directory):
        """Compare what a reader of a directory hides and has removed. Raises: Failure."""
        reader = directory.refreshed()
        first, end = reader.first_edge, reader.num_edges
        hides = (first + np.flatnonzero(reader.hidden(first, end))).tolist() if end > first else []
        wanted = sorted(event for event in self.hidden if first <= event < end)
        if hides != wanted:
            raise Failure(f"{directory.name} hides {json.dumps(sorted(set(hides) ^ set(wanted)))} wrongly")
        erased = np.array(sorted(event for event in self._erased if first <= event < end), np.int64)
        # Columns that say of which set an edge is stay.
        num_sets = reader.state.schema.num_edge_sets
        of_event = slice(num_sets if num_sets > 1 else 0, None)
        if len(erased) and (left := erased[reader.features_of(erased)[:, of_event].max(axis=1) > 0]).size:
            raise Failure(f"{directory.name} has been compacted, and still has the edges {left.tolist()}")
        self._compare_labels(directory.name, set(reader.labels()[2].ravel().astype(int).tolist()), is_whole=first == 0)

    def _compare_labels(self, name, found, is_whole):
        """found: ids of the labels that a log has. is_whole: whether retention left all."""
        if left := found & self._erased_labels:
            raise Failure(f"{name} has been compacted, and still has the labels {sorted(left)}")
        if is_whole and (gone := self._labels.keys() - self._hidden_labels - found):
            raise Failure(f"{name} has lost the labels {sorted(gone)}")


def _names_of(edge):
    """By which deletes name an edge."""
    return {edge.key, edge.target, (edge.edge_set, edge.key, edge.target, edge.time_us)}


def _was_read(entry):
    return entry.transaction is None or entry.transaction.state == "committed"


def _names(item):
    return (item.kind, item.key) if item.kind == DELETE_NODE else (item.kind, item.key, item.target, item.time_us, item.edge_set)


def _is_named(delete, edge):
    if delete.kind == DELETE_NODE:
        return delete.key in (edge.key, edge.target)
    return _names(delete)[1:] == _names(edge)[1:]
