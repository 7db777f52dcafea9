"""Make FedAds' Table 3: the value of rows that only the label party has, by method, next to the paper's numbers.

Section 5.1. The steps and methods of a job (training/single_process.py, training/unaligned/) train every network. All methods of
a seed see the same rows, start from the same weights if they have the same modules, and are stopped by the same validation rows,
which are evaluated several times an epoch. VanillaVFL is at its best after a few hundred steps, and one evaluation an epoch would
lose more than the difference between the methods.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from tallystick.config.sections import NetworkModel, TrainingConfig
from tallystick.config.unaligned import CLASSES, NoneConfig, UnalignedKeys
from tallystick.cut.forward import FeatureSource
from tallystick.errors import ConfigError
from tallystick.metrics import ace, auc
from tallystick.models.branches import BranchedModel
from tallystick.models.build import BranchParts, build_bottom, width_of
from tallystick.models.split import LabelModel
from tallystick.tables.features import Features
from tallystick.training.calibration import fit_line
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.objective import Objective, Supervised
from tallystick.training.plan import Batch, Schedule
from tallystick.training.single_process import SplitNetwork
from tallystick.training.step_rule import PLAIN, StepRule
from tallystick.training.unaligned.method import OwnPart, UnalignedMethod
from tallystick.training.unaligned.method_table import method_of
from tallystick.training.unaligned.schedule import rows_ratio, scheduled
from tallystick_experiments.catalogue.ads import USER, read_by_kind
from tallystick_experiments.catalogue.table import TwoPartyTable
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.fedads.unaligned_data import ALIGNED, Rows, share_out
from tallystick_experiments.grid import Latest, grid
from tallystick_experiments.page import Benchmark, Cell, seeds_of
from tallystick_experiments.pivot import LineCell, Pivot, mean
from tallystick_experiments.stats import Row, at, change, groups, spread

CHECKS = 4  # evaluations of the validation rows for each pass over the joint batches
PATIENCE = 12  # evaluations without a better loss
MOST_EPOCHS = 60
PASS = 4096  # rows of a pass without training
BINS = 20
TRAINING = TrainingConfig(epochs=MOST_EPOCHS, batch_size=256, learning_rate=1e-3, patience=2, checkpoint_every=1_000_000)


@dataclass(frozen=True, kw_only=True)
class Networks:
    """Hold both parties' networks, and a description of them."""

    label: NetworkModel
    feature: NetworkModel
    words: str


SMALL = Networks(
    label=NetworkModel(embedding_width=4, embedding_scale=0.1, hidden=(128, 64, 64), cut_after=2),
    feature=NetworkModel(embedding_width=4, embedding_scale=0.1, hidden=(64, 32), cut_after=2),
    words="embeddings 4, label party [128, 64], feature party [64, 32], one hidden layer of 64 on top",
)
PAPER = Networks(
    label=NetworkModel(embedding_width=8, embedding_scale=0.1, hidden=(256, 128), cut_after=2, normalization="batch"),
    feature=NetworkModel(embedding_width=8, embedding_scale=0.1, hidden=(128, 32), cut_after=2, normalization="batch"),
    words="embeddings 8, label party [256, 128], feature party [128, 32], batch normalisation per branch, tops of one layer",
)
"""FedAds, section 5.1.4."""


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """Define a row of the table: its training, and FedAds' AUC and NLL if it has the row.

    Args:
        name: its name in the table.
        settings: the contract's settings for unaligned rows; the default leaves them out.
        joint: which training rows have both parties' columns; "none" is the label party alone, "all" the bound.
        paper: AUC and NLL.
        kind: a row of the paper, an ablation that the paper leaves out, ours, or a probe, which is trained only if it is named.
        frozen: whether joint training keeps the label party's bottom as it was at the start.
    """

    name: str
    settings: UnalignedKeys = field(default_factory=NoneConfig)
    joint: str = "aligned"
    paper: tuple[float, float] | None = None
    kind: str = "FedAds"
    frozen: bool = False


