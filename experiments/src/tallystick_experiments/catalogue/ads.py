"""Read tables of clicks and purchases that two parties share: who holds which columns, which rows are for tests, and the
encoding.

The tables are: FedAds' own files (a folder with sample_train_aligned.csv, sample_test.csv and sample_train_nonaligned.csv, which
has rows that only the label party has; every cell is written as ['value'], and a column in which some cell lists several values
is a sequence); the IJCAI-18 purchases, which resemble them; Kaggle's Criteo and Avazu files; and the credit-card data that FATE
split.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from tallystick.config.party import EncodingConfig, FeatureColumns, SequenceConfig
from tallystick.errors import DataError
from tallystick.tables.lazy_table import LazyTable, sample, store, unpacked
from tallystick_experiments.catalogue.clicks import (
    CRITEO_CATEGORICAL,
    CRITEO_NUMERIC,
    SAMPLE_SEED,
    first_line,
    give_columns,
    read_clicks,
)
from tallystick_experiments.catalogue.table import SplitData, TwoPartyTable, encode_split, split_columns

TRAINING_FILE, UNALIGNED_FILE, TEST_FILE = "sample_train_aligned.csv", "sample_train_nonaligned.csv", "sample_test.csv"
OTHER_NAMES = {UNALIGNED_FILE: "sample_train_unaligned.csv", TEST_FILE: "test.csv"}  # which other readers of the files use
USER, ITEM = "l_u_fea_1", "l_i_fea_1"  # the first columns of the user's and of the item's profile, taken as their ids
LABEL_PARTY_COLUMNS = 16  # FedAds' number; the feature party has the rest
IJCAI_NUMERIC = ("shop_review_positive_rate", "shop_score_service", "shop_score_delivery", "shop_score_description")
IJCAI_TEST = "te_8k"
CREDIT = ("default_credit_hetero_guest.csv.gz", "default_credit_hetero_host.csv.gz")


def read_ads(path: Path, *, limit: int | None = None, swapped: bool = False) -> TwoPartyTable:
    """Read a data set and divide its columns as FedAds does: the label party gets item, shop and user profile.

    Args:
        path: a folder with FedAds' two files, or FATE's, or one file of any of the formats.
        limit: how many rows of each file to draw at random, always the same ones; they keep their order and their part.
        swapped: give each party the other's columns, so that the better ones cross the cut.

    Raises DataError for a missing file, or one of another format.
    """
    if path.is_dir() and (path / TRAINING_FILE).exists():
        table = _read_fedads(path, limit)
    elif path.is_dir() and all((path / name).exists() for name in CREDIT):
        table = _read_credit(path, limit)
    elif path.is_file() and "is_trade" in (head := first_line(path).split(",")):
        table = _read_ijcai(path, head, limit)
    else:
        clicks = read_clicks(path, limit=limit)
        most = len(clicks.feature_party.numeric[::2] + clicks.feature_party.categorical[::2])
        table = give_columns(clicks, min(LABEL_PARTY_COLUMNS, most))
    if swapped:
        return replace(
            table,
            label_party=table.feature_party,
            feature_party=table.label_party,
            label_sequences=table.feature_sequences,
            feature_sequences=table.label_sequences,
        )
    return table


def _read_fedads(folder: Path, limit: int | None) -> TwoPartyTable:
    paths = {name: _named(folder, name) for name in (TRAINING_FILE, UNALIGNED_FILE, TEST_FILE)}
    names = [name for name, path in paths.items() if name != UNALIGNED_FILE or path.exists()]
    try:
        files = [pl.scan_csv(paths[name], infer_schema=False, glob=False) for name in names]
        parts, counts = zip(*(sample(file, limit, seed=SAMPLE_SEED) for file in files), strict=True)
        cells = pl.exclude("sample_id").str.replace_all("[\\[\\]' \"]", "")  # ['1', '2'] becomes 1,2
        read = [part.select(cells).with_columns(pl.col("label").cast(pl.Int64)) for part in parts]
        frame = store(pl.concat(read, how="diagonal"))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{folder}: not FedAds' {' and '.join(names)}: {error}") from None
    file_N = pl.Series(np.repeat(names, [*counts[:-1], frame.height - sum(counts[:-1])]))
    label_party = tuple(name for name in frame.columns if name.startswith(("l_i_", "l_u_")))
    feature_party = tuple(name for name in frame.columns if name.startswith("f_"))
    if not (label_party and feature_party):
        raise DataError(f"{folder}: {TRAINING_FILE} has no columns l_i_*, l_u_* and f_*; has {', '.join(frame.columns)}")
    listed = [name for name in (*label_party, *feature_party) if frame.get_column(name).str.contains(",", literal=True).any()]
    # Only the label party has a column for the row's item.
    of_label = SequenceConfig(separator=",", target=ITEM if ITEM in label_party and ITEM not in listed else None)
    # l_c_fea is left out: the paper describes the label party's context as the time of the conversion, which is the label
    return TwoPartyTable(
        name="fedads",
        frame=frame,
        label="label",
        label_party=FeatureColumns(categorical=tuple(name for name in label_party if name not in listed)),
        feature_party=FeatureColumns(categorical=tuple(name for name in feature_party if name not in listed)),
        label_sequences={name: of_label for name in label_party if name in listed},
        feature_sequences={name: SequenceConfig(separator=",") for name in feature_party if name in listed},
        user=USER if USER in label_party and USER not in listed else None,
        test_N=file_N == TEST_FILE,
        has_partner_N=file_N != UNALIGNED_FILE if UNALIGNED_FILE in names else None,
    )


def _named(folder: Path, name: str) -> Path:
    """Return a file by its usual name, or by the other name if only that exists."""
    other = folder / OTHER_NAMES.get(name, name)
    return other if other.exists() and not (folder / name).exists() else folder / name


def _read_ijcai(path: Path, columns: list[str], limit: int | None) -> TwoPartyTable:
    try:
        types = {name: pl.Float64 if name in IJCAI_NUMERIC else pl.String for name in columns} | {"is_trade": pl.Int64}
        with unpacked(path) as text:
            frame = store(sample(pl.scan_csv(text, schema_overrides=types, glob=False), limit, seed=SAMPLE_SEED)[0])
        test_N = frame.get_column("part") == IJCAI_TEST
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{path}: not the IJCAI-18 sample with is_trade and part: {error}") from None
    features = [name for name in columns if name not in ("is_trade", "part")]
    numeric = tuple(name for name in IJCAI_NUMERIC if name in columns)
    user_side = tuple(name for name in features if name.startswith(("user_", "context_")))
    return TwoPartyTable(
        name="ijcai18",
        frame=frame,
        label="is_trade",
        label_party=FeatureColumns(
            numeric=numeric, categorical=tuple(name for name in features if name not in (*user_side, *numeric))
        ),
        feature_party=FeatureColumns(categorical=user_side),
        test_N=test_N,
        user="user_id" if "user_id" in features else None,
    )


def _read_credit(folder: Path, limit: int | None) -> TwoPartyTable:
    try:
        guest, host = (pl.read_csv(folder / name, n_rows=limit) for name in CREDIT)
        partner_names = [name for name in host.columns if name != "id"]
        frame = guest.join(
            host.rename({name: f"host_{name}" for name in partner_names}), on="id", how="inner", maintain_order="left"
        )
        own = tuple(name for name in guest.columns if name not in ("id", "y"))
        frame = frame.with_columns(pl.col("y").cast(pl.Int64))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{folder}: not FATE's {' and '.join(CREDIT)}: {error}") from None
    return TwoPartyTable(
        name="credit card",
        frame=LazyTable.of(frame),
        label="y",
        label_party=FeatureColumns(numeric=own),
        feature_party=FeatureColumns(numeric=tuple(f"host_{name}" for name in partner_names)),
    )


def read_by_kind(path: Path, *, limit: int | None = None) -> TwoPartyTable:
    """Read a data set as ``read_ads`` does. For Kaggle's Criteo file the label party has C1-C26 and the feature party I1-I13.

    Raises DataError for a missing data set, or one of another format.
    """
    table = read_ads(path, limit=limit)
    if table.name != "criteo":
        return table
    label_party, feature_party = FeatureColumns(categorical=CRITEO_CATEGORICAL), FeatureColumns(numeric=CRITEO_NUMERIC)
    return replace(table, label_party=label_party, feature_party=feature_party)


def read_pair(data: Path, partner: Path | None, *, limit: int | None = None) -> TwoPartyTable:
    """Read two parties' CSV files (columns id and, in the label party's, y), or one file of the FedAds benchmark's formats.

    Raises DataError for a missing file, or one of another format.
    """
    if partner is None:
        return read_ads(data, limit=limit)
    try:
        label, feature = (pl.read_csv(path, n_rows=limit, infer_schema_length=None) for path in (data, partner))
        _check_pair(label, feature, data, partner)
        frame = label.join(feature.rename({name: f"partner_{name}" for name in feature.columns if name != "id"}), on="id")
        frame = frame.sort("id").with_columns(pl.col("y").cast(pl.Int64))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"{data}, {partner}: not two CSV files with columns id and, in the first, y: {error}") from None
    if not frame.height:
        raise DataError(f"{data}, {partner}: no id is in both files; write the same ids in both, or give more rows")
    names = [name for name in frame.columns if name not in ("id", "y")]
    coded = tuple(name for name in names if not frame.schema[name].is_numeric())
    every = FeatureColumns(numeric=tuple(name for name in names if name not in coded), categorical=coded)
    partner_columns, own = split_columns(every, [name for name in names if name.startswith("partner_")])
    return TwoPartyTable(
        name=data.name.split(".")[0], frame=LazyTable.of(frame), label="y", label_party=own, feature_party=partner_columns
    )


def _check_pair(label: pl.DataFrame, feature: pl.DataFrame, data: Path, partner: Path) -> None:
    """Raise DataError for rows that the join would accept, but that no figure should come from."""
    for path, frame in ((data, label), (partner, feature)):
        if twice := frame.filter(pl.col("id").is_duplicated()).get_column("id").head(1).to_list():
            raise DataError(f"{path}: id {twice[0]} is there more than once; a row per id was expected")
    if other := label.filter(~pl.col("y").is_in([0, 1]).fill_null(False)).get_column("y").head(1).to_list():
        raise DataError(f"{data}: y is {other[0]} in a row; 0 or 1 was expected in each")


def encode_ads(table: TwoPartyTable, *, seed: int, min_count: int, aligned: float = 1.0) -> SplitData:
    """Encode the rows for training and for tests. The seed draws them if the data does not say which are which.

    Only the share ``aligned`` of the training rows is kept. These are the rows that both parties have.
    """
    rows = table.frame.height
    if table.test_N is not None:
        test = np.flatnonzero(table.test_N.to_numpy())
    else:
        test = np.sort(np.random.default_rng(seed).permutation(rows)[: rows // 10])
    shared = np.arange(rows) if table.has_partner_N is None else np.flatnonzero(table.has_partner_N.to_numpy())
    training = np.setdiff1d(shared, test)
    if aligned < 1:
        training = np.sort(np.random.default_rng([seed, 1]).permutation(training)[: int(aligned * len(training))])
    return encode_split(table, training, test, EncodingConfig(numeric="rank", min_count=min_count))
