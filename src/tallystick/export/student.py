"""Train a student: a network of the label party's own columns that learns from the joint model's scores, and then scores alone.

Joint training needs the other parties, and so does every joint score. A label party that may not ask them for each score lets the
joint model score the training rows once (`tallystick predict`), and trains a network of own columns on these scores and the
labels. Nothing is sent. Shapes: N positions, T test rows.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import polars as pl
import torch
from torch import Tensor

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.party_checks import check_party
from tallystick.config.table import TableConfig
from tallystick.cut.forward import SCORED_AT_A_TIME, logits_over
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.datasets import dataset_of, nothing_to_draw
from tallystick.dataset.own_rows import OwnRows
from tallystick.errors import ConfigError, DataError
from tallystick.evaluation.measure import Comparison, compare_models
from tallystick.export.half import Exported, ExportedHalf, columns_json, meaning_of, onnx_of, safetensors_of
from tallystick.export.score_alone import CODER, ENCODER, FACTS, WEIGHTS, built_student
from tallystick.export.student_card import HEADLINES, Kept, gain_kept, student_card
from tallystick.job.phases.align import linked_contract
from tallystick.job.phases.train import train_own_columns
from tallystick.job.prediction_output import RUN, SCORED_BY
from tallystick.job.run_selection import chosen_run
from tallystick.job.side_checks import check_kept
from tallystick.metrics import METRICS
from tallystick.models.folds import networks_in
from tallystick.models.split import LabelModel
from tallystick.monitoring.monitor import JOINT
from tallystick.reading import shown
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.trained import kept_encoder
from tallystick.storage import scratch_folder, write_bytes, written_folder
from tallystick.tables.encoder import Encoder
from tallystick.tables.keys import Keys, key_of, keys_of
from tallystick.tables.lazy_table import Frame
from tallystick.tables.repeats import with_summaries
from tallystick.tables.table import read_rows, read_table, require_column
from tallystick.tables.target import LabelCoder
from tallystick.training.calibration import NO_CALIBRATION
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.distilled import Distilled
from tallystick.training.objective import Objective, Supervised
from tallystick.training.screening import Screening
from tallystick.watcher import Watcher

SHARES = (0.5, 1.0)
"""Shares of a row's target that its joint score may have. Validation labels choose between these and none."""
_LEAST = 1e-6  # a probability, so that its logit is finite


class StudentFacts(TypedDict):
    """How good a student is: its run, its share of scores, its numbers of rows, and its metrics."""

    run: str
    rows: dict[str, int]
    share: float
    validation_losses: dict[str, float | None]
    headline: str
    metrics: dict[str, Kept]


class StudentFigures(StudentFacts):
    """How good a student is, and where it is."""

    folder: str
    files: list[str]


