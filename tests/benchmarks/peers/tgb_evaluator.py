"""TGB's own Evaluator on scores that `tests.benchmarks.tgb --save` kept: `make tgb`.

It runs in an environment of its own, in which nothing of streamd is: `python tests/benchmarks/peers/tgb_evaluator.py FOLDER/validation.npz`.
"""

import sys

import numpy as np
from tgb.linkproppred.evaluate import Evaluator

kept = np.load(sys.argv[1])
src, dst, when, pages, scores = (kept[name] for name in ("src", "dst", "when", "pages", "scores"))
first, end = kept["range"]
true: dict[tuple[int, int], set[int]] = {}
for e in range(first, end):
    true.setdefault((src[e], when[e]), set()).add(dst[e])

evaluator, found = Evaluator(name="tgbl-wiki"), []
for e in range(first, end):
    is_negative = ~np.isin(pages, list(true[src[e], when[e]]))
    asked = {"y_pred_pos": scores[e - first, pages == dst[e]], "y_pred_neg": scores[e - first, is_negative], "eval_metric": ["mrr"]}
    found.append(evaluator.eval(asked)["mrr"])
print(f"{sys.argv[1]}: MRR {np.mean(found):.4f} over {len(found)} events by TGB's Evaluator")
