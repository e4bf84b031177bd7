"""A report as one HTML page, rendered by Jinja2 from `page.html`; every value is escaped."""

import re

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from streamd import __version__
from streamd.evaluation.report.content import Bars, Plot, Report
from streamd.evaluation.report.plots import NARROW, WIDE, draw

# Colours of curves on a light and on a dark page, in order, one for each regime and rule. Each has
# a contrast of at least 3 to the page.
COLORS = (
    ("#1d4ed8", "#7aa2ff"),
    ("#c026d3", "#f0abfc"),
    ("#b45309", "#fbbf24"),
    ("#047857", "#34d399"),
    ("#dc2626", "#f87171"),
    ("#6d28d9", "#c4b5fd"),
    ("#57606a", "#a9b1ba"),
    ("#0e7490", "#67e8f9"),
)


def as_html(report: Report) -> str:
    """Returns: the page."""
    pages = Environment(
        loader=PackageLoader("streamd.evaluation.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
    )
    # The first sentence is the headline. A dot within a figure is not followed by a blank and a
    # capital.
    verdict, *caveats = re.split(r"(?<=\.) (?=[A-Z])", report.verdict, maxsplit=1)
    return pages.get_template("page.html").render(
        report=report,
        verdict=verdict,
        caveats=" ".join(caveats),
        version=__version__,
        colors=COLORS,
        draw=_draw,
        is_bars=lambda plot: isinstance(plot, Bars),
    )


def _draw(plot: Plot) -> Markup:
    """The drawings of a plot; their texts are escaped already."""
    return Markup(draw(plot, WIDE) + draw(plot, NARROW))
