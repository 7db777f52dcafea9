"""Compare attacks on the data that an audit keeps of a training with attacks on all of it: their findings and their cost.

Shapes: B rows of a step's batch, D cut width, N training rows.
"""

import math
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import polars as pl
import torch
from typer import Option

from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS
from tallystick.attacks.label_inference.auxiliary import FewLabels, TheseLabels
from tallystick.attacks.label_inference.evaluate import LabelInferenceEvaluation
from tallystick.attacks.label_inference.observations import known_rows
from tallystick.attacks.row_sums import RowSums, chosen_rows
from tallystick.attacks.view import Received, StepView, View, renumbered
from tallystick.audit.recording import LABEL_EPOCHS, recording_plan
from tallystick.config.party import FeatureColumns
from tallystick.config.sections import NetworkModel
from tallystick.defenses.chain import NO_DEFENSE, Defenses, chain
from tallystick.defenses.marvell import Marvell
from tallystick.errors import ConfigError
from tallystick.results import read_result
from tallystick.run_folder.recorder import Recorder, RecordingPlan, ViewStore
from tallystick.run_folder.row_recorder import RowRecorder, RowStore, most_rows
from tallystick.storage import Origin
from tallystick.tables.lazy_table import LazyTable
from tallystick.training.plan import Schedule
from tallystick.training.step import CutObserver
from tallystick_experiments.catalogue.ads import read_pair
from tallystick_experiments.catalogue.clicks import CRITEO_CATEGORICAL, CRITEO_NUMERIC
from tallystick_experiments.catalogue.table import TwoPartyTable, split_columns
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.feature_leakage import kept as embeddings
from tallystick_experiments.feature_leakage.kept import split_experiment
from tallystick_experiments.observed_training import PLAIN_EVALUATOR, TrainingPlan, summed_epoch, view_of_step
from tallystick_experiments.options import seeds_option, several
from tallystick_experiments.page import Benchmark, Cell, ResultTable, counted, seed_count
from tallystick_experiments.speed import memory
from tallystick_experiments.stats import Row, at, groups, over_seeds, spread

DEFENSES: Mapping[str, Defenses] = {"none": NO_DEFENSE, "marvell 8": chain([Marvell(power=8.0)])}
MEASURED: Mapping[str, Iterable[str]] = {"labels": DEFENSES, "features": embeddings.DEFENSES}  # whose secret, which defence
AUDITS: Mapping[str, Any] = {"none": False, "quick": "quick", "full": True}
ROLES = {"label": memory.LABEL, "feature": memory.FEATURE}
SHORT: Mapping[str, Any] = {"bootstrap": 0, "own_columns_baseline": False, "importance": {"own_columns": False}}
"""The evaluation of a timed run. It is not part of the price."""
NOTES = {
    "labels": "Symmetric AUCs: max(a, 1 - a), of batches or of the whole training.",
    "features": "Means over the columns of what comes back to somebody who knows so many rows: of a number R², of a category how "
    "far accuracy rises from that of guessing the most frequent one towards 1. Everything: the embeddings of every epoch, of "
    f"every training row or of {embeddings.ALL_ROWS:,} evenly chosen ones.",
}
CLOSE = 0.02  # how near the audit's figure must be
WANTED = {"quick": 0.05, "full": 0.2}  # greatest wanted share of the training's time
BATCH, TRAINING_SHARE = 256, 0.693  # a default contract's on 200,000 rows, of which 99 % are common
WHOLE_STEPS = 2168  # after which a default training on these rows ends


def generated_table(rows: int, *, seed: int) -> TwoPartyTable:
    """Generate a table like Criteo's, with half of its columns at each party."""
    frame = pl.concat(memory.CriteoLike(seed).pieces(rows))
    every = FeatureColumns(numeric=CRITEO_NUMERIC, categorical=CRITEO_CATEGORICAL)
    own, partner_columns = split_columns(every, (*memory.OWN_NUMERIC, *memory.OWN_CATEGORICAL))
    return TwoPartyTable(
        name="generated", frame=LazyTable.of(frame), label="label", label_party=own, feature_party=partner_columns
    )


