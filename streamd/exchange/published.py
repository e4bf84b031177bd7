"""Reads public data sets in the form in which they are published, by a source for each.

Sources: JODIE (snap.stanford.edu/jodie), SNAP (snap.stanford.edu/data), Last.fm 1K (ocelma.net),
MovieLens (files.grouplens.org), the GDELT event codebooks 1.03 and 2.0, and the files of TGB
(tgb.complexdatalab.com) that its loaders read.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from streamd.decode.encoding import Times
from streamd.errors import SettingsError
from streamd.events import MICROSECONDS
from streamd.exchange.field_names import names_time
from streamd.exchange.text_files import BLANKS, Row, TextForm
from streamd.exchange.times import Misfit
from streamd.settings.contradictions import check_rules, check_sources
from streamd.settings.loading import Settings, edge_sets, schema_of
from streamd.settings.sets import nearest_of
from streamd.settings.sources import SourceSettings

OTHER_FORM = (
    "if it is not that data set, name its columns instead of --as: --delimiter, --no-header, "
    "--src, --dst, --time."
)
FEATURES_HINT = "declare features of these names in graph.edge_sets to take them"
GDELT_ACTOR = (
    "Code",
    "Name",
    "CountryCode",
    "KnownGroupCode",
    "EthnicCode",
    "Religion1Code",
    "Religion2Code",
    "Type1Code",
    "Type2Code",
    "Type3Code",
)
GDELT_GEO = (
    "Type",
    "FullName",
    "CountryCode",
    "ADM1Code",
    "ADM2Code",
    "Lat",
    "Long",
    "FeatureID",
)
"""The columns of a geography in GDELT 2.0; 1.0 has no ADM2Code."""


def _gdelt_columns(width: int) -> tuple[str, ...]:
    """The columns of GDELT's events, by their number. Version 1.0 has 57, and 58 since April 2013,
    when SOURCEURL was added as the last; version 2.0 has 61."""
    of_geo = [name for name in GDELT_GEO if width > 58 or name != "ADM2Code"]
    geo = [f"{who}Geo_{name}" for who in ("Actor1", "Actor2", "Action") for name in of_geo]
    columns = (*GDELT_EVENT, *geo, "DATEADDED", "SOURCEURL")
    return columns[:width] if width == 57 else columns


GDELT_EVENT = (
    *("GLOBALEVENTID", "SQLDATE", "MonthYear", "Year", "FractionDate"),
    *(f"Actor{which}{name}" for which in (1, 2) for name in GDELT_ACTOR),
    *("IsRootEvent", "EventCode", "EventBaseCode", "EventRootCode", "QuadClass"),
    *("GoldsteinScale", "NumMentions", "NumSources", "NumArticles", "AvgTone"),
)
"""The first columns of all GDELT events; the geographies and the date of adding follow."""
GDELT_WIDTHS = (57, 58, 61)
YEAR = "year"
"""The first column of the TGB data set that has years as times."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """The format of a public data set.

    form: of its files. src, dst, time: columns. time_form: of the times. prefixes: of the keys of
    sources and destinations, if both are counted from the same number. needs: columns without which
    a row is no edge. features: columns of numbers. change: converts a row, so that it has these
    columns.
    """

    form: TextForm
    src: str
    dst: str
    time: str
    time_form: Literal["s", "iso8601"] = "s"
    prefixes: tuple[str, str] = ("", "")
    needs: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    change: Callable[[Row], Row] = lambda row: row


def _is_number(line: str) -> bool:
    """Whether the first cell of a line is a number, so that the line is not a header."""
    return re.match(r"[0-9.]", line) is not None


def _check_line(fits: bool, cells: list[str], form: str) -> None:
    """Refuse a first line that has another form, because its columns would mean other things.

    form: the expected columns, in words. Raises: Misfit.
    """
    if not fits:
        shown = ", ".join(cells[:6])[:80]
        raise Misfit(f"the first line has {len(cells)} cells ({shown}): {form}", OTHER_FORM)


def _jodie_form(line: str) -> TextForm:
    """The form of a JODIE file: its header has one name for all columns of features. Raises:
    Misfit."""
    columns = ("user_id", "item_id", "timestamp", "state_label", "features")
    cells = [cell.strip() for cell in line.split(",")]
    fits = len(cells) >= 4 and (_is_number(line) or cells[:4] == [*columns[:4]])
    _check_line(fits, cells, f"files of JODIE begin with {', '.join(columns[:4])}")
    return TextForm(header=not _is_number(line), columns=columns, last_is_list=True)


def _cells_of_snap(line: str) -> tuple[str, list[str]]:
    """The delimiter of a SNAP file, and the cells of its first line. The delimiter is blanks or
    tabs, or a comma, in which case there may be a header."""
    return (",", line.split(",")) if "," in line else (BLANKS, line.split())


def _snap_form(line: str) -> TextForm:
    delimiter, cells = _cells_of_snap(line)
    header = not _is_number(line)
    # A word after the time is the kind of edge; a number means that the third cell is no time.
    fits = len(cells) in (2, 3) or (len(cells) == 4 and not header and cells[3].isalpha())
    fits = fits and (delimiter == "," or all(map(_is_number, cells[:2])))
    # In a signed network the third cell is the sign; times that count up begin with 0.
    fits = fits and not (len(cells) == 3 and cells[2] in ("1", "+1", "-1"))
    form = "edges of SNAP are source, destination and maybe a time; --as snap-signed reads ratings"
    _check_line(fits, cells, form)
    return TextForm(delimiter=delimiter, header=header, columns=("src", "dst", "time"))


def _signed_form(line: str) -> TextForm:
    delimiter, cells = _cells_of_snap(line)
    form = "signed edges of SNAP are source, destination, sign or rating, and maybe a time"
    _check_line(len(cells) in (3, 4), cells, form)
    columns = ("SOURCE", "TARGET", "RATING", "TIME")
    return TextForm(delimiter=delimiter, header=not _is_number(line), columns=columns)


def _movielens_form(line: str) -> TextForm:
    """The form of a MovieLens file: CSV with a header since 2013, before that `::` or tabs without
    one. Raises: Misfit."""
    delimiter = next((one for one in ("::", "\t") if one in line), ",")
    columns = ("userId", "movieId", "rating", "timestamp")
    cells = line.split(delimiter)
    # In the file of tags the third cell is a tag, not a rating.
    fits = len(cells) == 4 and (
        _is_number(line) or (*cells[:2], cells[3]) == (*columns[:2], columns[3])
    )
    _check_line(fits, cells, f"ratings of MovieLens are {', '.join(columns)}")
    return TextForm(delimiter=delimiter, header=not _is_number(line), columns=columns)


def _gdelt_form(line: str) -> TextForm:
    width = line.count("\t") + 1
    if width not in GDELT_WIDTHS:
        raise Misfit(
            f"{width} columns: events of GDELT have 58 (1.0) or 61 (2.0), separated by tabs",
            OTHER_FORM,
        )
    columns = _gdelt_columns(width)
    return TextForm(delimiter="\t", header=False, quoting="none", columns=columns)


def _tgb_form(line: str) -> TextForm:
    """The form of a TGB file: time, source and destination come first, under various names; the
    first tgbl-wiki has JODIE's form. Raises: Misfit."""
    names = [name.strip() for name in line.split(",")]
    if names[0] == "user_id":
        columns = ("src", "dst", "time", "state_label", "features")
        return TextForm(columns=columns, last_is_list=True)
    header = not _is_number(line)
    fits = len(names) >= 3 and (not header or names[0] == YEAR or names_time(names[0]))
    _check_line(fits, names, "files of TGB have time, source and destination first")
    time = YEAR if names[0] == YEAR else "time"
    return TextForm(columns=(time, "src", "dst"), header=header, strip=True)