@dataclass(frozen=True, kw_only=True)
class Frozen(StepRule):
    """Apply another step rule without training the label party's bottom, so that the top finds what it knew at the start.

    This is a benchmark's probe of the time before joint training. Threat model and guarantees of a run are those of
    ``step_rule``.
    """

    step_rule: StepRule

    @property
    def rates(self) -> Mapping[str, float]:
        """Return rate 0 for the bottom, and the step rule's own rates for the rest."""
        return {**self.step_rule.rates, "bottom": 0.0}

    def start(self, model: LabelModel, own: FeatureSource, train_N: Tensor) -> None:
        """Start the step rule."""
        self.step_rule.start(model, own, train_N)

    def loss(
        self, model: LabelModel, objective: Objective, batch: Batch, cuts_BD: Sequence[Tensor], own: Features
    ) -> tuple[Tensor, Tensor]:
        """Compute the step rule's loss."""
        return self.step_rule.loss(model, objective, batch, cuts_BD, own)


def _row(name: str, method: str, paper: tuple[float, float] | None = None, *, kind: str = "FedAds", **settings: Any) -> MethodRow:
    return MethodRow(name=name, settings=CLASSES[method].model_validate({"method": method, **settings}), paper=paper, kind=kind)


PROBE = "probe"
PRETRAINING: Mapping[str, Mapping[str, Any]] = {
    "30 passes": {"epochs": 300},  # self-supervision uses a tenth
    "100 passes": {"epochs": 1000},
    "a tenth hidden": {"masked": 0.1},
    "six tenths hidden": {"masked": 0.6},
    "other rows' cells": {"masked_by": "other-row"},
    "other rows' cells, six tenths": {"masked_by": "other-row", "masked": 0.6},
    "rate x 0.1": {"self_supervision_rate": 0.1},
    "rate x 10": {"self_supervision_rate": 10.0},
}
"""Other settings of self-supervision. Table 3 has 3 passes, views that hide .3 of the cells, and the usual rate."""
SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "100 steps": {"evaluations": 100},
    "1,000 steps": {"evaluations": 1000},
    "1,000 steps of DDPM": {"evaluations": 1000, "sampling": "ddpm"},  # FedAds'
}
"""Other ways in which Diffu-AT makes embeddings up. Table 3 has 20 steps of DDIM."""


def rows(*, group: str | None = None) -> tuple[MethodRow, ...]:
    """Make all rows. FedAds draws a branch with the odds of its rows, so its methods have four local steps for each joint one.

    Probes test what a label party's bottom knows if it starts at random or from self-supervision and is then frozen. Others test
    whether other settings of self-supervision, or more steps of diffusion, gain more.
    """
    four: dict[str, Any] = {"local_steps": 4}
    return (
        MethodRow(name="Local", joint="none", paper=(0.609, 0.0391)),
        MethodRow(name="VanillaVFL", paper=(0.620, 0.0389)),
        _row("HeuristicVFL", "heuristic", (0.630, 0.0387), group=group, **four),
        _row("SS-VFL", "ss-vfl", (0.636, 0.0381)),
        _row("FedCVT", "fedcvt", (0.639, 0.0379), **four),
        _row("VFL-MPD", "vfl-mpd", (0.641, 0.0373), joint_epochs=4),
        _row("FedHSSL", "fedhssl", (0.642, 0.0375), joint_epochs=4),
        _row("JPL", "jpl", (0.644, 0.0374), **four),
        _row("Diffu-AT", "diffu-at", (0.645, 0.0375), **four),
        MethodRow(name="ORALE", joint="all", paper=(0.658, 0.0367)),
        _row("Diffu-AT, label in the condition", "diffu-at", kind="ablation", label_condition=True, **four),
        _row("Diffu-AT, v-prediction", "diffu-at", kind="ablation", prediction="v", **four),
        _row("Diffu-AT, x0-prediction", "diffu-at", kind="ablation", prediction="x0", **four),
        _row("regressor", "regressor", kind="ablation", **four),
        _row("multi-task, 4 small local steps", "multi-task", kind="ablation", **four),
        _row("multi-task", "multi-task", kind="ablation"),
        _row("warm start", "warm-start", kind="ours"),
        _row("warm start, no dropout", "warm-start", kind="ours", dropout=0.0),
        _row("warm start, frozen", "warm-start", kind="ours", warm_rate=0.0),
        _row("offset", "offset", kind="ours"),
        _row("average", "average", kind="ours"),
        MethodRow(name="VanillaVFL, frozen", kind=PROBE, frozen=True),
        replace(_row("SS-VFL, frozen", "ss-vfl", kind=PROBE), frozen=True),
        replace(_row("FedHSSL, frozen", "fedhssl", kind=PROBE, joint_epochs=4), frozen=True),
        *(_row(f"SS-VFL, {name}", "ss-vfl", kind=PROBE, **how) for name, how in PRETRAINING.items()),
        *(_row(f"FedHSSL, {name}", "fedhssl", kind=PROBE, joint_epochs=4, **how) for name, how in PRETRAINING.items()),
        *(_row(f"Diffu-AT, {name}", "diffu-at", kind=PROBE, **four, **how) for name, how in SAMPLING.items()),
    )


