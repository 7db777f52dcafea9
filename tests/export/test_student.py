"""A student of the joint scores: what it learns, how it is measured, that it scores alone with the same result, and refusals."""

import json
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from lanes import short_lane_of
from tiny import contract_values, error_of, files_of, lay_out, of_each

from tallystick.errors import ConfigError, DataError
from tallystick.export.score_alone import score_by_student
from tallystick.export.student import SHARES, make_student
from tallystick.export.student_card import gain_kept, kept_line
from tallystick.job.predict import predict_rows
from tallystick.job.process import run_process
from tallystick.metrics import auc
from tallystick.tables.split import TEST, split_by_hash
from tallystick.training.distilled import Distilled
from tallystick.training.objective import Supervised
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
QUICK = {"training__epochs": 8, "evaluation__own_columns_baseline": False, "evaluation__bootstrap": 50}


def both_tables(rows, *, target="binary", seed=3):
    """A partner's column determines the label up to noise, and the own column the partner's, so a joint score teaches."""
    rng = np.random.default_rng(seed)
    own = rng.normal(size=rows)
    partner = own + 0.5 * rng.normal(size=rows)
    logit = 3 * partner
    label = {
        "binary": (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int64),
        "regression": 100 + 5 * partner + 3 * rng.normal(size=rows),
        "multiclass": np.digitize(partner + 0.5 * rng.normal(size=rows), [-0.6, 0.6]),
        "count": rng.poisson(np.exp(0.5 * partner)),
    }["regression" if target == "quantile" else target]
    ids = [f"id-{number:05}" for number in range(rows)]
    shared = {"id": ids, "noise": rng.normal(size=rows), "kind": rng.choice(["red", "blue"], size=rows)}
    return {"bank": pl.DataFrame({**shared, "x": own, "y": label}), "shop": pl.DataFrame({**shared, "x": partner})}


def scored_job(root, *, rows=500, target="binary", **changes):
    """Make a run of both parties, and the label party's scores of its table."""
    classes = {"type": target, **({"classes": 3} if target == "multiclass" else {})}
    contract = contract_values(PARTIES, **{**QUICK, "target": classes, **changes})
    job = lay_out(root, PARTIES, contract, both_tables(rows, target=target))
    ended = of_each(PARTIES, lambda name: run_process(*files_of(job, name), watcher=Silent()))
    assert all(isinstance(each, tuple) for each in ended.values()), ended
    file = job.home("bank") / "scores.parquet"
    outputs = {"bank": file, "shop": None}
    of_each(PARTIES, lambda name: predict_rows(*files_of(job, name), table=None, output=outputs[name], watcher=Silent()))
    return SimpleNamespace(job=job, scores=file, home=job.home("bank"), files=files_of(job, "bank"))


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    return scored_job(tmp_path_factory.mktemp("binary"))


def made(scored, name, **options):
    return make_student(*scored.files, **{"scores": scored.scores, "to": scored.home / name, "watcher": Silent(), **options})


def test_a_student_is_measured_beside_own_columns_and_scores_alone_as_it_was_measured(scored):
    figures = made(scored, "student", onnx=False)
    value = figures["metrics"]["auc"]
    assert figures["share"] in (0.0, *SHARES)
    assert set(figures["validation_losses"]) == {"0", "0.5", "1"}
    assert figures["files"] == sorted(
        ["README.md", "encoder.json", "inputs.json", "labels.json", "model.safetensors", "student.json"]
    )
    # the joint figure is that of the file's scores on the test rows, the student's that of its own scores
    folder = scored.job.runs("bank")[-1]
    test = pl.read_parquet(folder / "scores.parquet")
    assert figures["rows"]["test"] == test.height
    assert value["joint"] == pytest.approx(auc(test["label"].to_numpy(), test["score"].to_numpy()), abs=1e-4)
    output = scored.home / "alone.csv"
    said = score_by_student(scored.home / "student", scored.files[1], table=None, output=output)
    alone = pl.read_csv(output).join(pl.read_parquet(scored.home / "table.parquet"), on="id")
    assert said["rows"] == alone.height == 500
    contract = scored.files[0]
    parts_N = split_by_hash([key.encode() for key in alone["id"]], contract.split, seed=contract.seed)
    of_test = alone.filter(pl.Series(parts_N == TEST))
    assert value["student"] == pytest.approx(auc(of_test["y"].to_numpy(), of_test["score"].to_numpy()), abs=1e-4)
    line = kept_line(figures)
    assert f"auc on {test.height} test rows: own columns" in line
    assert line in (scored.home / "student" / "README.md").read_text()
    if value["kept"] is not None:
        assert value["kept"] == pytest.approx((value["student"] - value["own"]) / (value["joint"] - value["own"]))


