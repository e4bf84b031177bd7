import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamd.gpu.changes import Touched

EVENTS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40)


@given(inserts=st.lists(EVENTS, max_size=5), more=st.integers(0, 50))
def test_the_nodes_an_insert_touches_are_found_once_each_whatever_came_before(inserts, more):
    touched = Touched()
    for events in inserts:
        src, dst = np.array(events, np.int64).reshape(-1, 2).T
        num_nodes = int(max(src.max(initial=-1), dst.max(initial=-1))) + 1 + more
        found = touched.nodes(src.copy(), dst.copy(), num_nodes)
        assert len(set(found.tolist())) == len(found) and set(found.tolist()) == {*src.tolist(), *dst.tolist()}