def unaligned_rows_experiment(
    *,
    data: Path,
    seeds: Sequence[int],
    only: Sequence[str] = (),
    aligned: float = ALIGNED,
    limit: int | None = None,
    by_users: bool = False,
    paper_networks: bool = False,
) -> Experiment:
    """Train every row of the table once per seed, on one thread.

    Raises DataError for data that is missing or of another format, ConfigError for a row or users that do not exist, or an
    ``aligned`` that is not a share.
    """
    if not 0 < aligned < 1:
        raise ConfigError(f"--aligned {aligned}: expected a share of the training rows, above 0 and below 1")
    table = read_by_kind(data, limit=limit)
    methods = chosen_of(table, only)
    networks = PAPER if paper_networks or table.name == "fedads" else SMALL
    # the facts that runs of one log must agree on; unusual ones are named only if they apply
    setting: Row = {"name": table.name, "rows": table.frame.height, "aligned": aligned}
    setting |= ({"networks": networks.words} if networks is PAPER else {}) | ({"parts": "by users"} if by_users else {})
    shared = Latest(share_out)

    def trial(seed: int, method: str) -> Row:
        parts = shared(table, seed=seed, aligned=aligned, by_users=by_users)
        return MethodTrial(rows=parts, row=methods[method], seed=seed, networks=networks).run()

    positives = float(table.frame.get_column(table.label).cast(int).mean())  # type: ignore[arg-type]
    return Experiment(
        name="fedads-3",
        cases=grid(seed=seeds, method=methods),
        trial=trial,
        page=unaligned_rows_page,
        setting=setting,
        about={**setting, "share_of_positives": positives},
    )


def chosen_of(table: TwoPartyTable, only: Sequence[str]) -> dict[str, MethodRow]:
    """Return the rows of these names, or all but probes if there are no names. The bound is left out if the data has none.

    Raises ConfigError for an unknown name.
    """
    group = GROUPS.get(table.name)
    everything = {row.name: row for row in rows(group=group)}
    if unknown := [name for name in only if name not in everything]:
        raise ConfigError(f"--only {unknown[0]}: is not a row of the table; it has {', '.join(everything)}")
    selected = {name: row for name, row in everything.items() if (name in only if only else row.kind != PROBE)}
    # the bound trains on the feature party's columns of unaligned rows
    bound = table.has_partner_N is None
    return {name: row for name, row in selected.items() if bound or row.joint != "all"}


GROUPS = {"criteo": "C9", "fedads": USER, "ijcai18": "shop_id"}
"""The column that identifies a user in HeuristicVFL. Without one it takes the mean of all rows."""


