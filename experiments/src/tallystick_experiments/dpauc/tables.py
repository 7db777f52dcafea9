"""Measure ``tallystick bench dpauc``: Tables 1 to 5 of DPAUC, next to its numbers, and other mechanisms at the same epsilon.

Scores come from a file with columns ``score`` and ``label``, from a network that is trained on a public table, or from a binormal
simulation of the paper's setting: M = 458,407 rows, P = 117,317 positives, and the AUC of its three epochs. As in the paper, the
data are fixed and every repeat draws new noise.

A mechanism's noise is drawn from the distribution of its sum over the clients (mechanism.simulate), so a thousand clients cost as
much as one. Rows are dealt to clients as in the paper and their counts are added up again, so IID and non-IID differ only in
their seeds.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from typer import Option

from tallystick.errors import ConfigError, DataError
from tallystick.evaluation.private.bins import (
    Floats,
    Ints,
    Population,
    ScoreBins,
    auc_of_counts,
    check_both_classes,
    check_scores,
    score_grid,
)
from tallystick.evaluation.private.histogram import FINE_BINS
from tallystick.evaluation.private.mechanism import CountingMechanism, simulate_mechanism
from tallystick.evaluation.private.release import release_private_auc
from tallystick.evaluation.private.release_table import COUNTING, counting
from tallystick.evaluation.private.scores import NoisyScores, top_k_attack
from tallystick.evaluation.private.thresholds import ThresholdCounts
from tallystick.network.channel import Progress, no_progress
from tallystick.privacy.ledger import Ledger
from tallystick.privacy.noise import SimulatedNoise
from tallystick_experiments.audited import audited_table
from tallystick_experiments.catalogue.public import PublicTable, load_table
from tallystick_experiments.dpauc import paper
from tallystick_experiments.dpauc.page import dpauc_page
from tallystick_experiments.dpauc.paper import EPSILONS
from tallystick_experiments.page import ExperimentResult
from tallystick_experiments.stats import Row

SCORES = "scores.parquet"  # in a run folder
GAUSSIAN_DELTA = 1e-6
DENSITY_BINS = 50


@dataclass(frozen=True, kw_only=True)
class ScoredSet:
    """Hold one test set: scores and labels in the order of the score, their exact AUC, and bin edges from a public sample."""

    name: str
    epoch: int | None
    """The epoch of the paper that it reproduces, or None for a file."""
    labels_N: NDArray[np.bool_]
    scores_N: Floats
    auc: float
    population: Population
    public_edges: tuple[float, ...]
    """Edges of nearly equal mass in an independent sample of the same kind, for the record-level histogram."""
    grid: ScoreBins
    """The fine grid with the number of rows in each bin."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Describe one row of a table, before it is measured."""

    table: str
    scenario: ScoredSet
    mechanism: CountingMechanism
    clients: int
    partition: str = "IID"
    paper: tuple[float, float] | None = None
    settings: Row = field(default_factory=dict)