def make_student(
    contract: Contract,
    party: PartyFile,
    *,
    scores: Path,
    to: Path,
    run: str | None = None,
    onnx: bool = True,
    watcher: Watcher,
) -> StudentFigures:
    """Train a network of own columns on the labels and on joint scores, measure it, and write it into a new folder.

    Threat model: none; nothing is sent. No formal guarantee: weights reveal information about the rows and labels that trained
    them, and, like joint scores, about the feature parties' columns.

    Args:
        contract: contract of the run.
        party: the label party's file, with the run's table.
        scores: output of `tallystick predict` for that table, .csv or .parquet.
        to: the new folder.
        run: id, folder name or path of the run; by default the latest complete one.
        onnx: whether ONNX is written in addition to the weights.
        watcher: shown progress.

    Raises ConfigError for another party than the label party, a contract whose rows have no unique key, scores of another run,
    and an existing folder; DataError for a table that is not the run's, or training rows without a score.
    """
    check_party(contract, party, network=False)
    if contract.role_of(party.party) != "label":
        raise ConfigError(f"party = {party.party}: has no joint scores; a student is the label party's, {contract.label_party}")
    if contract.linkage.imputes or contract.linkage.similar:
        raise ConfigError(
            f"alignment.method = {contract.alignment.method}: a student learns rows that all parties have; intersect"
        )
    if contract.alignment.duplicates == "all":
        raise ConfigError("alignment.duplicates = all: several rows have one key, by which scores could not be told apart")
    if party.party in contract.model.bottoms or contract.model.top is not None:
        raise ConfigError("model: a student is a built-in network; leave bottoms and top of your own out of the contract")
    if contract.target.type == "survival":
        raise ConfigError(
            "target.type = survival: a student learns labels mixed with scores, and there is no mean of such labels"
        )
    if contract.target.type == "multilabel":
        raise ConfigError(
            "target.type = multilabel: a student learns one label; train one per label, each with a contract of its own"
        )
    if to.exists():
        raise ConfigError(f"--to {to}: exists already; name a folder that is to be made")
    if not scores.is_file():
        raise ConfigError(
            f"--scores {scores}: there is no such file; let all parties run `tallystick predict` first, on the table of the run"
        )
    folder = chosen_run(contract, party, run, say=watcher.say)
    with folder.locked():
        rows = _Rows.of(contract, party, folder, scores)
    watcher.phase("training")
    own = _trained(rows, None, "own columns", watcher)
    students = {share: _trained(rows, share, f"a student of {share:g} of the scores", watcher) for share in SHARES}
    losses = {0.0: own.loss} | {share: student.loss for share, student in students.items()}
    share = (
        min(losses, key=lambda each: np.inf if (loss := losses[each]) is None else loss) if own.loss is not None else SHARES[0]
    )
    choice = own if share == 0 else students[share]
    figures = _figures(rows, own, choice)
    exported = Exported(
        contract=contract,
        origin=folder.origin,
        half=ExportedHalf(choice.model, cuts=0, calibration=NO_CALIBRATION).eval(),
        encoder=rows.encoder,
        widths={},
        meaning=meaning_of(rows.coder),
    )
    facts = StudentFacts(
        run=folder.run_id,
        share=share,
        validation_losses={f"{each:g}": loss for each, loss in losses.items()},
        rows={"training": len(rows.own.train_N), "validation": len(rows.own.validation_N), "test": len(rows.test_T)},
        headline=HEADLINES[contract.target.type],
        metrics=figures,
    )
    with written_folder(to) as new:
        if onnx:
            onnx_of(exported, new / "model.onnx")
        write_bytes(new / WEIGHTS, safetensors_of(exported))
        write_bytes(new / "inputs.json", columns_json(exported).encode())
        write_bytes(new / ENCODER, json.dumps(json.loads(rows.encoder.to_json()), indent=1).encode(), private=True)
        write_bytes(new / CODER, rows.coder.to_json().encode(), private=True)
        card_facts = {"contract": contract.model_dump(mode="json", exclude_unset=True), "networks": networks_in(choice.model)}
        write_bytes(new / FACTS, json.dumps({**card_facts, **facts}, indent=1).encode(), private=True)
        write_bytes(new / "README.md", student_card(contract, exported, facts).encode())
    files = sorted(path.name for path in to.iterdir())
    return {"folder": str(to), "files": files, **facts}


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The rows of a run for training own columns, with the joint scores.

    Args:
        contract: contract of their training.
        party: the label party's file.
        own: all own rows, with the exact labels.
        encoder: encoder of own columns.
        coder: coder of labels.
        teacher_N: joint logits by position; 0 if there is no score.
        has_score_N: whether there is a score.
        test_T: test positions with a score.
    """

    contract: Contract
    party: PartyFile
    own: Dataset
    encoder: Encoder
    coder: LabelCoder
    teacher_N: Tensor
    has_score_N: Tensor
    test_T: Tensor

    @classmethod
    def of(cls, contract: Contract, party: PartyFile, folder: RunFolder, scores: Path) -> "_Rows":
        frame = with_summaries(read_rows(party.table_at(None), party, trained=kept_encoder(folder)), party, contract.alignment)
        keys = keys_of(frame, party, contract.alignment)
        check_kept(party, keys, folder)
        saved = folder.load_alignment()
        if saved is None:
            raise DataError(f"{folder.path} holds no alignment; it does not look like a finished run")
        agreed, contract = contract, linked_contract(contract.of_own_columns(), party.party, saved[1])
        own_rows = OwnRows(
            party=party,
            is_label=True,
            frame=frame,
            keys=keys,
            alignment=saved[1],
            numbers=contract.model.numeric,
            screens=contract.screens(party.party),
        )
        dataset = dataset_of(contract.linkage).of(contract, own_rows, [], secret_seed=nothing_to_draw)
        own = dataset.own_part()
        if own.encoder is None:
            raise DataError(f"party {party.party} has no usable column of its own, and a student has nothing else")
        coder = own.known_labels.coder
        rows_N = own_rows.rows_at(torch.arange(len(own.known_labels.true_N)))
        teacher_N, has_score_N = _teacher(agreed, party, folder, frame, keys, rows_N, coder, scores)
        linked = len(own_rows.alignment)
        lacking = int((~has_score_N[own.train_N[own.train_N < linked].cpu()]).sum())
        if lacking:
            raise DataError(
                f"--scores {scores}: {lacking} of {int((own.train_N < linked).sum())} linked training rows have no joint score; "
                "let all parties run `tallystick predict` on the tables of the run"
            )
        device = own.train_N.device
        has_score_N = has_score_N.to(device)
        test_T = own.test_N[has_score_N[own.test_N]]
        if not len(test_T):
            raise DataError(
                "split.test: no test row has a joint score, so nothing can be said of a student; give split.test a value"
            )
        return cls(
            contract=contract,
            party=party,
            own=own,
            encoder=own.encoder,
            coder=coder,
            teacher_N=teacher_N.to(device),
            has_score_N=has_score_N,
            test_T=test_T,
        )

    def objective(self, share: float | None) -> Objective:
        """Build the loss from labels alone, or with this share of the scores."""
        labels, own = self.own.known_labels, self.own
        each: Objective = Supervised(labels.coder.type, labels.true_N, labels.weight_N, levels=labels.coder.levels)
        if share is not None:
            assert isinstance(each, Supervised)
            each = Distilled(labels=each, teacher_N=self.teacher_N, has_score_N=self.has_score_N, share=share)
        return own.folds.objective(each) if own.folds is not None else each


def _teacher(
    contract: Contract,
    party: PartyFile,
    folder: RunFolder,
    frame: Frame,
    keys: Keys,
    rows_N: "np.ndarray[Any, np.dtype[np.int64]]",
    coder: LabelCoder,
    scores: Path,
) -> tuple[Tensor, Tensor]:
    """Return the joint logits at each position, and whether there is one. Raises ConfigError for scores of something else."""
    table = read_table(TableConfig(path=scores), text=party.text_columns)
    names = coder.score_names
    if lacking := [name for name in names if name not in table.columns]:
        raise ConfigError(f"--scores {scores}: has no column {shown(lacking[0])}; give what `tallystick predict` wrote")
    if RUN in table.columns and (others := set(require_column(table, RUN, use="scores").unique()) - {folder.run_id}):
        raise ConfigError(f"--scores {scores}: are of run {min(others)}, and the run here is {folder.run_id}; give --run")
    scored = pl.DataFrame(
        {
            "key": key_of(table, columns=party.keys, alignment=contract.alignment),
            **{name: require_column(table, name, use="scores").cast(pl.Float64) for name in names},
        }
    )
    if SCORED_BY in table.columns:
        scored = scored.filter(require_column(table, SCORED_BY, use="scores") == JOINT)
    key = key_of(frame, columns=party.keys, alignment=contract.alignment).gather(keys.rows_R[rows_N])
    joined_rows = pl.DataFrame({"key": key}).join(
        scored.drop_nulls().unique("key", keep="last"), on="key", how="left", maintain_order="left"
    )
    has_score_N = joined_rows.get_column(names[0]).is_not_null()
    values_NC = torch.from_numpy(joined_rows.select(pl.col(names).fill_null(0.5)).to_numpy().copy())
    if coder.type == "multiclass":
        logits = values_NC.clamp(min=_LEAST).log()
    elif coder.type == "binary":
        logits = torch.logit(values_NC[:, 0], eps=_LEAST)
    elif coder.type == "count":
        logits = (values_NC[:, 0] / coder.mean).clamp(min=_LEAST).log()
    else:
        logits = (values_NC.squeeze(1) - coder.mean) / coder.deviation  # (N,), or (N, L) for several levels
    return logits.to(torch.float32), torch.from_numpy(has_score_N.to_numpy().copy())


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """A network of own columns, and its loss on the labels of validation rows; None if there are none."""

    model: LabelModel
    loss: float | None


def _trained(rows: _Rows, share: float | None, what: str, watcher: Watcher) -> _Trained:
    watcher.say(f"training {what}")
    model = built_student(rows.contract, rows.party, rows.encoder, networks=rows.own.networks)

    def progress(_what: str, completed: int, total: int) -> None:
        watcher.progress(what, completed, total)

    with scratch_folder() as place:
        state = train_own_columns(
            rows.contract,
            rows.own,
            model,
            store=CheckpointStore(place),
            screening=Screening(seed=rows.contract.seed),
            progress=progress,
            objective=rows.objective(share),
        )
    return _Trained(model=model, loss=state.best_loss)


def _figures(rows: _Rows, own: _Trained, student: _Trained) -> dict[str, Kept]:
    """Measure own columns, the student and the joint model on the same test rows."""
    labels = rows.own.known_labels
    true_T, weights_T = labels.units(rows.test_T)
    batches = torch.split(rows.test_T, SCORED_AT_A_TIME)

    def predictions(logits_T: Tensor) -> Any:
        return labels.coder.predictions(logits_T.cpu().numpy())

    def compared(better: Any, worse: Any) -> Comparison:
        return compare_models(
            rows.contract.target.type,
            true_T,
            better,
            worse,
            weights=weights_T,
            levels=labels.coder.levels,
            evaluation=rows.contract.evaluation,
            generator=np.random.default_rng(rows.contract.seed),
        )

    with torch.no_grad():
        own_T, student_T = (predictions(logits_over(each.model, rows.own.features_at, batches, [])) for each in (own, student))
    joint, alone = compared(predictions(rows.teacher_N[rows.test_T]), own_T), compared(student_T, own_T)
    return {name: gain_kept(name, rows.contract.target.type, joint, alone) for name in METRICS[rows.contract.target.type]}