@dataclass(kw_only=True)
class KeptSteps:
    """Hold everything that crossed, and the part of it that the product's recorders would have kept."""

    plan: RecordingPlan
    every: RowSums
    chosen: RowSums
    steps: dict[int, list[StepView]] = field(default_factory=dict)

    @classmethod
    def of(cls, train_N: torch.Tensor, plan: RecordingPlan, *, width: int) -> "KeptSteps":
        """Start without steps."""
        rows_N = chosen_rows(train_N, most=most_rows("cut_gradient", width))
        every, selection = (RowSums.zero("cut_gradient", each_N, width) for each_N in (train_N, rows_N))
        return cls(plan=plan, every=every, chosen=selection)

    def views(self) -> dict[str, tuple[View, View]]:
        """Return the steps and the sums, as the audit has them and as a recorder that keeps everything has them."""
        stale = self.plan.stale(sorted(self.steps))
        current = {epoch: steps for epoch, steps in self.steps.items() if epoch not in stale}
        recorded = tuple(
            step for epoch, steps in current.items() for at, step in enumerate(steps) if self.plan.records(epoch, at)
        )
        audited = View(received="cut_gradient", steps=recorded)
        whole = View(received="cut_gradient", steps=tuple(step for steps in self.steps.values() for step in steps))
        return {"audit": (audited, self.chosen.view()), "everything": (whole, self.every.view())}


def kept_and_all(table: TwoPartyTable, defense: str, plan: TrainingPlan, *, seed: int) -> dict[str, Any]:
    """Train once, and attack the audit's data and all data. Return symmetric AUCs by attack, and the test AUC."""
    experiment, _, width = split_experiment(table, plan, seed=seed)
    network = experiment.network(DEFENSES[defense])
    schedule = network.schedule
    recording = recording_plan(schedule, first=1, later=LABEL_EPOCHS - 1, epochs=plan.epochs, width=width)
    recorders = KeptSteps.of(schedule.train_N, recording, width=width)
    for epoch in range(plan.epochs):
        steps = summed_epoch(network, epoch, recorders.every, recorders.chosen)
        recorders.steps[epoch] = [view_of_step(step, epoch=epoch) for step in steps]
    labels_N = experiment.data.training_labels_N.long()
    views = recorders.views()
    told_T = told_rows(views["audit"][1], labels_N, seed=seed)
    aucs = {who: _attacked(view, sums, labels_N, told_T, seed) for who, (view, sums) in views.items()}
    return {"test_auc": experiment.test_auc(), **aucs}


def told_rows(chosen: View, labels_N: torch.Tensor, *, seed: int) -> torch.Tensor:
    """Return the rows whose labels few-label attackers know, as the audit draws them. Attackers with everything know the same."""
    steps, numbers_N = renumbered(chosen.steps)
    view = replace(chosen, steps=steps)
    is_told = known_rows(FewLabels().reveal(view, labels_N[numbers_N], rng=np.random.default_rng([seed, 3]))) >= 0
    return numbers_N[is_told]


def _attacked(view: View, sums: View, labels_N: torch.Tensor, told_T: torch.Tensor, seed: int) -> dict[str, float]:
    evaluation = LabelInferenceEvaluation(view, labels_N, whole=sums, evaluator=PLAIN_EVALUATOR, seed=seed)
    same = TheseLabels(rows_T=torch.searchsorted(sums.steps[0].rows_B, told_T))
    aucs: dict[str, float] = {}
    for name, row in LABEL_INFERENCE_ATTACKS.items():
        if not row.binary or row.from_start or row.from_flip or row.with_model or row.of_several:
            continue
        same_knowledge = replace(row, knows=same) if isinstance(row.knows, FewLabels) else row
        if (metrics := evaluation(same_knowledge)) is not None:
            aucs[name] = metrics.symmetric_auc.mean
    return aucs