def measure_dpauc(
    data: Annotated[
        Path | None,
        Option(help="CSV or Parquet with columns score, label; with --table the folder of public files. Else a simulation."),
    ] = None,
    *,
    table: Annotated[str | None, Option(help="Table of bench quality whose test rows a trained network scores.")] = None,
    rows: Annotated[int, Option(help="Rows that are drawn from a larger table.", min=500)] = 100_000,
    repeats: Annotated[int, Option(help="Draws per row.", min=2)] = 100,
    seed: Annotated[int, Option(help="Seed of simulation and noise.")] = 0,
    check_repeats: int = 1000,
    epsilons: Sequence[float] = EPSILONS,
    workers: int = 2,
    progress: Progress = no_progress,
) -> ExperimentResult:
    """Measure every row of Tables 1 to 5 and of the table of mechanisms, and how far the predictions are from the measurements.

    Means and standard deviations are over ``repeats`` draws. A prediction is compared with a standard deviation over
    ``check_repeats`` draws, which is itself within 5 % (2 sd) for 1,000. The scores are those of ``data``, or of the test rows of
    a ``table`` that two parties share. Raises DataError for a file without usable scores and labels.
    """
    started = time.perf_counter()
    seeds = iter(np.random.SeedSequence(seed).spawn(2000))
    shared = load_table(table, data, most=rows) if table is not None else None
    scored = _trained(shared, seed) if shared is not None else read_scores(data) if data is not None else None
    scenarios = _scenarios(scored, seeds)
    cases = [case for scenario in scenarios for case in _cases(scenario, epsilons)]
    cases += [_gaussian(scenario, epsilon, clients) for scenario in scenarios for epsilon in epsilons for clients in (10, 1000)]
    # The longest first, so that the workers end together.
    jobs: list[tuple[str, Callable[[], list[Row]]]] = [
        ("table_3", partial(_measure_noisy_scores, scenario, repeats, np.random.default_rng(next(seeds))))
        for scenario in scenarios
    ]
    jobs += [(case.table, partial(_measure, case, repeats, check_repeats, np.random.default_rng(next(seeds)))) for case in cases]
    tables: dict[str, list[Row]] = {name: [] for name in (*(f"table_{number}" for number in range(1, 6)), "mechanisms")}
    with ThreadPoolExecutor(workers) as pool:
        results = [(name, pool.submit(job)) for name, job in jobs]
        for done, (name, result) in enumerate(results, 1):
            tables[name].extend(result.result())
            progress("rows", done, len(results))
    _pool_predictions(tables["table_3"])
    tables["table_2"] = _top_k(scenarios[0])
    tables["figure_3"] = [row for scenario in scenarios for row in _densities(scenario)]
    all_rows = [{"in": name, **row} for name, of in tables.items() for row in of]
    ratios = [ratio for row in all_rows if (ratio := row.get("predicted_ratio")) is not None]
    about = {
        "source": _source(data, shared),
        "rows": len(scenarios[0].labels_N),
        "positives": int(scenarios[0].labels_N.sum()),
        "repeats": repeats,
        "check_repeats": check_repeats,
        "seed": seed,
        "exact_auc": {scenario.name: scenario.auc for scenario in scenarios},
        "predictions": {"rows": len(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)},
        "seconds": time.perf_counter() - started,
    }
    return ExperimentResult(experiment="dpauc", about=about, rows=all_rows, page_of=dpauc_page)


def coverage(
    labels_N: NDArray[Any] | None = None,
    scores_N: NDArray[Any] | None = None,
    *,
    runs: Annotated[int, Option(help="Seeded releases.", min=10)] = 100,
    epsilon: Annotated[float, Option(help="Label-DP epsilon of each.")] = 1.0,
    seed: int = 0,
) -> Row:
    """Release one AUC ``runs`` times with seeded noise and count how often the exact AUC lies in the 95 % interval."""
    if labels_N is None or scores_N is None:
        population = Population(rows=20_000, positive_rate=0.25, auc=0.78)
        labels_N, scores_N = _draw(population, np.random.default_rng(seed))
    labels, scores = check_scores(labels_N, scores_N)
    check_both_classes(labels)
    exact = _exact_auc(labels, scores)
    results = []
    with TemporaryDirectory() as folder:
        for index in range(runs):
            ledger = Ledger.create(Path(folder) / f"{index}.ledger", party="label party")
            noise = SimulatedNoise(np.random.default_rng([seed, index, 1]))  # [0, 0] would be the interval's own random stream
            results.append(release_private_auc(labels, scores, epsilon=epsilon, ledger=ledger, dataset="test", rng=noise))
    covered = sum(result.interval[0] <= exact <= result.interval[1] for result in results)
    return {
        "exact_auc": exact,
        "epsilon": epsilon,
        "runs": runs,
        "covered": covered,
        "mechanism": results[0].mechanism,
        "predicted_sd": results[0].predicted_sd,
        "sd": float(np.std([result.auc for result in results])),
        "mean_width": float(np.mean([result.interval[1] - result.interval[0] for result in results])),
    }


