"""Read Criteo and Avazu files in Kaggle's format, and make a training and a test set from them."""

import gzip
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from msgspec.structs import replace as replace_fields

from tallystick.config.party import EncodingConfig, FeatureColumns
from tallystick.errors import DataError
from tallystick.tables.encoder import Encoder
from tallystick.tables.lazy_table import LazyTable, is_gzipped, sample, store, unpacked
from tallystick_experiments.catalogue.table import SplitData, TwoPartyTable, encode_split, split_columns

CRITEO_NUMERIC = tuple(f"I{i}" for i in range(1, 14))
CRITEO_CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))
TRAIN = "train"  # Kaggle's files: train.txt of Criteo, train.csv or train of Avazu
SAMPLE_SEED = 0  # seed of the rows that --limit draws, the same for all seeds of the runs
TEST_SHARE = 0.1
LONGEST_LINE = 2**16
AVAZU_LABEL = "click"
AVAZU_CATEGORICAL = (
    "hour_of_day", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category",
    "device_id", "device_ip", "device_model", "device_type", "device_conn_type", "C14", "C15", "C16", "C17", "C18", "C19",
    "C20", "C21",
)  # fmt: skip


def read_clicks(path: Path, *, limit: int | None = None) -> TwoPartyTable:
    """Read Kaggle's Criteo (tab-separated, no header, 40 columns) or Avazu (comma-separated, header) file, gzipped or not.

    Args:
        path: the file, or a folder that holds just one, or Kaggle's own: train.txt, train.csv or train, packed or not.
        limit: how many rows to draw at random, always the same ones; they keep their order.

    The feature party gets all columns.

    Raises:
        DataError: there is no such file, there are several in the folder, or it has another format.
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
    """Read the first line of a text file, gzipped or not. Raises DataError for a file that cannot be read."""
    try:
        with gzip.open(path) if is_gzipped(path) else path.open("rb") as file:
            return file.readline(LONGEST_LINE).decode("utf-8-sig", errors="replace").rstrip("\r\n")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def _the_file(path: Path) -> Path:
    """Return the file, or the one in a folder: its only file, or the one that Kaggle calls train."""
    if path.is_dir():
        files = sorted(
            file
            for file in path.iterdir()
            if (bare := file.name.removesuffix(".gz")).endswith((".csv", ".tsv", ".txt")) or bare == TRAIN
        )
        files = [file for file in files if file.name.split(".")[0] == TRAIN] or files
        if len(files) != 1:
            names_text = f": {', '.join(file.name for file in files)}" if files else ""
            raise DataError(
                f"{path} holds {len(files)} click files{names_text}; expected one called train, or one .csv, .tsv or .txt (.gz), "
                "or give the file itself"
            )
        path = files[0]
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a Criteo or Avazu file in Kaggle's format with --data")
    return path


def _read_criteo(path: Path, limit: int | None) -> TwoPartyTable:
    names = ("label", *CRITEO_NUMERIC, *CRITEO_CATEGORICAL)
    schema = dict.fromkeys(names, pl.String) | dict.fromkeys(("label", *CRITEO_NUMERIC), pl.Int64)
    try:
        with unpacked(path) as text:
            source = pl.scan_csv(text, has_header=False, separator="\t", schema=schema, quote_char=None, glob=False)
            frame = store(sample(source, limit, seed=SAMPLE_SEED)[0])
    except (pl.exceptions.PolarsError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not Kaggle's Criteo format: {error}") from None
    columns = FeatureColumns(numeric=CRITEO_NUMERIC, categorical=CRITEO_CATEGORICAL)
    return TwoPartyTable(name="criteo", frame=frame, label="label", feature_party=columns)


def _read_avazu(path: Path, limit: int | None) -> TwoPartyTable:
    try:
        with unpacked(path) as text:
            source, _ = sample(pl.scan_csv(text, infer_schema=False, glob=False), limit, seed=SAMPLE_SEED)
            source = source.with_columns(
                pl.col(AVAZU_LABEL).cast(pl.Int64), pl.col("hour").str.slice(6, 2).alias("hour_of_day")  # YYMMDDHH
            )  # fmt: skip
            frame = store(source.select(AVAZU_LABEL, *AVAZU_CATEGORICAL))
    except (pl.exceptions.PolarsError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not Kaggle's Avazu format: {error}") from None
    columns = FeatureColumns(categorical=AVAZU_CATEGORICAL)
    return TwoPartyTable(name="avazu", frame=frame, label=AVAZU_LABEL, feature_party=columns)


def give_columns(table: TwoPartyTable, count: int) -> TwoPartyTable:
    """Give the label party ``count`` of the feature party's columns.

    It gets every other numeric, then every other categorical column, so that both parties hold good ones. In FLORIST it gets none
    (footnote 2).
    """
    every = table.feature_party
    own_names = (every.numeric[::2] + every.categorical[::2])[:count]
    if len(own_names) < count:
        raise DataError(f"{table.name}: the label party cannot have {count} columns; at most {len(own_names)}")
    own, partner_columns = split_columns(every, own_names)
    return replace(table, label_party=own, feature_party=partner_columns)


def encode_clicks(table: TwoPartyTable, *, seed: int, min_count: int = 4, unit_numbers: bool = False) -> SplitData:
    """Draw a tenth of the rows for tests, and encode all rows.

    This is FLORIST, appendix J, with two repairs: categories and ranges are fitted on the training rows alone (the paper uses the
    whole file), and numbers are log-scaled and standardised, where the paper scales them to [0, 1] by their largest outlier. Rare
    categories (fewer than ``min_count`` training rows) share one code, because the sample is 500 times smaller than Criteo.

    ``unit_numbers`` scales numbers as in the paper: a missing number counts as 0, and those of the training rows lie in [0, 1].
    """
    order_N = np.random.default_rng(seed).permutation(table.frame.height)
    tests = int(np.ceil(TEST_SHARE * len(order_N)))
    training, test = order_N[tests:], order_N[:tests]
    if unit_numbers:
        numbers = table.label_party.numeric + table.feature_party.numeric
        source = table.frame.source.with_columns(pl.col(name).fill_null(0) for name in numbers)
        filled = replace(table, frame=LazyTable(source=source, rows=table.frame.rows, held=table.frame.held))
        return encode_split(filled, training, test, EncodingConfig(numeric="standard", min_count=min_count), finish=_in_unit)
    return encode_split(table, training, test, EncodingConfig(numeric="log", min_count=min_count))


def _in_unit(encoder: Encoder) -> Encoder:
    """Scale numbers so that the minimum and the maximum of the training rows become 0 and 1, instead of standardising them."""
    numeric = tuple(
        replace_fields(
            column,
            mean=column.mean + column.low * column.deviation,
            deviation=(column.high - column.low) * column.deviation,
            low=0.0,
            high=1.0,
        )
        for column in encoder.numeric
    )
    return replace_fields(encoder, numeric=numeric)