def test_onnx_gives_the_student_s_scores(scored):
    onnxruntime = pytest.importorskip("onnxruntime")
    figures = made(scored, "exported")
    assert "model.onnx" in figures["files"]
    folder = scored.home / "exported"
    places = json.loads((folder / "inputs.json").read_text())
    assert places["embeddings"] == {}
    from tallystick.tables.encoder import Encoder

    table = pl.read_parquet(scored.home / "table.parquet")
    packed = Encoder.from_json((folder / "encoder.json").read_text()).encode(table).rows(torch.arange(table.height))
    inputs = {"numeric_BF": packed.numeric_NF.numpy(), "codes_BG": packed.categorical_NG.numpy()}
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    names = {each.name for each in session.get_inputs()}
    (logit_N,) = session.run(None, {name: value for name, value in inputs.items() if name in names})
    score_by_student(folder, scored.files[1], table=None, output=scored.home / "again.parquet")
    scores = pl.read_parquet(scored.home / "again.parquet")["score"].to_numpy()
    assert 1 / (1 + np.exp(-logit_N)) == pytest.approx(scores, abs=1e-4)


class Listening(Silent):
    """A watcher that keeps lines."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


def test_a_later_table_in_another_unit_is_scored_and_said_by_whoever_scores_it(scored):
    made(scored, "unit", onnx=False)
    later = scored.home / "unit.parquet"
    pl.read_parquet(scored.home / "table.parquet").with_columns(pl.col("x") * 1000 + 9000).write_parquet(later)
    doubt = "column 'x': in 500 of 500 rows its number is outside the training's range"
    alone = score_by_student(scored.home / "unit", scored.files[1], table=later, output=scored.home / "unit-alone.csv")
    assert [each[: len(doubt)] for each in alone["doubts"]] == [doubt]
    watchers, tables = {name: Listening() for name in PARTIES}, {"bank": later, "shop": None}
    outputs = {"bank": scored.home / "unit.csv", "shop": None}
    of_each(
        PARTIES,
        lambda name: predict_rows(*files_of(scored.job, name), table=tables[name], output=outputs[name], watcher=watchers[name]),
    )
    assert {name: sum(each.startswith(doubt) for each in watcher.said) for name, watcher in watchers.items()} == {
        "bank": 1,
        "shop": 0,
    }


@pytest.mark.parametrize("target", short_lane_of(["regression", "multiclass", "count", "quantile"], 2))
def test_every_target_has_a_student(tmp_path, target):
    scored = scored_job(tmp_path, rows=300, target=target, training__epochs=3)
    figures = made(scored, "student", onnx=False)
    headline = figures["metrics"][figures["headline"]]
    assert None not in (headline["own"], headline["student"], headline["joint"])
    score_by_student(scored.home / "student", scored.files[1], table=None, output=scored.home / "alone.parquet")
    names = [name for name in pl.read_parquet(scored.home / "alone.parquet").columns if name.startswith("score")]
    assert len(names) == (3 if target in ("multiclass", "quantile") else 1)


def test_a_distilled_loss_is_that_of_mixed_targets_by_hand():
    target_N, teacher_N = torch.tensor([0.0, 1.0, 1.0]), torch.tensor([2.0, -1.0, 0.5])
    has_score_N, index_B, logits = torch.tensor([True, True, False]), torch.tensor([2, 0, 1]), torch.tensor([0.1, -0.3, 0.7])
    labels = Supervised("binary", target_N, torch.tensor([1.0, 2.0, 3.0]))
    loss, hard = Distilled(labels=labels, teacher_N=teacher_N, has_score_N=has_score_N, share=0.25)(logits, index_B)
    mixed = torch.where(has_score_N, 0.75 * target_N + 0.25 * torch.sigmoid(teacher_N), target_N)[index_B]
    each = torch.nn.functional.binary_cross_entropy_with_logits(logits, mixed, reduction="none")
    weight_B = torch.tensor([3.0, 1.0, 2.0])
    assert loss.item() == pytest.approx(((each * weight_B).sum() / weight_B.sum()).item())
    assert torch.equal(hard, target_N[index_B])


def test_a_share_of_the_gain_is_said_only_where_joining_surely_gains():
    def compared(value, own, low, high):
        difference = {"value": value - own, "low": low, "high": high}
        return {
            "joint": {"rmse": {"value": value}},
            "local_baseline": {"rmse": {"value": own}},
            "difference": {"rmse": difference},
        }

    surely = gain_kept("rmse", "regression", compared(1.0, 2.0, -1.2, -0.8), compared(1.75, 2.0, -0.3, -0.2))
    assert surely["kept"] == pytest.approx(0.25)
    assert gain_kept("rmse", "regression", compared(1.9, 2.0, -0.3, 0.1), compared(1.8, 2.0, -0.3, -0.1))["kept"] is None
    assert gain_kept("rmse", "regression", compared(2.5, 2.0, 0.3, 0.7), compared(1.8, 2.0, -0.3, -0.1))["kept"] is None


def test_what_makes_no_student_is_refused_in_a_line(scored, tmp_path):
    _, party = scored.files
    job = scored.job
    assert "run `tallystick predict` first" in str(error_of(made_error, scored, {"scores": tmp_path / "none.csv"}))
    assert "exists already" in str(error_of(made_error, scored, {"to": tmp_path}))
    shop = make_student, *files_of(job, "shop")
    error = error_of(lambda: shop[0](*shop[1:], scores=scored.scores, to=tmp_path / "s", watcher=Silent()))
    assert isinstance(error, ConfigError)
    assert "a student is the label party's, bank" in str(error)
    table = pl.read_parquet(scored.scores)
    few, strange, other = (tmp_path / f"{name}.parquet" for name in ("few", "strange", "other"))
    table.head(40).write_parquet(few)
    error = error_of(made_error, scored, {"scores": few})
    assert isinstance(error, DataError)
    assert "linked training rows have no joint score" in str(error)
    table.drop("score").write_parquet(strange)
    assert 'has no column "score"' in str(error_of(made_error, scored, {"scores": strange}))
    table.with_columns(run_id=pl.lit("another")).write_parquet(other)
    assert "are of run another" in str(error_of(made_error, scored, {"scores": other}))
    assert "is not a student" in str(
        error_of(lambda: score_by_student(tmp_path, party, table=None, output=tmp_path / "scores.csv"))
    )


def made_error(scored, options):
    return made(scored, "refused", **options)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"alignment__method": "union"}, "alignment.method = union"), ({"alignment__duplicates": "all"}, "duplicates = all")],
)
def test_rows_without_a_key_of_their_own_make_no_student(tmp_path, changes, said):
    job = lay_out(tmp_path, PARTIES, contract_values(PARTIES, **changes), both_tables(50))
    (tmp_path / "scores.csv").write_text("id,score\n")
    files = files_of(job, "bank")
    error = error_of(lambda: make_student(*files, scores=tmp_path / "scores.csv", to=tmp_path / "s", watcher=Silent()))
    assert isinstance(error, ConfigError)
    assert said in str(error)