def read_scores(path: Path) -> tuple[NDArray[np.bool_], Floats]:
    """Read columns ``score`` and ``label`` from a CSV or Parquet file, or from the label party's run folder."""
    if path.is_dir():
        path = path / SCORES
        if not path.exists():
            raise DataError(
                f"{path.parent} holds no {path.name}: expected a CSV or Parquet file with columns score and label, or the label "
                "party's run folder after the evaluation of a binary target"
            )
    reader = pl.read_parquet if path.suffix == ".parquet" else pl.read_csv
    try:
        table = reader(path, columns=["label", "score"])
        labels, scores = table["label"].cast(pl.Int64).to_numpy(), table["score"].cast(pl.Float64).to_numpy()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{path} cannot be read as a table with columns score and label (CSV or Parquet): {error}") from error
    checked = check_scores(labels, scores)
    check_both_classes(checked[0])
    return checked


def _source(data: Path | None, table: PublicTable | None) -> str:
    if table is None:
        return str(data) if data is not None else "binormal simulation of the paper's setting"
    return f"test rows of {table.name}, scored by the contract's default network, its columns shared out at random"


def _trained(table: PublicTable, seed: int) -> tuple[NDArray[np.bool_], Floats]:
    """Train on a table that two parties share, and return the labels and scores of its test rows."""
    if table.target != "binary":
        raise ConfigError(f"--table {table.name}: its label is {table.target}; an AUC needs two classes")
    with TemporaryDirectory() as folder:
        audited_table(table, seed, folder=Path(folder), audit=False)
        (run_folder,) = (Path(folder) / "label").iterdir()
        return read_scores(run_folder)


def _scenarios(scored: tuple[NDArray[np.bool_], Floats] | None, seeds: Iterator[np.random.SeedSequence]) -> list[ScoredSet]:
    if scored is not None:
        labels, scores = scored
        # A file has no public sample, so the population's own model replaces it.
        rate = float(labels.mean())
        population = Population(rows=len(labels), positive_rate=rate, auc=min(max(_exact_auc(labels, scores), 0.01), 0.99))
        return [_scenario("given", None, labels, scores, population, _draw(population, np.random.default_rng(next(seeds)))[1])]
    scenarios = []
    for epoch, auc in enumerate(paper.PAPER_AUC):
        population = Population(rows=paper.PAPER_ROWS, positive_rate=paper.PAPER_POSITIVES / paper.PAPER_ROWS, auc=auc)
        labels, scores = _draw(population, np.random.default_rng(next(seeds)))
        public = _draw(population, np.random.default_rng(next(seeds)))[1]
        scenarios.append(_scenario(f"epoch {epoch}", epoch, labels, scores, population, public))
    return scenarios


def _scenario(
    name: str, epoch: int | None, labels_N: NDArray[np.bool_], scores_N: Floats, population: Population, public_N: Floats
) -> ScoredSet:
    order = np.argsort(scores_N, kind="stable")
    grid = ScoreBins(edges=score_grid())
    public = ScoreBins(edges=grid.edges, totals_B=grid.count(public_N)).merged(100)
    grid = ScoreBins(edges=grid.edges, totals_B=grid.count(scores_N))
    return ScoredSet(
        name=name,
        epoch=epoch,
        labels_N=labels_N[order],
        scores_N=scores_N[order],
        auc=_exact_auc(labels_N, scores_N),
        population=population,
        public_edges=tuple(public.edges.tolist()),
        grid=grid,
    )


def _draw(population: Population, rng: np.random.Generator) -> tuple[NDArray[np.bool_], Floats]:
    labels = np.arange(population.rows) < round(population.positives)
    return labels, population.score(rng.normal(size=population.rows) + labels * population.separation)


def _exact_auc(labels_N: NDArray[np.bool_], scores_N: Floats) -> float:
    return float(auc_of_counts(*ScoreBins.exact(scores_N).count_classes(labels_N, scores_N)))