def audit_cost(rows: int, *, turns: int, epochs: int = 2) -> dict[str, Any]:
    """Run a job of two processes on a generated table without an audit, with a quick one and with a full one, in turns.

    A turn trains a few epochs with each, so that many turns fit in a few minutes, and what a machine does at one time falls on
    all three. Steps take what those of a whole training take, so recording is compared as it is, and attacks with a training of
    WHOLE_STEPS. Each figure is a median over the turns, with its least and its greatest; of each it gives two: by the clock, for
    each party (both attack at the same time), and by processor seconds of both processes, all threads and ended children.

    Two trainings differ by more than recording takes. So each turn also replays the recording alone, and the shares are of this.
    """
    steps = epochs * math.ceil(rows * TRAINING_SHARE / BATCH)
    training = {"epochs": epochs, "patience": None, "batch_size": BATCH, "refit": False}
    turns_of: dict[str, list[dict[str, Any]]] = {name: [] for name in AUDITS}
    for turn in range(turns):
        names = list(AUDITS)
        for name in names[turn % 3 :] + names[: turn % 3]:  # each is first, second and last in turn
            with tempfile.TemporaryDirectory(prefix="tallystick-audit-") as folder:
                changes: dict[str, Any] = {"training": training, "evaluation": SHORT, "audit": AUDITS[name]}
                usages = memory.job_usages(Path(folder), rows, "intersection", 1, **changes)
                seconds: dict[str, dict[str, float]] = {}
                for role, party in ROLES.items():
                    (path,) = (Path(folder) / party / "runs").glob("*/result.json")
                    phases = read_result(path.read_bytes()).phases
                    seconds[role] = {phase.name: phase.seconds for phase in phases if phase.party == party}
            processor_s = {role: usages[f"run, {role}"].phases for role in ROLES}
            replayed = {role: replayed_recording(rows, epochs, role=role, audit=name) for role in ROLES}
            turns_of[name].append({"seconds": seconds, "processor_s": processor_s, "usages": usages, "replayed": replayed})
    longer = WHOLE_STEPS / steps
    figures: dict[str, Any] = {"rows": rows, "turns": turns, "epochs": epochs, "steps": steps, "whole_steps": WHOLE_STEPS}
    for name, each in turns_of.items():
        figures[name] = {
            "training_s": _spread(one["seconds"]["label"]["training"] for one in each),
            "audit_s": {role: _spread(one["seconds"][role].get("audit", 0.0) for one in each) for role in ROLES},
            "training_processor_s": {role: _spread(one["processor_s"][role]["training"] for one in each) for role in ROLES},
            "audit_processor_s": {role: _spread(one["processor_s"][role].get("audit", 0.0) for one in each) for role in ROLES},
            "peak_mib": {
                process: round(max(one["usages"][process].memory for one in each) / 2**20, 1) for process in each[0]["usages"]
            },
        }
    none_s = figures["none"]["training_s"][0]
    both_s = sum(figures["none"]["training_processor_s"][role][0] for role in ROLES)
    for name, wanted in WANTED.items():
        figure, pairs = figures[name], list(zip(turns_of[name], turns_of["none"], strict=True))
        recording = _spread(one["seconds"]["label"]["training"] / none["seconds"]["label"]["training"] - 1 for one, none in pairs)
        of_both = _spread(
            sum(one["processor_s"][role]["training"] for role in ROLES)
            / sum(none["processor_s"][role]["training"] for role in ROLES)
            - 1
            for one, none in pairs
        )
        attacking = {role: figure["audit_s"][role][0] / (none_s * longer) for role in ROLES}
        attacking_both = sum(figure["audit_processor_s"][role][0] for role in ROLES) / (both_s * longer)
        alone = {
            role: _spread(one["replayed"][role] / none["seconds"]["label"]["training"] for one, none in pairs) for role in ROLES
        }
        figure["recording"], figure["recording, processor"], figure["recording, replayed"] = recording, of_both, alone
        figure["attacking"], figure["attacking, processor"] = attacking, attacking_both
        figure["share"] = {role: alone[role][0] + attacking[role] for role in ROLES}
        figure[f"at most {wanted:g}"] = max(figure["share"].values()) <= wanted
    return figures