def _with_time(row: Row) -> Row:
    """Set a missing time to 0, so that such edges come first."""
    return row | {"time": 0} if row.get("time") is None else row


def _signed_edge(row: Row) -> Row:
    return row | {"TIME": 0} if row.get("TIME") is None else row


def _of_lastfm(row: Row) -> Row:
    """Add the artist: the id of MusicBrainz, or the name if there is none."""
    return row | {"artist": row["artid"] or row["artname"]}


def _of_tgb(row: Row) -> Row:
    """Convert times to seconds: tgbl-flight has days, tgbn-trade years. Also prefix keys, and write
    several features in a cell as a list."""
    time = f"{row[YEAR]}-01-01" if YEAR in row else row["time"]
    if type(time) is str and "-" in time:
        row = row | {"time": Times("iso8601").one(time, "time") // MICROSECONDS["s"]}
    # In JODIE's form both users and items are counted from 0.
    if "state_label" in row:
        row = row | {"src": f"user:{row['src']}", "dst": f"item:{row['dst']}"}
    # Several numbers in one cell need brackets to be JSON.
    features = row.get("features")
    if type(features) is str and "," in features:
        row = row | {"features": f"[{features}]"}
    return row


PUBLISHED = {
    "jodie": Published(
        form=TextForm(of_first_line=_jodie_form),
        src="user_id",
        dst="item_id",
        time="timestamp",
        prefixes=("user:", "item:"),
        features=("features",),
    ),
    "snap": Published(
        form=TextForm(comment="#", of_first_line=_snap_form),
        src="src",
        dst="dst",
        time="time",
        change=_with_time,
    ),
    "snap-signed": Published(
        form=TextForm(comment="#", of_first_line=_signed_form),
        src="SOURCE",
        dst="TARGET",
        time="TIME",
        features=("RATING",),
        change=_signed_edge,
    ),
    "lastfm": Published(
        form=TextForm(
            delimiter="\t",
            header=False,
            quoting="none",
            columns=("userid", "timestamp", "artid", "artname", "traid", "traname"),
        ),
        src="userid",
        dst="artist",
        time="timestamp",
        time_form="iso8601",
        change=_of_lastfm,
    ),
    "movielens": Published(
        form=TextForm(of_first_line=_movielens_form),
        src="userId",
        dst="movieId",
        time="timestamp",
        prefixes=("user:", "movie:"),
        features=("rating",),
    ),
    "gdelt": Published(
        form=TextForm(of_first_line=_gdelt_form),
        src="Actor1Code",
        dst="Actor2Code",
        time="DATEADDED",
        time_form="iso8601",
        needs=("Actor1Code", "Actor2Code"),
        features=("GoldsteinScale", "NumMentions", "AvgTone"),
    ),
    "tgb": Published(
        form=TextForm(of_first_line=_tgb_form), src="src", dst="dst", time="time", change=_of_tgb
    ),
}
"""Data sets by their name in `streamd import --as`."""


def find_data_set(name: str) -> Published:
    """Find a data set by its name. Raises: SettingsError."""
    if name not in PUBLISHED:
        raise SettingsError(
            f"--as {name} is unknown{nearest_of(name, PUBLISHED)}.", "name one of them."
        )
    return PUBLISHED[name]


def add_published_source(settings: Settings, name: str, edge_set: str) -> Settings:
    """Add a source that maps the rows of a public data set to settings; its topic is the data set's
    name.

    Declared features of the edge set are columns of the same names. Keys have a prefix if sources
    and destinations are of one node set. Raises: SettingsError.
    """
    # Find the edge set, its declared features and the node sets of its ends.
    published = find_data_set(name)
    declared = edge_sets(settings)
    schema = schema_of(settings)
    chosen = edge_set or next(iter(declared))
    if chosen not in declared:
        raise SettingsError(
            f"There is no edge set {chosen}{nearest_of(chosen, declared)}.", "name one of them."
        )
    # Ids of users and items overlap, so in one node set they need prefixes.
    source_set, target_set = schema.ends_of(list(declared).index(chosen))
    prefixes = published.prefixes if source_set == target_set else ("", "")

    # The source passes the same checks as one in a settings file.
    source = SourceSettings.model_validate(
        {
            "topic": name,
            "time": published.time_form,
            "edge_set": chosen if len(declared) > 1 else None,
            "fields": {
                "src": {"path": published.src, "prefix": prefixes[0]},
                "dst": {"path": published.dst, "prefix": prefixes[1]},
                "time": published.time,
                "features": {one: one.replace(".", "\\.") for one in declared[chosen].features},
            },
        }
    )
    # Drop a source in the settings that has this name by chance.
    graph = settings.graph
    found = check_sources((source,), graph.node_sets, declared, schema)
    for misplaced in (*check_rules((source,)), *found):
        raise SettingsError(f"--as {name}: {misplaced.what}.", f"{FEATURES_HINT}.")
    others = tuple(one for one in settings.sources if one.topic != name)
    return settings.model_copy(update={"sources": (*others, source)})
