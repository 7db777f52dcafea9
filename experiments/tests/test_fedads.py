"""FedAds' Table 4 on small made-up data: formats, who has which columns, and the attack compared with its definition."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from tallystick.config.party import SequenceConfig
from tallystick.errors import ConfigError, DataError
from tallystick.models.normalization import BatchNorm
from tallystick.tables.categories import MISSING
from tallystick_experiments.catalogue.ads import TRAINING_FILE, UNALIGNED_FILE, encode_ads, read_ads, read_by_kind
from tallystick_experiments.fedads import defenses as fedads
from tallystick_experiments.fedads import unaligned
from tallystick_experiments.fedads.pairs import PairedByClass
from tallystick_experiments.fedads.unaligned_data import share_out
from tallystick_experiments.stats import groups

SMALL = fedads.Setting(plan=fedads.TrainingPlan(epochs=1, batch_size=64))


@pytest.fixture
def criteo(tmp_path: Path, criteo_lines: Callable[[int], str]) -> Path:
    path = tmp_path / "train.txt"
    path.write_text(criteo_lines(600))
    return path


@pytest.fixture
def fedads_folder(tmp_path: Path) -> Path:
    """Return the published files' form: every cell is a list of one word in quotes."""
    rng = np.random.default_rng(0)
    names = [*(f"l_i_fea_{i}" for i in range(1, 11)), *(f"l_u_fea_{i}" for i in range(1, 7)), "l_c_fea", "f_u_fea_1", "f_c"]
    for file, rows in (("sample_train_aligned.csv", 300), ("sample_test.csv", 80)):
        label_N = rng.random(rows) < 0.3
        frame = pl.DataFrame(
            {"sample_id": [f"s{i}" for i in range(rows)], "label": [f"['{int(y)}']" for y in label_N]}
            | {name: [f"['{v}']" for v in rng.integers(0, 5, rows) + 3 * (label_N if name == "f_c" else 0)] for name in names}
        )
        frame.write_csv(tmp_path / file)
    return tmp_path


def test_fedads_own_files_keep_their_test_rows_and_leave_the_time_of_conversion_out(fedads_folder: Path) -> None:
    table = read_ads(fedads_folder)
    assert table.label_party.categorical == (*(f"l_i_fea_{i}" for i in range(1, 11)), *(f"l_u_fea_{i}" for i in range(1, 7)))
    assert table.feature_party.categorical == ("f_u_fea_1", "f_c")
    assert set(table.frame.get_column("f_c")) <= {str(value) for value in range(8)}
    data = encode_ads(table, seed=1, min_count=1)
    assert data.own_shape is not None
    assert (len(data.training), len(data.test)) == (300, 80)
    assert (len(data.shape.cardinalities), len(data.own_shape.cardinalities)) == (2, 16)
    raw = [pl.read_csv(fedads_folder / f"sample_{name}.csv") for name in ("train_aligned", "test")]
    assert data.training_labels_N.tolist() == [float(cell == "['1']") for cell in raw[0].get_column("label")]
    assert data.test_labels_T.tolist() == [float(cell == "['1']") for cell in raw[1].get_column("label")]


def test_fedads_rows_without_partner_are_the_unaligned_ones(fedads_folder: Path) -> None:
    aligned = pl.read_csv(fedads_folder / TRAINING_FILE, infer_schema=False)
    ours = aligned.drop("f_u_fea_1", "f_c").head(200)
    ours.write_csv(fedads_folder / UNALIGNED_FILE)
    table = read_by_kind(fedads_folder)
    assert table.frame.height == 300 + 200 + 80
    rows = share_out(table, seed=3)
    held = len(rows.validation_N)
    assert held == 37  # an eighth of the aligned rows
    assert set(rows.aligned_N.tolist()) | set(rows.validation_N.tolist()) == set(range(300))
    assert rows.unaligned_N.sort().values.tolist() == list(range(300, 500))
    assert rows.test_N.tolist() == list(range(500, 580))
    for part_N, given in ((rows.unaligned_N, 0), (torch.cat([rows.aligned_N, rows.test_N]), 1)):
        missing = rows.theirs.rows(part_N).categorical_NG == MISSING
        assert float(missing.float().mean()) == 1 - given
    assert "ORALE" not in unaligned.chosen_of(table, [])
    data = encode_ads(table, seed=1, min_count=1)
    assert len(data.training) == 300
    ours.drop("label").write_csv(fedads_folder / UNALIGNED_FILE)
    with pytest.raises(DataError, match=r"not FedAds' .*sample_train_nonaligned\.csv"):
        read_ads(fedads_folder)


