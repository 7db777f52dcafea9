"""Read Kaggle's Criteo and Avazu files, written here, and the real sample if it is beside the repository."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tallystick.errors import DataError
from tallystick_experiments.catalogue.clicks import AVAZU_CATEGORICAL, CRITEO_NUMERIC, encode_clicks, give_columns, read_clicks

SHARED = Path(__file__).parents[3] / "shared" / "data"
AVAZU_HEADER = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,"
    "device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
)


def test_criteo_gzipped_or_not_and_by_folder(tmp_path: Path, criteo_lines: Callable[[int], str]) -> None:
    text = criteo_lines(50)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "train.txt").write_text(text)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "train.tsv.gz").write_bytes(gzip.compress(text.encode()))
    plain, packed = read_clicks(tmp_path / "a"), read_clicks(tmp_path / "b" / "train.tsv.gz")
    assert plain.name == "criteo"
    rows = plain.frame.collect()
    assert rows.equals(packed.frame.collect())
    assert rows.shape == (50, 40)
    first = text.split("\n")[0].split("\t")
    assert [("" if value is None else str(value)) for value in rows.row(0)] == first
    assert read_clicks(tmp_path / "a", limit=7).frame.height == 7


def test_avazu(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(
        AVAZU_HEADER + "\n1,0,14102123," + ",".join("1" * 21) + "\n2,1,14102100," + ",".join("2" * 21) + "\n"
    )
    table = read_clicks(tmp_path)
    assert table.name == "avazu"
    assert table.feature_party.categorical == AVAZU_CATEGORICAL
    assert table.frame.get_column("hour_of_day").to_list() == ["23", "00"]
    assert table.frame.get_column("click").to_list() == [0, 1]


def test_other_files_are_refused(tmp_path: Path, criteo_lines: Callable[[int], str]) -> None:
    with pytest.raises(DataError, match="holds 0 click files"):
        read_clicks(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        read_clicks(tmp_path / "train.txt")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="neither Kaggle's Criteo file"):
        read_clicks(tmp_path)
    (tmp_path / "other.csv").write_text(criteo_lines(3).replace("\t", "\tx", 1))  # text instead of a number
    with pytest.raises(DataError, match="not Kaggle's Criteo format"):
        read_clicks(tmp_path)


def test_split_and_encoding(tmp_path: Path, criteo_lines: Callable[[int], str]) -> None:
    (tmp_path / "train.txt").write_text(criteo_lines(400))
    table = read_clicks(tmp_path)
    data = encode_clicks(table, seed=3)
    assert (len(data.training), len(data.test)) == (360, 40)
    again, other = encode_clicks(table, seed=3), encode_clicks(table, seed=4)
    assert data.training_labels_N.tolist() == again.training_labels_N.tolist() != other.training_labels_N.tolist()
    total = float(data.training_labels_N.sum() + data.test_labels_T.sum())
    assert total == table.frame.get_column("label").sum()
    shared = give_columns(table, 6)
    theirs, ours = shared.feature_party, shared.label_party
    assert set(theirs.numeric + theirs.categorical).isdisjoint(ours.numeric + ours.categorical)
    assert len(theirs.numeric + theirs.categorical) == 39 - 6
    with pytest.raises(DataError, match="cannot have 30 columns"):
        give_columns(table, 30)


def test_numbers_squeezed_into_the_unit_interval(tmp_path: Path, criteo_lines: Callable[[int], str]) -> None:
    (tmp_path / "train.txt").write_text(criteo_lines(400))
    table = read_clicks(tmp_path)
    data = encode_clicks(table, seed=3, unit_numbers=True)
    order_N = np.random.default_rng(3).permutation(400)  # as the split draws it
    raw_NF = table.frame.collect().select(CRITEO_NUMERIC).fill_null(0).to_numpy().astype(np.float64)
    training_NF, test_TF = raw_NF[order_N[40:]], raw_NF[order_N[:40]]
    low, high = training_NF.min(axis=0), training_NF.max(axis=0)
    for found, expected in ((data.training, training_NF), (data.test, test_TF)):
        assert found.unpacked().numeric_NF.shape == expected.shape  # nothing shows that a number was missing
        assert np.allclose(found.unpacked().numeric_NF.numpy(), np.clip((expected - low) / (high - low), 0, 1), atol=1e-6)


@pytest.mark.parametrize(("name", "rows", "rate"), [("criteo", 80_000, 0.2245), ("avazu", 9_999, 0.1706)])
def test_real_samples(name: str, rows: int, rate: float) -> None:
    if not (SHARED / name).exists():
        pytest.skip(f"no {name} sample beside the repository")
    table = read_clicks(SHARED / name)
    assert (table.name, table.frame.height) == (name, rows)
    assert table.frame.get_column(table.label).mean() == pytest.approx(rate, abs=5e-5)


def test_kaggles_own_folder_and_a_sample_of_all_rows(tmp_path: Path, criteo_lines: Callable[[int], str]) -> None:
    lines = criteo_lines(300).splitlines(keepends=True)
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress("".join(lines).encode()))
    (tmp_path / "test.txt").write_text("".join(line.split("\t", 1)[1] for line in lines))  # Kaggle's has no label
    (tmp_path / "readme.txt").write_text("what the columns are")
    whole = read_clicks(tmp_path).frame.collect()
    drawn = read_clicks(tmp_path, limit=60).frame.collect()
    assert (whole.height, drawn.height) == (300, 60)
    numbered = whole.with_row_index("row").join(drawn, on=whole.columns, how="semi", nulls_equal=True)
    assert numbered.height >= 60  # equal rows
    # Of 60 rows drawn from 300 none in the last half has a chance of 10^-21.
    assert numbered.get_column("row").max() >= 150
    (tmp_path / "train.csv").write_text("")
    with pytest.raises(DataError, match=r"2 click files: train.csv, train.txt.gz"):
        read_clicks(tmp_path)
