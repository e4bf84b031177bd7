"""What a metric shows now, as a scrape would read it."""

import math


def reading(metric, suffix=""):
    """The value of a metric or of one of its labelled children; NaN where a gauge was never set.

    suffix: `_sum` or `_count` of a histogram.
    """
    (family,) = metric.collect()
    wanted = (suffix,) if suffix else ("", "_total")
    found = [s.value for s in family.samples if s.name.removeprefix(family.name) in wanted]
    return found[0] if found else math.nan