@pytest.fixture
def with_sequences(fedads_folder: Path) -> Path:
    """Make the paper's kind of data: users with several rows, and what they bought and clicked as lists of several items."""
    rng = np.random.default_rng(1)
    for file in (TRAINING_FILE, "sample_test.csv"):
        frame = pl.read_csv(fedads_folder / file, infer_schema=False)
        listed = [str([f"{item}" for item in rng.integers(0, 5, rng.integers(0, 4))]) for _ in range(frame.height)]
        user = [f"['{number}']" for number in rng.integers(0, 60, frame.height)]
        frame = frame.with_columns(l_u_fea_5=pl.Series(listed), f_u_fea_1=pl.Series(listed), l_u_fea_1=pl.Series(user))
        frame.write_csv(fedads_folder / file)
    return fedads_folder


def test_fedads_columns_that_list_several_items_are_sequences(with_sequences: Path) -> None:
    (with_sequences / "sample_test.csv").rename(with_sequences / "test.csv")  # as others have it
    table = read_by_kind(with_sequences)
    assert table.label_sequences == {"l_u_fea_5": SequenceConfig(separator=",", target="l_i_fea_1")}
    assert table.feature_sequences == {"f_u_fea_1": SequenceConfig(separator=",")}
    assert "l_u_fea_5" not in table.label_party.categorical
    assert table.feature_party.categorical == ("f_c",)
    assert "l_c_fea" not in (*table.label_party.categorical, *table.feature_party.categorical)
    rows = share_out(table, seed=1)
    (own,), (theirs,) = rows.own_shape.sequences, rows.their_shape.sequences
    assert (own.codes, own.has_target, theirs.codes, theirs.has_target) == (2 + 5, True, 2 + 5, False)
    raw = pl.read_csv(with_sequences / TRAINING_FILE).get_column("f_u_fea_1")[:50]
    counts = [0 if cell == "[]" else cell.count(",") + 1 for cell in raw]
    codes = rows.theirs.rows(torch.arange(50)).categorical_NG[:, -theirs.columns :]
    assert (codes != MISSING).sum(dim=1).tolist() == counts
    swapped = read_ads(with_sequences, swapped=True)
    assert (swapped.label_sequences, swapped.feature_sequences) == (table.feature_sequences, table.label_sequences)
    data = encode_ads(swapped, seed=1, min_count=1)
    assert data.training.rows(torch.arange(3)).categorical_NG.shape[1] == len(data.shape.codes)


