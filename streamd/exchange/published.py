"""Public data sets as they are published: the form of their files, and the source that reads them.

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
from streamd.settings.contradictions import check_sources
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
    """The columns of events of GDELT: 57 or 58 are those of 1.0, of which the last, SOURCEURL, came
    in April 2013; 61 are those of 2.0."""
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
"""The first columns of all events of GDELT; geographies and the date of adding are after them."""
GDELT_WIDTHS = (57, 58, 61)
YEAR = "year"
"""The first column of the data set of TGB that has years as times."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """How a public data set is read.

    form: of its files. src, dst, time: columns. time_form: how times are written. prefixes: of keys
    of sources and destinations if both are counted from the same number. needs: columns without
    which a row is no edge. features: columns of numbers. change: makes these columns of others.
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
    """Whether the first cell of a line is a number, so that the line is no header."""
    return re.match(r"[0-9.]", line) is not None


def _check_line(fits: bool, cells: list[str], form: str) -> None:
    """Refuse a first line of another form, since its columns would mean other things. form: the
    columns, for people. Raises: Misfit."""
    if not fits:
        shown = ", ".join(cells[:6])[:80]
        raise Misfit(f"the first line has {len(cells)} cells ({shown}): {form}", OTHER_FORM)


def _jodie_form(line: str) -> TextForm:
    """The header of JODIE's files has one name for all columns of features."""
    columns = ("user_id", "item_id", "timestamp", "state_label", "features")
    cells = [cell.strip() for cell in line.split(",")]
    fits = len(cells) >= 4 and (_is_number(line) or cells[:4] == [*columns[:4]])
    _check_line(fits, cells, f"files of JODIE begin with {', '.join(columns[:4])}")
    return TextForm(header=not _is_number(line), columns=columns, last_is_list=True)


def _cells_of_snap(line: str) -> tuple[str, list[str]]:
    """The delimiter of one of SNAP's files, and the cells of its first line: blanks or tabs, in
    some files commas, of which some have a header."""
    return (",", line.split(",")) if "," in line else (BLANKS, line.split())


def _snap_form(line: str) -> TextForm:
    delimiter, cells = _cells_of_snap(line)
    header = not _is_number(line)
    # A word after the time is the kind of an edge; a number means that the third is no time.
    fits = len(cells) in (2, 3) or (len(cells) == 4 and not header and cells[3].isalpha())
    fits = fits and (delimiter == "," or all(map(_is_number, cells[:2])))
    # The third cell of a signed network is its sign; times that count begin with 0.
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
    """CSV with a header since 2013; `::` or tabs without one before."""
    delimiter = next((one for one in ("::", "\t") if one in line), ",")
    columns = ("userId", "movieId", "rating", "timestamp")
    cells = line.split(delimiter)
    # The file of tags has a tag instead of the rating.
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
    """TGB has time, source and destination first, and names them in many ways; only the first
    tgbl-wiki is as JODIE has it."""
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
    """Edges without a time get the earliest, all the same one."""
    return row | {"time": 0} if row.get("time") is None else row


def _signed_edge(row: Row) -> Row:
    return row | {"TIME": 0} if row.get("TIME") is None else row


def _of_lastfm(row: Row) -> Row:
    """An artist without an id of MusicBrainz is known by name."""
    return row | {"artist": row["artid"] or row["artname"]}


def _of_tgb(row: Row) -> Row:
    """Times are seconds or, in tgbl-flight, days, in tgbn-trade years."""
    time = f"{row[YEAR]}-01-01" if YEAR in row else row["time"]
    if type(time) is str and "-" in time:
        row = row | {"time": Times("iso8601").one(time, "time") // MICROSECONDS["s"]}
    # In JODIE's form, users and items are both counted from 0.
    if "state_label" in row:
        row = row | {"src": f"user:{row['src']}", "dst": f"item:{row['dst']}"}
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
"""By the name that `streamd import --as` takes."""


def find_data_set(name: str) -> Published:
    """The data set of a name. Raises: SettingsError."""
    if name not in PUBLISHED:
        raise SettingsError(f"--as {name} is unknown{nearest_of(name, PUBLISHED)}.")
    return PUBLISHED[name]


def add_published_source(settings: Settings, name: str, edge_set: str) -> Settings:
    """Settings with a source, named as the data set is, that reads its rows.

    Declared features of the edge set are columns of the same names. Keys have a prefix if sources
    and destinations are of one node set. Raises: SettingsError.
    """
    # The edge set: its declared features, and whether its ends are of one node set.
    published = find_data_set(name)
    declared = edge_sets(settings)
    schema = schema_of(settings)
    chosen = edge_set or next(iter(declared))
    if chosen not in declared:
        raise SettingsError(f"There is no edge set {chosen}{nearest_of(chosen, declared)}.")
    # Ids of users and items overlap, which only sets of their own keep apart.
    source_set, target_set = schema.ends_of(list(declared).index(chosen))
    prefixes = published.prefixes if source_set == target_set else ("", "")

    # The source is checked as one of the settings is.
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
    # A source of the settings that has this name by chance counts no more here.
    graph = settings.graph
    for misplaced in check_sources((source,), graph.node_sets, declared, schema):
        raise SettingsError(f"--as {name}: {misplaced.what}.", f"{FEATURES_HINT}.")
    others = tuple(one for one in settings.sources if one.topic != name)
    return settings.model_copy(update={"sources": (*others, source)})
