"""Tables of 40 users who click items of one of two kinds, a GraphSchema and a sampling spec."""

import random
from pathlib import Path

Path("raw").mkdir()
draw = random.Random(0)
Path("raw/graph.pbtxt").write_text("""
node_sets { key: "user" value { features { key: "age" value { dtype: DT_FLOAT } } metadata { filename: "users.csv" } } }
node_sets { key: "item" value { } }
edge_sets { key: "clicks" value { source: "user" target: "item" features { key: "seconds" value { dtype: DT_FLOAT } }
                                  metadata { filename: "clicks.csv" } } }
""")
users = [f"u{i},{draw.randint(18, 80)}" for i in range(40)]
Path("raw/users.csv").write_text("\n".join(["id,age", *users]))
clicks = []
for minute in range(1500):
    user = draw.randrange(40)
    item = 2 * draw.randrange(10) + user % 2  # each user clicks even items only, or odd ones
    clicks.append(f"u{user},i{item},{draw.randint(1, 60)},{60 * minute}")
Path("raw/clicks.csv").write_text("\n".join(["source,target,seconds,time", *clicks]))
Path("spec.pbtxt").write_text("""
symmetric_link_seed_op { op_name: "ends" }
sampling_ops { op_name: "clicked" input_op_names: "ends" edge_set_name: "clicks" sample_size: 8 strategy: LATEST_K }
sampling_ops { op_name: "by" input_op_names: ["ends", "clicked"] edge_set_name: "rev_clicks" sample_size: 4 strategy: LATEST_K }
sampling_ops { op_name: "also" input_op_names: "by" edge_set_name: "clicks" sample_size: 4 strategy: LATEST_K }
""")