def _cases(scenario: ScoredSet, epsilons: Sequence[float]) -> Iterator[Case]:
    """List the rows of Tables 1, 4, 5 and of the mechanisms' table."""

    def printed(cells: paper.Cells | None, epsilon: float) -> tuple[float, float] | None:
        return cells[EPSILONS.index(epsilon)] if cells is not None and epsilon in EPSILONS else None

    epoch = -1 if scenario.epoch is None else scenario.epoch
    for epsilon in epsilons:
        response = counting("randomised-response", epsilon=epsilon, thresholds=200)
        yield Case(
            table="table_1", scenario=scenario, mechanism=response, clients=1, paper=printed(paper.TABLE_1.get(epoch), epsilon)
        )
        published = counting("thresholds", epsilon=epsilon, accounting="published")
        for clients in (10, 1000):
            for partition in ("IID", "non-IID"):
                yield Case(
                    table="table_4",
                    scenario=scenario,
                    mechanism=published,
                    clients=clients,
                    partition=partition,
                    paper=printed(paper.TABLE_4.get((epoch, partition, clients)), epsilon),
                )
        for count in (10, 25, 50, 100, 200):
            yield Case(
                table="table_5",
                scenario=scenario,
                mechanism=counting("thresholds", epsilon=epsilon, thresholds=count, accounting="published"),
                clients=10,
                paper=printed(paper.TABLE_5.get((epoch, count)), epsilon),
                settings={"thresholds": count},
            )
        for clients in (10, 1000):
            for partition in ("IID", "non-IID"):
                # Other uses of the same epsilon
                ranks = COUNTING["two-statistics"].tuned(epsilon, scenario.population)
                for mechanism in [
                    counting("thresholds", epsilon=epsilon),
                    counting("record-histogram", epsilon=epsilon, edges=scenario.public_edges),
                    counting("label-histogram", epsilon=epsilon),
                    ranks,
                    counting("secure-sum", inner=counting("label-histogram", epsilon=epsilon, count=FINE_BINS)),
                    counting("secure-sum", inner=ranks),
                ]:
                    yield Case(table="mechanisms", scenario=scenario, mechanism=mechanism, clients=clients, partition=partition)


def _gaussian(scenario: ScoredSet, epsilon: float, clients: int) -> Case:
    """Return the published mechanism with Gaussian noise instead of Laplace noise."""
    mechanism = counting("thresholds", epsilon=epsilon, kind="gaussian", delta=GAUSSIAN_DELTA)
    return Case(table="mechanisms", scenario=scenario, mechanism=mechanism, clients=clients)


def _measure(case: Case, repeats: int, check_repeats: int, rng: np.random.Generator) -> list[Row]:
    scenario, mechanism = case.scenario, case.mechanism
    bins = mechanism.bins(scenario.grid)
    positives_B, negatives_B = _dealt_counts(scenario, bins, case, rng)
    draws = simulate_mechanism(
        mechanism,
        positives_B,
        negatives_B,
        bins,
        clients=case.clients,
        repeats=max(repeats, check_repeats),
        rng=rng,
        shares=mechanism.shares_of(case.clients),
    )
    predicted = mechanism.predicted_sd(replace(scenario.population, clients=case.clients))
    first_draws, sd_many = draws[:repeats], float(draws.std(ddof=1))
    paper_mean, paper_sd = case.paper or (None, None)
    row = {
        "scenario": scenario.name,
        "mechanism": mechanism.title,
        "accounting": accounting_of(mechanism),
        "epsilon": mechanism.epsilon,
        "clients": case.clients,
        "partition": case.partition,
        **case.settings,
        "mean": float(first_draws.mean()),
        "sd": float(first_draws.std(ddof=1)),
        "bias": float(draws.mean() - scenario.auc),
        "sd_many": sd_many,
        "predicted_sd": predicted,
        "predicted_ratio": predicted / sd_many if sd_many > 0 else None,  # at a large epsilon, few draws may all lack noise
        "paper_mean": paper_mean,
        "paper_sd": paper_sd,
    }
    return [row]


def accounting_of(mechanism: CountingMechanism) -> str | None:
    """Say how a mechanism's epsilon is counted, if there are several ways."""
    if not isinstance(mechanism, ThresholdCounts):
        return None
    return f"Gaussian, delta {mechanism.delta:g}" if mechanism.kind == "gaussian" else f"{mechanism.accounting} accounting"