def replayed_recording(rows: int, epochs: int, *, role: str, audit: str) -> float:
    """Return the seconds that a party's recorders take for the steps of a timed run, with nothing beside them.

    The embeddings and gradients are random ones of the default cut's width.
    """
    if audit == "none":
        return 0.0
    quick, width = audit == "quick", NetworkModel().built_in_cut_width
    received: Received = "cut_gradient" if role == "label" else "cut_embedding"
    schedule = Schedule(
        train_N=torch.arange(math.ceil(rows * TRAINING_SHARE)), validation_N=torch.empty(0).long(), batch_size=BATCH, seed=1
    )
    embedding_BD, gradient_BD = torch.randn(2, BATCH, width, generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory(prefix="tallystick-recording-") as folder:
        origin = Origin(folder=Path(folder))
        store = RowStore(folder=origin.folder, contract="", received=received, origin=origin)
        observers: list[CutObserver] = [
            RowRecorder.of(store, store.no_sums(schedule.train_N, width=width, quick=quick, moments=not quick)),
        ]
        if role == "label" and not quick:
            plan = recording_plan(schedule, first=1, later=LABEL_EPOCHS - 1, epochs=epochs, width=width)
            observers.append(Recorder(plan=plan, store=ViewStore(folder=origin.folder, contract="", origin=origin)))
        started = time.perf_counter()
        for epoch in range(epochs):
            for batch in schedule.epoch(epoch):
                size = len(batch.index_B)
                for observer in observers:
                    observer.crossed(batch, embedding_BD[:size], gradient_BD[:size])
            for observer in observers:
                observer.epoch_ended(epoch)
        return time.perf_counter() - started


def _spread(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the median, the least and the greatest."""
    every = list(values)
    return median(every), min(every), max(every)


def kept_views_experiment(
    *,
    data: Annotated[Path | None, Option(help="The label party's CSV file (id, y); a generated table if left out.")] = None,
    partner: Annotated[Path | None, Option(help="The feature party's CSV file (id).")] = None,
    rows: Annotated[int, Option(help="Of the generated table, and of the run that is timed.", min=1000)] = 200_000,
    seeds: Annotated[Sequence[int], seeds_option("Runs per defence.")] = range(1, 4),
    epochs: Annotated[int, Option(help="Of the training that is attacked.", min=1)] = 4,
    sides: Annotated[Sequence[str], several("Whose secret: labels,features; none: the price alone.")] = tuple(MEASURED),
    priced: Annotated[bool, Option("--cost/--no-cost", help="Time a run of two processes with each kind of audit.")] = True,
    turns: Annotated[int, Option(help="Runs that are timed with each kind of audit.", min=1)] = 5,
    timed_epochs: Annotated[int, Option(help="Epochs of a run that is timed.", min=1)] = 2,
    batch_size: int = 512,
) -> Experiment:
    """Compare the audits' figures with those of a recorder that keeps everything, and measure the cost of an audit in a run.

    Raises ConfigError for an unknown side.
    """
    if unknown := [side for side in sides if side not in MEASURED]:
        raise ConfigError(f"--sides {unknown[0]!r}: must be {' or '.join(MEASURED)}, or both with a comma between")
    plan = TrainingPlan(epochs=epochs, batch_size=batch_size)
    about = {"data": str(data) if data else "generated", "rows": rows, "epochs": epochs, "batch_size": batch_size}

    def trial(seed: int, side: str, defense: str) -> Row:
        table = read_pair(data, partner) if data is not None else generated_table(rows, seed=seed)
        measure = kept_and_all if side == "labels" else embeddings.embeddings_kept_and_all
        return measure(table, defense, plan, seed=seed)

    cases = [{"side": side, "defense": name, "seed": seed} for seed in seeds for side in sides for name in MEASURED[side]]
    return Experiment(
        name="audit",
        cases=cases,
        trial=trial,
        page=kept_views_page,
        setting=about,
        usual={"side": "labels"},
        about=lambda: {"data": about, **({"cost": audit_cost(rows, turns=turns, epochs=timed_epochs)} if priced else {})},
    )


def kept_views_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``kept_views_experiment``, and the price if it was measured."""
    data = about["data"]
    tables = [_beside_all(side, groups(of, "defense")) for side, of in groups(rows, "side").items()]
    return Benchmark(
        title=f"What the audit keeps, beside everything: {data['data']}, {seed_count(rows)}",
        tables=[*tables, *([_price(about["cost"])] if "cost" in about else [])],
        facts={"training": f"{counted(data['epochs'], 'epoch')}, batch {data['batch_size']}", "rows": str(data["rows"])},
    )


def _beside_all(side: str, found: Mapping[str, Sequence[Row]]) -> ResultTable:
    """Show, per defence and attack, the audit's figure, that of everything, and their difference with the same seed."""
    cells: list[list[Cell]] = []
    for defense, rows in found.items():
        for attack in rows[0]["everything"]:
            less = spread(row["audit"][attack] - row["everything"][attack] for row in rows)
            both = [over_seeds(rows, at(whose, attack)) for whose in ("audit", "everything")]
            cells.append([defense, attack, *both, less, less.value >= -CLOSE])
    return ResultTable(
        name=f"What the audit of {side} reports beside what everything would",
        note=NOTES[side],
        columns=["defence", "attack", "the audit's", "given everything", "difference", f"within {CLOSE:g}"],
        rows=cells,
    )


def _price(cost: Row) -> ResultTable:
    shares = [
        f"{name}, wanted at most {wanted:.0%}: by the clock recording {_percent(cost[name]['recording'])}, attacking "
        + " and ".join(f"{cost[name]['attacking'][role]:.1%} ({role} party)" for role in ROLES)
        + f"; by processor seconds of both, recording {_percent(cost[name]['recording, processor'])}, attacking "
        + f"{cost[name]['attacking, processor']:.1%}; recording replayed alone "
        + " and ".join(f"{_percent(cost[name]['recording, replayed'][role])} ({role} party)" for role in ROLES)
        for name, wanted in WANTED.items()
    ]
    processes = list(cost["none"]["peak_mib"])
    return ResultTable(
        name=f"A run of {cost['rows']:,} rows, {counted(cost['epochs'], 'epoch')}",
        note=f"{'; '.join(shares)}. Recording is that of {cost['steps']:,} steps, beside as many without it in the same turn; "
        f"attacks are shares of a training of {cost['whole_steps']:,} steps. Medians of {counted(cost['turns'], 'turn')}, least "
        "and greatest in brackets.",
        columns=[
            "audit",
            "training, s",
            *(f"audit, {role}, s" for role in ROLES),
            *(f"training, {role}, processor s" for role in ROLES),
            *(f"audit, {role}, processor s" for role in ROLES),
            *(f"{process}, MiB" for process in processes),
        ],
        rows=[
            [
                name,
                cost[name]["training_s"][0],
                *(cost[name][of][role][0] for of in ("audit_s", "training_processor_s", "audit_processor_s") for role in ROLES),
                *cost[name]["peak_mib"].values(),
            ]
            for name in AUDITS
        ],
    )


def _percent(spread_of: Sequence[float]) -> str:
    return "{:+.1%} ({:+.1%}, {:+.1%})".format(*spread_of)