def test_fedads_trains_the_papers_networks_on_rows_of_whole_users(with_sequences: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = read_by_kind(with_sequences)
    rows = share_out(table, seed=1, by_users=True)
    users = table.frame.get_column("l_u_fea_1").to_numpy()
    parts = [rows.test_N, rows.validation_N, rows.aligned_N, rows.unaligned_N]
    assert sorted(torch.cat(parts).tolist()) == list(range(380))
    met = [set(users[part_N]) for part_N in parts]
    assert [len(part) for part in met] == [12, 6, 8, 34]  # of 60: a fifth, a tenth, a fifth of the rest
    assert sum(map(len, met)) == len(set.union(*met))
    monkeypatch.setattr(unaligned, "MOST_EPOCHS", 1)
    found = unaligned.unaligned_rows_experiment(
        data=with_sequences, seeds=[1], only=["VanillaVFL", "Diffu-AT"], by_users=True
    ).run()
    assert found.about["parts"] == "by users"
    assert "batch normalisation per branch" in found.about["networks"]
    assert [row["method"] for row in found.rows] == ["VanillaVFL", "Diffu-AT"]
    assert all(0 < row["auc"] < 1 for row in found.rows)


def test_rows_without_partner_are_left_out_where_their_user_is_for_test(with_sequences: Path) -> None:
    aligned = pl.read_csv(with_sequences / TRAINING_FILE, infer_schema=False)
    aligned.drop("f_u_fea_1", "f_c").head(200).write_csv(with_sequences / UNALIGNED_FILE)
    table = read_by_kind(with_sequences)
    rows = share_out(table, seed=1, by_users=True)
    assert table.has_partner_N is not None
    has_partner = torch.from_numpy(table.has_partner_N.to_numpy())
    assert not has_partner[rows.unaligned_N].any()
    assert has_partner[torch.cat([rows.test_N, rows.validation_N, rows.aligned_N])].all()
    users = table.frame.get_column("l_u_fea_1").to_numpy()
    held = set(users[torch.cat([rows.test_N, rows.validation_N])])
    assert not held & set(users[torch.cat([rows.unaligned_N, rows.aligned_N])])


def test_data_without_users_is_not_split_by_them(criteo: Path) -> None:
    with pytest.raises(ConfigError, match="--by-users: criteo has no column that tells users apart"):
        unaligned.unaligned_rows_experiment(data=criteo, seeds=[1], by_users=True).run()


def test_swapping_gives_each_party_the_others_columns(fedads_folder: Path, criteo: Path) -> None:
    for path in (fedads_folder, criteo):
        plain, swapped = read_ads(path), read_ads(path, swapped=True)
        assert plain.label_party == swapped.feature_party
        assert plain.feature_party == swapped.label_party


def test_ijcai_rows_marked_as_test_are_test_rows(tmp_path: Path) -> None:
    path = tmp_path / "ijcai.csv"
    path.write_text(
        "is_trade,item_id,shop_score_service,user_id,context_page_id,part\n"
        "0,1,0.5,7,1,tr_2w\n1,2,0.6,8,2,tr_2w\n0,1,,7,1,te_8k\n1,2,0.9,8,1,te_8k\n"
    )  # fmt: skip
    table = read_ads(path)
    assert table.feature_party.categorical == ("user_id", "context_page_id")
    data = encode_ads(table, seed=1, min_count=1)
    assert data.test_labels_T.tolist() == [0.0, 1.0]


@pytest.mark.long
def test_table_4_beside_the_paper(criteo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ladders = {name: fedads.LADDERS[name] for name in ("marvell", "mixpro")}
    monkeypatch.setattr(fedads, "LADDERS", ladders)
    found = fedads.fedads_defenses_experiment(data=criteo, seeds=(1,), setting=SMALL, limit=400).run()
    _, table = found.page().tables[:2]  # of the linear fusion
    columns = {name: place for place, name in enumerate(table.columns)}
    rows = {row[0]: row for row in table.rows}
    assert [len(each.rows) for each in found.page().tables] == 2 * [1 + len(ladders), len(fedads.methods())]
    assert rows["no defence"][columns["change %"]] == 0
    assert rows["Marvell, s = 8"][columns["paper, change %"]] == -24.7
    # one linear layer: gradients are on one line, and the sign is the label
    assert rows["no defence"][columns["direction-1"]].value > 0.99
    assert rows["MixPro, cosine 0.866"][columns["norm"]].value > rows["Marvell, s = 8"][columns["norm"]].value
    before = rows["no defence"][columns["symmetric"]].value
    for row in table.rows:
        assert row[columns["change %"]] == pytest.approx(100 * (row[columns["symmetric"]].value / before - 1), abs=1e-6)


def test_table_4_in_the_papers_setting_has_a_fifth_of_the_rows_and_normalises(criteo: Path) -> None:
    setting = replace(SMALL, aligned=0.2, normalised=True)
    found = fedads.fedads_defenses_experiment(data=criteo, seeds=(1,), setting=setting, only=["label-dp"]).run()
    assert found.about["training_rows"] == 108  # of 540
    assert {row["fusion"] for row in found.rows} == {"linear"}
    at_price, table = found.page().tables
    assert [row[0] for row in table.rows] == [row.name for row in fedads.methods() if row.family in ("", "label-dp")]
    assert [row[0] for row in at_price.rows] == [fedads.NONE, "label-dp"]
    data = encode_ads(read_ads(criteo), seed=1, min_count=4, aligned=0.2)
    network = fedads._network(data, (), setting, 1)
    assert any(isinstance(part, BatchNorm) for part in network.bottom.modules())
    with pytest.raises(ConfigError, match="--only labeldp: is not a defence of the table"):
        fedads.fedads_defenses_experiment(data=criteo, seeds=(1,), only=["labeldp"]).run()
    with pytest.raises(ConfigError, match=r"--aligned 0\.0: expected a share"):
        replace(setting, aligned=0.0)


@pytest.mark.parametrize("own_class", [True, False])
def test_partners_are_of_the_class_that_is_asked_for_and_every_one_of_them_comes_up(own_class: bool) -> None:
    labels_B = (torch.arange(8) % 4 == 0).float()
    generator, met = torch.Generator().manual_seed(1), set[tuple[int, int]]()
    for _ in range(200):  # one of 30 pairs is missed by chance less often than 30 (5/6)^200 = 1e-14
        partner_B = PairedByClass(own_class=own_class).partners(labels_B, generator)
        met |= set(enumerate(partner_B.tolist()))
    rows = range(8)
    wanted = {(row, other) for row in rows for other in rows if (labels_B[row] == labels_B[other]) == own_class}
    assert met == {(row, other) for row, other in wanted if row != other}


def test_a_row_that_has_no_partner_of_the_class_takes_any_other() -> None:
    partner_B = PairedByClass(own_class=True).partners(torch.tensor([1.0, 0.0, 0.0]), torch.Generator().manual_seed(1))
    assert partner_B[0] in (1, 2)


def test_the_attack_sees_every_training_row_once_after_training(criteo: Path) -> None:
    data = encode_ads(read_ads(criteo), seed=1, min_count=1)
    network = fedads._network(data, (), SMALL, 1)
    list(network.epochs())
    (step,) = fedads._all_rows(network)
    assert torch.equal(step.rows_B, torch.arange(len(data.training)))
    with torch.no_grad():
        assert torch.equal(step.sent_BD, network.bottom(data.training.rows(step.rows_B)))


def test_unknown_data_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"neither Kaggle's Criteo"):
        read_ads(path)
    with pytest.raises(DataError, match="does not exist"):
        read_ads(tmp_path / "absent.csv")


def test_defences_are_compared_where_they_cost_the_same() -> None:
    def made(method: str, seed: int, auc: float, leak: float) -> dict[str, object]:
        attacks = dict.fromkeys(fedads.BESIDE, 0.5) | {"norm": 1 - leak}
        return {"fusion": "linear", "method": method, "seed": seed, "test_auc": auc, "leak_folded": 0.5, "attacks": attacks}

    names = [row.name for row in fedads.methods() if row.family in ("", "isotropic")]
    costs, leaks = [0.0, 0.01, 0.03, 0.2], [0.9, 0.8, 0.6, 0.5]
    runs = [
        made(name, seed, 0.7 + 0.01 * seed - cost, leak)
        for seed in (1, 2)
        for name, cost, leak in zip(names, costs, leaks, strict=True)
    ]
    between, *figures = fedads.at_price(groups(runs, "method"), "isotropic", price=0.015)
    assert between == f"{names[1]} to {names[2]}"
    found = dict(zip(fedads.FIGURES, figures, strict=True))
    assert found["strongest"].value == pytest.approx(0.75)  # a quarter of the way from .8 to .6
    assert found["norm"].value == pytest.approx(0.25)
    dear, *none = fedads.at_price(groups(runs, "method"), "isotropic", price=0.3)
    assert dear == "at most 0.2000"
    assert set(none) == {None}
