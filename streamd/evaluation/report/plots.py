"""Plots of a report as SVG, with round ticks, and each curve's name next to its end.

A plot is drawn twice, for wide and for narrow screens; the page shows the one that fits, so that
text keeps its size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape

from streamd.evaluation.report.content import Curve, Plot

TICK_STEPS = (1, 2, 2.5, 5, 10)
"""The step between two ticks is one of these times a power of ten."""
HOUR_SECONDS = 3600
DAY_SECONDS = 86_400
TIME_STEPS = (
    *(60 * n for n in (1, 5, 15, 30)),
    *(HOUR_SECONDS * n for n in (1, 2, 3, 6, 12)),
    *(DAY_SECONDS * n for n in (1, 2, 7, 14)),
)
"""Steps between two ticks of time below a month, in seconds."""
MONTH_STEPS = (1, 2, 3, 6, 12, 24, 60, 120)
"""Steps from a month on, in months."""
MONTH_SECONDS = 30.4 * DAY_SECONDS
"""Mean length of a month, to choose the step; the ticks are at the first days of months."""
LINE_HEIGHT = 13
"""Distance between two lines of text, in units of the drawing; the text is 12 units high."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The size of a drawing, in units of about a pixel. right: room for the names. ticks: the most
    along time."""

    name: str
    width: int
    height: int
    left: int
    right: int
    ticks: int
    short_names: bool


WIDE = Size(name="wide", width=920, height=330, left=48, right=196, ticks=7, short_names=False)
NARROW = Size(name="narrow", width=360, height=330, left=38, right=84, ticks=3, short_names=True)
TOP = 14
BOTTOM = 26
"""TOP and BOTTOM: room above the plot, and below it for the ticks of time."""


def draw(plot: Plot, size: Size) -> str:
    """Returns: the plot as an SVG element of the class `wide` or `narrow`."""
    # Scales that map values to units of the drawing.
    values = [v for curve in plot.curves for v in curve.values if math.isfinite(v)] or [0.0]
    ticks = value_ticks(min(values), max(values))
    low, high = ticks[0], ticks[-1]
    first, last = plot.times[0], plot.times[-1]
    bottom = size.height - BOTTOM
    end = size.width - size.right

    def across(time: float) -> float:
        # All points may have the same time: then the width is 0.
        return size.left + (end - size.left) * (time - first) / ((last - first) or 1)

    def down(value: float) -> float:
        return bottom - (bottom - TOP) * (value - low) / (high - low)

    # Draw both scales.
    out = [
        f'<svg class="{size.name}" viewBox="0 0 {size.width} {size.height}" role="img" '
        f'aria-label="{escape(plot.title)}">'
    ]
    for value in ticks:
        out.append(
            f'<line class="grid" x1="{size.left}" x2="{end}" y1="{down(value):.1f}" '
            f'y2="{down(value):.1f}"/><text class="scale" x="{size.left - 6}" '
            f'y="{down(value) + 4:.1f}" text-anchor="end">{tick_text(value, ticks)}</text>'
        )
    for time, text in time_ticks(first, last, size.ticks):
        out.append(
            f'<line class="grid" x1="{across(time):.1f}" x2="{across(time):.1f}" y1="{bottom}" '
            f'y2="{bottom + 5}"/><text class="scale" x="{across(time):.1f}" y="{bottom + 18}" '
            f'text-anchor="middle">{text}</text>'
        )

    # Draw live last, on top of the others.
    order = sorted(range(len(plot.curves)), key=lambda i: -i)
    for number in order:
        points = " ".join(
            f"{across(t):.1f},{down(v):.1f}"
            for t, v in zip(plot.times, plot.curves[number].values, strict=True)
            if math.isfinite(v)
        )
        out.append(f'<polyline class="c{number}" points="{points}"/>')
    out += _names(plot.curves, size, end, down(low), [down(_last(c)) for c in plot.curves])
    return "".join([*out, "</svg>"])


def _last(curve: Curve) -> float:
    """The last finite value of a curve, 0 if there is none."""
    return next((v for v in reversed(curve.values) if math.isfinite(v)), 0.0)


def _names(
    curves: Sequence[Curve], size: Size, end: int, bottom: float, ends: Sequence[float]
) -> list[str]:
    """The names next to the ends of the curves, without overlap, each with a line to its curve.

    ends: vertical position of each curve's end, downwards.
    """
    lines = [c.short.split("\n") if size.short_names else [c.name] for c in curves]
    order = sorted(range(len(curves)), key=lambda i: ends[i])
    middles = apart([ends[i] for i in order], [LINE_HEIGHT * len(lines[i]) for i in order], bottom)
    out = []
    for number, middle in zip(order, middles, strict=True):
        x = end + 18
        out.append(
            f'<polyline class="lead c{number}" points="{end},{ends[number]:.1f} '
            f'{end + 14},{middle:.1f}"/>'
        )
        y = middle - LINE_HEIGHT * (len(lines[number]) - 1) / 2 + 4
        spans = "".join(
            f'<tspan x="{x}" y="{y + LINE_HEIGHT * row:.1f}">{escape(text)}</tspan>'
            for row, text in enumerate(lines[number])
        )
        out.append(f'<text class="name n{number}">{spans}</text>')
    return out


def apart(wanted: Sequence[float], heights: Sequence[float], bottom: float) -> list[float]:
    """Positions for texts near the wanted ones, such that no text covers another.

    wanted: middles, ascending. heights: of the texts. bottom: lower bound of all texts.

    Returns: middles, ascending.
    """
    # Texts that touch form a group around the mean of their wanted positions; groups that touch are
    # merged.
    groups: list[list[int]] = []
    for number in range(len(wanted)):
        groups.append([number])
        while (
            len(groups) > 1
            and _edges(groups[-2], wanted, heights, bottom)[1]
            > (_edges(groups[-1], wanted, heights, bottom)[0])
        ):
            groups[-2:] = [groups[-2] + groups[-1]]

    out = []
    for group in groups:
        at = _edges(group, wanted, heights, bottom)[0]
        for number in group:
            out.append(at + heights[number] / 2)
            at += heights[number]
    return out


def _edges(
    group: Sequence[int], wanted: Sequence[float], heights: Sequence[float], bottom: float
) -> tuple[float, float]:
    """Upper and lower end of a group of texts."""
    height = sum(heights[i] for i in group)
    middle = sum(wanted[i] for i in group) / len(group)
    # If a group is too high for the drawing, keep its top visible.
    top = max(0.0, min(middle - height / 2, bottom - height))
    return top, top + height


def value_ticks(low: float, high: float) -> list[float]:
    """Round numbers, evenly spaced, that enclose all values: four to eight, at least two."""
    # Values that differ only by rounding count as one.
    if high - low <= 1e-9 * max(1.0, abs(low), abs(high)):
        largest = max(abs(low), abs(high))
        room = largest / 2 if largest > 1e-9 else 0.5
        low, high = low - room, high + room
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(s * power for s in TICK_STEPS if (high - low) / (s * power) <= 5)
    begin, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(begin, end + 1)]


def tick_text(value: float, ticks: Sequence[float]) -> str:
    """A tick with as many decimals as its distance to the next one needs."""
    step = ticks[1] - ticks[0]
    decimals = 0
    while decimals < 9 and abs(round(step, decimals) - step) > step * 1e-6:
        decimals += 1
    return f"{value + 0.0:.{decimals}f}"


def time_ticks(first: float, last: float, most: int) -> list[tuple[float, str]]:
    """At most `most` ticks of time at round hours, days or months of UTC, with their texts.

    first, last: Unix seconds. Times outside the calendar get no ticks.
    """
    try:
        begin = datetime.fromtimestamp(first, UTC)
        datetime.fromtimestamp(last, UTC)
    except (OverflowError, OSError, ValueError):
        return []

    # Minutes, hours and days have a fixed length.
    for step in TIME_STEPS:
        if (last - first) / step < most:
            # Weeks begin on a Monday; the epoch was a Thursday.
            origin = 4 * DAY_SECONDS if step % (7 * DAY_SECONDS) == 0 else 0
            at = origin + math.ceil((first - origin) / step) * step
            return [(t, _clock(t, step)) for t in _range(at, last, step)]

    # The length of months varies.
    months = next(
        (n for n in MONTH_STEPS if (last - first) / (n * MONTH_SECONDS) < most), MONTH_STEPS[-1]
    )
    number = begin.year * 12 + begin.month - 1
    out: list[tuple[float, str]] = []
    number += -number % months
    while len(out) <= most and number < 9999 * 12:
        date = datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC)
        if date.timestamp() > last:
            break
        if date.timestamp() >= first:
            out.append((date.timestamp(), date.strftime("%Y-%m")))
        number += months
    return out


def _range(first: float, last: float, step: float) -> list[float]:
    return [first + n * step for n in range(math.floor((last - first) / step) + 1)]


def _clock(time: float, step: float) -> str:
    """Text of a tick below a month: the day at midnight, otherwise the time of day."""
    date = datetime.fromtimestamp(0, UTC) + timedelta(seconds=time)
    if step >= DAY_SECONDS or (date.hour, date.minute) == (0, 0):
        return f"{date.day} {date:%b}"
    return f"{date:%H:%M}"