def _dealt_counts(scenario: ScoredSet, bins: ScoreBins, case: Case, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Deal rows to clients, count per client and bin, and add up the counts, which gives the server's sum without noise."""
    rows = len(scenario.labels_N)
    contiguous = np.arange(rows) * case.clients // rows  # rows are in the order of their scores
    owner = rng.integers(0, case.clients, rows) if case.partition == "IID" else contiguous
    ends = np.searchsorted(scenario.scores_N, bins.edges, side="left")  # a score on an edge belongs above it
    bin_N = np.repeat(np.arange(len(bins)), np.diff(ends, prepend=0, append=rows))
    cells = (owner * 2 + scenario.labels_N) * len(bins) + bin_N
    counts = np.bincount(cells, minlength=case.clients * 2 * len(bins)).reshape(case.clients, 2, len(bins))
    negatives_B, positives_B = counts.sum(axis=0)
    return positives_B, negatives_B


def _measure_noisy_scores(scenario: ScoredSet, repeats: int, rng: np.random.Generator) -> list[Row]:
    """Measure a column of Table 3. Every repeat's noise is drawn once and scaled for each epsilon."""
    mechanisms = [NoisyScores(epsilon=float(epsilon)) for epsilon in paper.SCORE_EPSILONS]
    aucs = np.empty((repeats, len(mechanisms)))
    for repeat in range(repeats):
        draw = _OneDraw(rng, len(scenario.scores_N))
        for index, mechanism in enumerate(mechanisms):
            aucs[repeat, index] = mechanism.estimate(scenario.labels_N, mechanism.perturb(scenario.scores_N, noise=draw))
    return [
        {
            "scenario": scenario.name,
            "mechanism": mechanism.name,
            "epsilon": mechanism.epsilon,
            "mean": float(auc.mean()),
            "sd": float(auc.std(ddof=1)),
            "predicted_sd": mechanism.predicted_sd(scenario.population),
            "predicted_mean": mechanism.predicted_mean(scenario.population),
            "paper_mean": paper.TABLE_3[int(mechanism.epsilon)][scenario.epoch] if scenario.epoch is not None else None,
        }
        for mechanism, auc in zip(mechanisms, aucs.T, strict=True)
    ]


class _OneDraw(SimulatedNoise):
    """Give the same Laplace draw at every scale. This is NOT for releases."""

    def __init__(self, rng: np.random.Generator, rows: int) -> None:
        super().__init__(rng)
        self._unit_N = super().laplace(1.0, (rows,))

    def laplace(self, scale: float, shape: tuple[int, ...]) -> Floats:
        """Scale the draw."""
        assert shape == self._unit_N.shape
        return scale * self._unit_N


def _pool_predictions(rows: list[Row]) -> None:
    """Compare predictions with the root mean square of the scenarios' sds per epsilon.

    The sd of 100 repeats alone is 14 % uncertain (2 sd).
    """
    for row in rows:
        alike = [other for other in rows if other["epsilon"] == row["epsilon"]]
        measured = np.sqrt(np.mean([other["sd"] ** 2 for other in alike]))
        predicted = np.sqrt(np.mean([other["predicted_sd"] ** 2 for other in alike]))
        row["predicted_ratio"] = float(predicted / measured) if measured > 0 else None  # well separated: noise has no effect


def _densities(scenario: ScoredSet) -> list[Row]:
    """Draw Figure 3: the distribution of each class's scores."""
    of_class = {"negatives": scenario.scores_N[~scenario.labels_N], "positives": scenario.scores_N[scenario.labels_N]}
    rows = list[Row]()
    for name, scores_N in of_class.items():
        density_B, edges = np.histogram(scores_N, bins=DENSITY_BINS, range=(0, 1), density=True)
        middles_B = (edges[1:] + edges[:-1]) / 2
        rows += [
            {"scenario": scenario.name, "class": name, "score": float(score), "density": float(density)}
            for score, density in zip(middles_B, density_B, strict=True)
        ]
    return rows


def _top_k(scenario: ScoredSet) -> list[Row]:
    return [
        {
            "k": row.k,
            "positives": row.positives,
            "precision": row.precision,
            "recall": row.recall,
            "paper_positives": paper.TABLE_2[row.k] if scenario.epoch is not None else None,
        }
        for row in top_k_attack(scenario.labels_N, scenario.scores_N, list(paper.TABLE_2))
    ]