@dataclass(kw_only=True)
class MethodTrial:
    """Train one row of the table once."""

    rows: Rows
    row: MethodRow
    seed: int
    networks: Networks = SMALL

    def run(self) -> Row:
        """Train, and measure on the test rows."""
        rows = self.rows
        train_N = rows.aligned_N if self.row.joint == "aligned" else torch.cat([rows.aligned_N, rows.unaligned_N])
        plain = Schedule(train_N=train_N, validation_N=rows.validation_N, batch_size=TRAINING.batch_size, seed=self.seed)
        schedule = scheduled(plain, self.row.settings, rows.unaligned_N)
        method = self._method(schedule) if self.row.settings.used else None
        model, bottoms = self._modules(method)
        began = time.process_time()
        objective = Supervised("binary", rows.labels_N)
        if method is not None:
            self._prepare(method, model, bottoms, objective)
        network = SplitNetwork(
            bottoms=bottoms,
            sources=[rows.theirs.rows for _ in bottoms],
            model=model,
            own=rows.own.rows,
            objective=objective,
            training=TRAINING,
            schedule=schedule,
            step_rule=Frozen(step_rule=method or PLAIN) if self.row.frozen else method or PLAIN,
        )
        figures = _train(network, rows, bottoms)
        figures["cpu_seconds"] = time.process_time() - began - figures.pop("looking")
        logits_T = network.logits(torch.split(rows.test_N, PASS))
        figures |= measured(rows.labels_N[rows.test_N], logits_T)
        if method is not None and method.scores_alone:
            assert isinstance(model, BranchedModel)
            figures["alone"] = _alone(model, rows, logits_T)
        return figures

    def _method(self, schedule: Schedule) -> UnalignedMethod:
        return method_of(
            self.row.settings,
            batch_size=TRAINING.batch_size,
            ratio=rows_ratio(schedule)
            if schedule.local_batches
            else len(self.rows.unaligned_N) / max(1, len(self.rows.aligned_N)),
            seed=self.seed,
            columns=self.rows.columns,
        )

    def _modules(self, method: UnalignedMethod | None) -> tuple[LabelModel, list[nn.Module]]:
        rows = self.rows
        bottom = build_bottom(self.networks.feature, "feature", rows.their_shape, seed=self.seed)
        width = width_of(bottom)
        parts = BranchParts(
            model=self.networks.label, party="label", own=rows.own_shape, cut_width=width, outputs=1, seed=self.seed
        )
        if self.row.joint == "none":
            return parts.alone("alone"), []
        return (method.model(parts) if method is not None else parts.joint()), [bottom]

    def _prepare(self, method: UnalignedMethod, model: LabelModel, bottoms: Sequence[nn.Module], objective: Supervised) -> None:
        rows = self.rows
        with tempfile.TemporaryDirectory(prefix="tallystick-") as folder:
            validation = rows.validation_N
            method.prepare(model, objective, self._part(rows.own.rows, rows.unaligned_N, validation, Path(folder)))
            everything_N = torch.cat([rows.aligned_N, rows.unaligned_N])
            for bottom in bottoms:  # the feature party has rows of its own too; here they belong to the same people
                method.prepare_bottom(bottom, self._part(rows.theirs.rows, everything_N, validation, Path(folder)))

    def _part(self, source: FeatureSource, train_N: Tensor, validation_N: Tensor, folder: Path) -> OwnPart:
        return OwnPart(
            source=source,
            train_N=train_N,
            validation_N=validation_N,
            training=TRAINING,
            store=lambda name: CheckpointStore(folder / name),
            seed=self.seed,
            start=self.seed,
        )


