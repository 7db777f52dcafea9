"""Criteo and Avazu files in Kaggle's format, and a training and test set from them.

Shapes: N training rows, T test rows.
"""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import torch
from torch import Tensor

from tallystick.config.party import EncodingConfig, FeatureColumns
from tallystick.data.encoder import Encoder
from tallystick.data.features import FeatureShape, PackedFeatures
from tallystick.data.lazy import LazyTable, is_gzipped, sample, store, unpacked
from tallystick.errors import DataError

CRITEO_NUMERIC = tuple(f"I{i}" for i in range(1, 14))
CRITEO_CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
TRAIN = "train"  # Kaggle's files: train.txt of Criteo, train.csv or train of Avazu
SAMPLE_SEED = 0  # of what --limit draws: the same rows whatever the seeds of the runs
LONGEST_LINE = 2**16
AVAZU_LABEL = "click"
AVAZU_CATEGORICAL = (
    "hour_of_day", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category",
    "device_id", "device_ip", "device_model", "device_type", "device_conn_type", "C14", "C15", "C16", "C17", "C18", "C19",
    "C20", "C21",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ClickTable:
    """A click log: its columns as text or numbers, which of them are which, and a 0/1 label."""

    name: Literal["criteo", "avazu"]
    frame: LazyTable
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    label: str


def read_clicks(path: Path, *, limit: int | None = None) -> ClickTable:
    """Read Kaggle's Criteo (tab-separated, no header, 40 columns) or Avazu (comma-separated, header) file, gzipped or not.

    Args:
        path: the file, or a folder that holds just one, or Kaggle's own: train.txt, train.csv or train, packed or not.
        limit: draw so many rows at random, always the same ones; they keep their order.

    Raises:
        DataError: no such file, several files in the folder, or another format.
    """
    path = _the_file(path)
    head = first_line(path)
    if head.count("\t") == 39:
        return _read_criteo(path, limit)
    if head.startswith("id,click,hour,"):
        return _read_avazu(path, limit)
    raise DataError(
        f"{path} is neither Kaggle's Criteo file (40 tab-separated columns, no header) nor its Avazu train file "
        "(header id,click,hour,...)"
    )


def first_line(path: Path) -> str:
    """The first line of a text file, gzipped or not; raises DataError for one that cannot be read."""
    try:
        with gzip.open(path) if is_gzipped(path) else path.open("rb") as file:
            return file.readline(LONGEST_LINE).decode("utf-8-sig", errors="replace").rstrip("\r\n")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _the_file(path: Path) -> Path:
    """The file itself, or the one of a folder: its only one, or the one that Kaggle calls train."""
    if path.is_dir():
        files = sorted(
            file
            for file in path.iterdir()
            if (bare := file.name.removesuffix(".gz")).endswith((".csv", ".tsv", ".txt")) or bare == TRAIN
        )
        files = [file for file in files if file.name.split(".")[0] == TRAIN] or files
        if len(files) != 1:
            found = f": {', '.join(file.name for file in files)}" if files else ""
            raise DataError(
                f"{path} holds {len(files)} click files{found}; expected one called train, or one .csv, .tsv or .txt (.gz), "
                "or give the file itself"
            )
        path = files[0]
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a Criteo or Avazu file in Kaggle's format with --data")
    return path


def _read_criteo(path: Path, limit: int | None) -> ClickTable:
    names = ("label", *CRITEO_NUMERIC, *CRITEO_CATEGORICAL)
    schema = dict.fromkeys(names, pl.String) | dict.fromkeys(("label", *CRITEO_NUMERIC), pl.Int64)
    try:
        with unpacked(path) as text:
            source = pl.scan_csv(text, has_header=False, separator="\t", schema=schema, quote_char=None, glob=False)
            frame = store(sample(source, limit, seed=SAMPLE_SEED)[0])
    except (pl.exceptions.PolarsError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not Kaggle's Criteo format: {error}") from None
    return ClickTable(name="criteo", frame=frame, numeric=CRITEO_NUMERIC, categorical=CRITEO_CATEGORICAL, label="label")


def _read_avazu(path: Path, limit: int | None) -> ClickTable:
    try:
        with unpacked(path) as text:
            source, _ = sample(pl.scan_csv(text, infer_schema=False, glob=False), limit, seed=SAMPLE_SEED)
            source = source.with_columns(
                pl.col(AVAZU_LABEL).cast(pl.Int64), pl.col("hour").str.slice(6, 2).alias("hour_of_day")  # YYMMDDHH
            )  # fmt: skip
            frame = store(source.select(AVAZU_LABEL, *AVAZU_CATEGORICAL))
    except (pl.exceptions.PolarsError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not Kaggle's Avazu format: {error}") from None
    return ClickTable(name="avazu", frame=frame, numeric=(), categorical=AVAZU_CATEGORICAL, label=AVAZU_LABEL)


@dataclass(frozen=True, kw_only=True)
class ClickData:
    """Encoded training and test rows."""

    shape: FeatureShape
    training: PackedFeatures
    training_labels_N: Tensor  # float32
    test: PackedFeatures
    test_labels_T: Tensor
    own: "ClickData | None" = None  # the label party's columns of the same rows, if it has any


def split_columns(table: ClickTable, *, label_party: int) -> tuple[FeatureColumns, FeatureColumns]:
    """Share the columns out: the feature party's, and the label party's ``label_party`` columns.

    The label party gets every other numeric, then every other categorical column, so that both hold good ones. FLORIST gives
    it none (footnote 2).
    """
    given = (table.numeric[::2] + table.categorical[::2])[:label_party]
    if len(given) < label_party:
        raise DataError(f"{table.name}: the label party cannot have {label_party} columns; at most {len(given)}")
    return (
        FeatureColumns(
            numeric=tuple(name for name in table.numeric if name not in given),
            categorical=tuple(name for name in table.categorical if name not in given),
        ),
        FeatureColumns(
            numeric=tuple(name for name in given if name in table.numeric),
            categorical=tuple(name for name in given if name in table.categorical),
        ),
    )


def encode_clicks(
    table: ClickTable, *, seed: int, test_share: float = 0.1, min_count: int = 4, columns: FeatureColumns | None = None
) -> ClickData:
    """Split at random and encode.

    FLORIST, appendix J, with two repairs: categories and ranges are fitted on the training rows alone (the paper uses the
    whole file), and numbers are log-scaled and standardised rather than squeezed into [0, 1] by their greatest outlier.
    Rare categories (fewer than ``min_count`` training rows) share one code: the sample is 500 times smaller than Criteo.
    """
    order_N = np.random.default_rng(seed).permutation(table.frame.height)
    tests = int(np.ceil(test_share * len(order_N)))
    if not 0 < tests < len(order_N):
        raise DataError(f"{table.name}: {len(order_N)} rows cannot be split with test_share={test_share}")
    encoder = Encoder.fit(
        table.frame,
        columns or FeatureColumns(numeric=table.numeric, categorical=table.categorical),
        np.sort(order_N[tests:]),
        encoding=EncodingConfig(numeric="log", min_count=min_count),
    )
    features = encoder.encode(table.frame)
    labels_N = torch.from_numpy(table.frame.get_column(table.label).to_numpy().astype(np.float32))
    test, training = torch.from_numpy(order_N[:tests]), torch.from_numpy(order_N[tests:])
    return ClickData(
        shape=encoder.feature_shape,
        training=features.picked(training),
        training_labels_N=labels_N[training],
        test=features.picked(test),
        test_labels_T=labels_N[test],
    )