def _train(network: SplitNetwork, rows: Rows, bottoms: Sequence[nn.Module]) -> Row:
    """Train with early stopping, and restore the best weights. Return how long it took."""
    schedule = network.schedule
    labels_V = rows.labels_N[rows.validation_N]
    joint = -(-len(schedule.train_N) // schedule.batch_size)
    every = max(1, joint // CHECKS)
    modules: list[nn.Module] = [network.model, *bottoms]
    best_loss, best, best_step, stale, step, joint_steps, looking = float("inf"), None, 0, 0, 0, 0, 0.0
    for epoch in range(schedule.epochs_before + MOST_EPOCHS):
        for crossed in network.epoch(epoch):
            step = crossed.batch.step
            joint_steps += not crossed.batch.is_local
            if epoch < schedule.epochs_before or crossed.batch.is_local or joint_steps % every:
                continue
            began = time.process_time()
            loss = nn.functional.binary_cross_entropy_with_logits(network.logits(torch.split(rows.validation_N, PASS)), labels_V)
            network.train(True)
            stale += 1
            if loss.item() < best_loss:
                best_loss, best_step, stale = loss.item(), step, 0
                best = [{name: value.clone() for name, value in module.state_dict().items()} for module in modules]
            looking += time.process_time() - began
            if stale >= PATIENCE:
                break
        if stale >= PATIENCE:
            break
    assert best is not None, "the validation rows were looked at"
    for module, weights in zip(modules, best, strict=True):
        module.load_state_dict(weights)
    return {"steps": step, "best_step": best_step, "validation_loss": best_loss, "looking": looking}


def measured(labels_T: Tensor, logits_T: Tensor) -> dict[str, float]:
    """Compute AUC, negative log-likelihood, and calibration error in bins of equal mass."""
    labels = labels_T.numpy()
    return {
        "auc": auc(labels, logits_T.double().numpy()),
        "nll": nn.functional.binary_cross_entropy_with_logits(logits_T, labels_T).item(),
        "ece": ace(labels, torch.sigmoid(logits_T.double()).numpy(), bins=BINS),
    }


@torch.no_grad()
def _alone(model: BranchedModel, rows: Rows, logits_T: Tensor) -> Row:
    """Measure rows without a partner's row with the own columns' branch, and both kinds if every other test row has
    no partner.
    """
    model.train(False)
    alone_V, alone_T = (
        torch.cat([model.local(rows.own.rows(index_B)) for index_B in torch.split(part_N, PASS)])
        for part_N in (rows.validation_N, rows.test_N)
    )
    labels_T = rows.labels_N[rows.test_N]
    rate = rows.labels_N[rows.unaligned_N].double().mean().item()
    line, _ = fit_line(alone_V, rows.labels_N[rows.validation_N], real=1.0, positive_rate=rate)
    lacks_T = torch.arange(len(labels_T)) % 2 == 1
    mixed_T = torch.where(lacks_T, line(alone_T), logits_T)
    return {
        "every row": measured(labels_T, line(alone_T)),
        "half with a partner's row": measured(labels_T[~lacks_T], logits_T[~lacks_T]),
        "half without": measured(labels_T[lacks_T], line(alone_T)[lacks_T]),
        "half without, not calibrated": measured(labels_T[lacks_T], alone_T[lacks_T]),
        "both halves": measured(labels_T, mixed_T),
    }


# --- the page


def unaligned_rows_page(about: Row, found: Sequence[Row]) -> Benchmark:
    """Show the rows of ``unaligned_rows_experiment`` next to the paper's table, in its order."""
    by_name, row_of = groups(found, "method"), {row.name: row for row in rows()}
    printed = {row: by_name[name] for name, row in row_of.items() if name in by_name}
    order, vanilla = order_like_the_papers(printed), by_name.get("VanillaVFL", [])
    seconds = {each["seed"]: each["cpu_seconds"] for each in vanilla}

    def of_row(read: Callable[[MethodRow], Cell]) -> LineCell:
        return lambda mine: read(row_of[mine[0]["method"]])

    def over(other: str) -> LineCell:
        return lambda mine: None if mine[0]["method"] == other else change(mine, by_name.get(other, []), "auc")

    def times(mine: Sequence[Row]) -> Cell:
        ratios = [each["cpu_seconds"] / seconds[each["seed"]] for each in mine if each["seed"] in seconds]
        return float(np.median(ratios)) if ratios else None

    def beside_usual(figure: str) -> LineCell:
        return lambda mine: change(mine, by_name[mine[0]["method"].partition(", ")[0]], figure)

    parts = {"with": "half with a partner's row", "without": "half without", "both": "both halves"}
    table_3 = Pivot(
        name="Table 3",
        rows="method",
        order=row_of,
        shown={
            "of": of_row(lambda row: row.kind),
            "paper, AUC": of_row(lambda row: row.paper and row.paper[0]),
            "paper, NLL": of_row(lambda row: row.paper and row.paper[1]),
            "AUC": "auc",
            **{f"over {other}": over(other) for other in ("VanillaVFL", "Diffu-AT", "ORALE")},
            "NLL": "nll",
            "NLL over VanillaVFL's": lambda mine: change(mine, vanilla, "nll"),
            "ECE": "ece",
            "CPU s": lambda mine: spread(each["cpu_seconds"] for each in mine).value,
            "times VanillaVFL's": times,
        },
    )
    other_settings = Pivot(
        name="Other settings, beside the same method by the usual ones",
        rows="method",
        shown={"AUC": beside_usual("auc"), "NLL": beside_usual("nll")},
        note="Changes of the same seed.",
    )
    without_partner = Pivot(
        name="Test rows half of which have no partner's row",
        rows="method",
        order=row_of,
        shown={
            f"{short}: {figure.upper()}": mean(at("alone", part, figure))
            for short, part in parts.items()
            for figure in ("auc", "ece")
        },
        note="Every other test row is scored without its partner's row, by own columns, calibrated on validation rows.",
    )
    usual = {name: name.partition(", ")[0] for name in by_name}  # a row's name begins with that of the method
    return Benchmark(
        title=f"FedAds, Table 3, on {about['name']}: {about['rows']:,} rows, {about['share_of_positives']:.2%} positive",
        tables=[
            table_3.table(found),
            other_settings.table(
                row for row in found if usual[row["method"]] != row["method"] and usual[row["method"]] in by_name
            ),
            without_partner.table(row for mine in by_name.values() if all("alone" in each for each in mine) for row in mine),
        ],
        notes=[
            "Differences compare runs of one seed: the same aligned and unaligned rows, the same batches of aligned rows.",
            "ECE: 20 bins of equal mass. CPU seconds: all that training took at both parties, without looks at validation rows.",
            "Local and the tables of means read the label party's columns alone; ORALE has both parties' columns of every row.",
            "The paper's numbers are of its own data, one run each, with no interval.",
        ]
        + (
            []
            if order is None
            else [f"Those of the paper's methods that stand here are in its order with a rank correlation of {order:.2f}."]
        ),
        facts={
            "aligned": f"{about['aligned']:.0%} of the training rows",
            "parts": about.get("parts", "row by row, or as the data has them"),
            "networks": about.get("networks", SMALL.words),
            "optimiser": "Adam 1e-3, batch 256, stopped by validation rows that are looked at four times a pass",
            "seeds": seeds_of(found),
        },
    )


def order_like_the_papers(chosen: Mapping[MethodRow, Sequence[Row]]) -> float | None:
    """Compute Spearman's rank correlation of AUCs here with the paper's, over its methods for unaligned rows.

    It is None for fewer than three methods.
    """
    bounds = ("Local", "VanillaVFL", "ORALE")
    compared = [(row.paper, mine) for row, mine in chosen.items() if row.paper and row.name not in bounds]
    pairs = [(spread(each["auc"] for each in mine).value, paper[0]) for paper, mine in compared]
    return float(spearmanr(pairs).statistic) if len(pairs) > 2 else None
