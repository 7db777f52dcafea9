"""``tallystick bench dpauc``: Tables 1 to 5 of DPAUC beside its numbers, and what the other mechanisms give for the same epsilon.

Scores come from a file with columns ``score`` and ``label``, or from the paper's setting as a binormal simulation: M =
458,407 rows, P = 117,317 positives, and the AUC of its three epochs. The data are fixed and the noise is drawn anew in every
repeat, as in the paper.

A mechanism's noise is drawn from the distribution of its sum over the clients (mechanism.simulate), so a thousand clients
cost what one does. Rows are dealt to clients as the paper says and their counts added up again: IID and non-IID differ in nothing
but their seeds.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.errors import DataError
from tallystick.evaluation.private.aggregation import SecureSum
from tallystick.evaluation.private.bins import (
    Bins,
    Floats,
    Ints,
    Population,
    auc_of_counts,
    check_both_classes,
    check_scores,
    score_grid,
)
from tallystick.evaluation.private.histogram import LabelHistogram, RecordHistogram
from tallystick.evaluation.private.mechanism import CountingMechanism, simulate
from tallystick.evaluation.private.ranks import RandomisedResponse, TwoStatistics
from tallystick.evaluation.private.release import FINE_BINS, describe, release
from tallystick.evaluation.private.scores import NoisyScores, top_k_attack
from tallystick.evaluation.private.thresholds import ThresholdCounts
from tallystick.network.channel import Progress, no_progress
from tallystick.privacy.ledger import Ledger
from tallystick.privacy.noise import SimulatedNoise

PAPER_ROWS = 458_407
PAPER_POSITIVES = 117_317
PAPER_AUC = (0.749383, 0.766477, 0.770219)  # scikit-learn, epochs 0 to 2
EPSILONS = (8.0, 4.0, 2.0, 1.0)
SCORE_EPSILONS = (*range(1, 11), 50, 100, 1000)

# (mean, sd) for epsilon = 8, 4, 2, 1
Cells = tuple[tuple[float, float], tuple[float, float], tuple[float, float], tuple[float, float]]

TABLE_1: dict[int, Cells] = {
    0: ((0.74938, 0.00004), (0.749398, 0.0004), (0.749108, 0.000932), (0.750239, 0.001766)),
    1: ((0.766447, 0.000054), (0.766338, 0.000338), (0.7665588, 0.001109), (0.766392, 0.002098)),
    2: ((0.770204, 0.000049), (0.770112, 0.000375), (0.7702048, 0.000795), (0.771098, 0.001891)),
}
TABLE_2 = {  # k: positives among the top k
    1: 1,
    5: 4,
    10: 8,
    50: 43,
    100: 79,
    500: 384,
    1_000: 774,
    5_000: 3_914,
    10_000: 7_519,
    50_000: 30_793,
    100_000: 52_268,
}
TABLE_3 = {  # epsilon: AUC of epochs 0 to 2
    1: (0.5374, 0.5416, 0.5420),
    2: (0.5725, 0.5795, 0.5830),
    3: (0.5976, 0.6105, 0.6130),
    4: (0.6239, 0.6367, 0.6387),
    5: (0.6413, 0.6569, 0.6607),
    6: (0.6571, 0.6732, 0.6786),
    7: (0.6698, 0.6870, 0.6903),
    8: (0.6797, 0.6976, 0.7022),
    9: (0.6885, 0.7060, 0.7115),
    10: (0.6952, 0.7124, 0.7191),
    50: (0.7454, 0.7625, 0.7663),
    100: (0.7484, 0.7654, 0.7692),
    1000: (0.7494, 0.7665, 0.7702),
}
TABLE_4: dict[tuple[int, str, int], Cells] = {  # epoch, partition, clients
    (0, "IID", 10): ((0.749347, 0.000216), (0.749178, 0.000484), (0.748937, 0.000755), (0.748206, 0.001649)),
    (0, "non-IID", 10): ((0.749319, 0.000242), (0.749260, 0.000474), (0.749192, 0.00072), (0.748962, 0.00178)),
    (0, "IID", 1000): ((0.74811, 0.002335), (0.745557, 0.004498), (0.738944, 0.008008), (0.726187, 0.014704)),
    (0, "non-IID", 1000): ((0.748062, 0.001981), (0.746105, 0.004465), (0.741711, 0.009246), (0.726885, 0.016539)),
    (1, "IID", 10): ((0.766373, 0.000239), (0.766309, 0.000402), (0.76611, 0.000894), (0.765684, 0.001677)),
    (1, "non-IID", 10): ((0.766378, 0.000231), (0.766197, 0.000471), (0.76612, 0.000755), (0.765447, 0.001805)),
    (1, "IID", 1000): ((0.764887, 0.002241), (0.763012, 0.004378), (0.756938, 0.008096), (0.740619, 0.017457)),
    (1, "non-IID", 1000): ((0.764923, 0.002036), (0.763246, 0.004022), (0.756715, 0.009105), (0.744978, 0.018234)),
    (2, "IID", 10): ((0.770091, 0.000258), (0.769995, 0.000498), (0.770028, 0.000788), (0.769143, 0.00172)),
    (2, "non-IID", 10): ((0.770095, 0.000213), (0.770115, 0.000434), (0.76981, 0.000903), (0.769265, 0.001502)),
    (2, "IID", 1000): ((0.76918, 0.002519), (0.766482, 0.004387), (0.761074, 0.007947), (0.745812, 0.014596)),
    (2, "non-IID", 1000): ((0.768894, 0.002104), (0.766819, 0.003802), (0.759916, 0.007251), (0.746815, 0.016511)),
}
TABLE_5: dict[tuple[int, int], Cells] = {  # epoch, thresholds
    (0, 10): ((0.7251052, 0.000074), (0.725064, 0.000167), (0.725008, 0.000323), (0.724899, 0.000607)),
    (0, 25): ((0.747879, 0.000147), (0.747895, 0.000275), (0.747669, 0.000625), (0.747278, 0.000889)),
    (0, 50): ((0.748914, 0.000161), (0.748884, 0.000343), (0.748988, 0.000657), (0.748816, 0.001279)),
    (0, 100): ((0.749347, 0.000216), (0.749178, 0.000484), (0.748937, 0.000755), (0.748206, 0.001649)),
    (0, 200): ((0.74929, 0.000289), (0.74916, 0.000573), (0.748491, 0.001204), (0.747117, 0.002224)),
    (1, 10): ((0.744348, 0.000084), (0.744317, 0.000144), (0.744215, 0.000328), (0.744058, 0.000639)),
    (1, 25): ((0.765178, 0.000159), (0.765045, 0.000252), (0.7649144, 0.000507), (0.764968, 0.001282)),
    (1, 50): ((0.766198, 0.000187), (0.766181, 0.000329), (0.765973, 0.000723), (0.766009, 0.001216)),
    (1, 100): ((0.766373, 0.000239), (0.766309, 0.000402), (0.76611, 0.000894), (0.765684, 0.001677)),
    (1, 200): ((0.76638, 0.000311), (0.766235, 0.000677), (0.765694, 0.001367), (0.764399, 0.002264)),
    (2, 10): ((0.748858, 0.000073), (0.7487984, 0.000123), (0.748821, 0.000331), (0.748626, 0.000591)),
    (2, 25): ((0.769006, 0.000162), (0.768992, 0.000323), (0.768705, 0.000508), (0.768357, 0.001308)),
    (2, 50): ((0.769806, 0.000220), (0.769756, 0.000500), (0.769549, 0.000805), (0.76939, 0.001034)),
    (2, 100): ((0.770091, 0.000258), (0.769995, 0.000498), (0.770028, 0.000788), (0.769143, 0.00172)),
    (2, 200): ((0.770137, 0.000319), (0.769729, 0.000633), (0.769066, 0.001085), (0.767694, 0.002746)),
}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One test set: scores and labels in the order of the score, their exact AUC, and bin edges from a public sample."""

    name: str
    epoch: int | None
    """Which of the paper's epochs this stands for, or None for a file."""
    labels_N: NDArray[np.bool_]
    scores_N: Floats
    auc: float
    population: Population
    public_edges: tuple[float, ...]
    """Nearly equal masses of an independent sample of the same kind, for the record-level histogram."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of a table, before it is measured."""

    table: str
    scenario: Scenario
    mechanism: CountingMechanism
    clients: int
    partition: str = "IID"
    paper: tuple[float, float] | None = None
    settings: tuple[tuple[str, Any], ...] = ()


def run(
    data: Path | None = None,
    *,
    repeats: int = 100,
    check_repeats: int = 1000,
    seed: int = 0,
    epsilons: Sequence[float] = EPSILONS,
    workers: int = 2,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Measure every row and give plain data: Tables 1 to 5, the table of mechanisms, and how far the predictions are off.

    Means and standard deviations are over ``repeats`` draws. The prediction is compared with a standard deviation over
    ``check_repeats`` draws, which is itself within 5 % (2 sd) for 1,000. Raises DataError for a file without usable scores
    and labels.
    """
    started = time.perf_counter()
    seeds = iter(np.random.SeedSequence(seed).spawn(2000))
    scenarios = _scenarios(data, seeds)
    cases = [case for scenario in scenarios for case in _cases(scenario, epsilons)]
    jobs: list[tuple[str, Callable[[], dict[str, Any]]]] = [
        (case.table, _job(_measure, case, repeats, check_repeats, np.random.default_rng(next(seeds)))) for case in cases
    ]
    jobs += [
        ("table_3", _job(_measure_noisy_scores, scenario, float(epsilon), repeats, np.random.default_rng(next(seeds))))
        for scenario in scenarios
        for epsilon in SCORE_EPSILONS
    ]
    tables: dict[str, list[dict[str, Any]]] = {
        "table_1": [],
        "table_2": [],
        "table_3": [],
        "table_4": [],
        "table_5": [],
        "mechanisms": [],
    }
    with ThreadPoolExecutor(workers) as pool:
        results = [(table, pool.submit(job)) for table, job in jobs]
        for done, (table, result) in enumerate(results, 1):
            tables[table].append(result.result())
            progress("rows", done, len(results))
    _pool_predictions(tables["table_3"])
    for scenario in scenarios[:1]:
        tables["table_2"] = _top_k(scenario)
    ratios = [ratio for table in tables.values() for row in table if (ratio := row.get("predicted_ratio")) is not None]
    return {
        "benchmark": "dpauc",
        "source": str(data) if data is not None else "binormal simulation of the paper's setting",
        "rows": len(scenarios[0].labels_N),
        "positives": int(scenarios[0].labels_N.sum()),
        "repeats": repeats,
        "check_repeats": check_repeats,
        "seed": seed,
        "exact_auc": {scenario.name: scenario.auc for scenario in scenarios},
        "tables": tables,
        "predictions": {"rows": len(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)},
        "seconds": time.perf_counter() - started,
    }


def coverage(
    labels_N: NDArray[Any] | None = None,
    scores_N: NDArray[Any] | None = None,
    *,
    epsilon: float = 1.0,
    runs: int = 100,
    seed: int = 0,
) -> dict[str, Any]:
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
            ledger = Ledger(Path(folder) / f"{index}.ledger", party="label party")
            noise = SimulatedNoise(np.random.default_rng([seed, index]))
            results.append(release(labels, scores, epsilon=epsilon, ledger=ledger, dataset="test", rng=noise))
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
    """Read columns ``score`` and ``label`` from a CSV or Parquet file."""
    reader = pl.read_parquet if path.suffix == ".parquet" else pl.read_csv
    try:
        table = reader(path, columns=["label", "score"])
        labels, scores = table["label"].cast(pl.Int64).to_numpy(), table["score"].cast(pl.Float64).to_numpy()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{path} cannot be read as a table with columns score and label (CSV or Parquet): {error}") from error
    checked = check_scores(labels, scores)
    check_both_classes(checked[0])
    return checked


def _scenarios(data: Path | None, seeds: Iterator[np.random.SeedSequence]) -> list[Scenario]:
    if data is not None:
        labels, scores = read_scores(data)
        # A public sample is what a file does not have: the population's own model stands in for it.
        rate = float(labels.mean())
        population = Population(rows=len(labels), positive_rate=rate, auc=min(max(_exact_auc(labels, scores), 0.01), 0.99))
        return [_scenario("file", None, labels, scores, population, _draw(population, np.random.default_rng(next(seeds)))[1])]
    made = []
    for epoch, auc in enumerate(PAPER_AUC):
        population = Population(rows=PAPER_ROWS, positive_rate=PAPER_POSITIVES / PAPER_ROWS, auc=auc)
        labels, scores = _draw(population, np.random.default_rng(next(seeds)))
        public = _draw(population, np.random.default_rng(next(seeds)))[1]
        made.append(_scenario(f"epoch {epoch}", epoch, labels, scores, population, public))
    return made


def _scenario(
    name: str, epoch: int | None, labels_N: NDArray[np.bool_], scores_N: Floats, population: Population, public_N: Floats
) -> Scenario:
    order = np.argsort(scores_N, kind="stable")
    grid = Bins(edges=score_grid())
    public = Bins(edges=grid.edges, totals_B=grid.count(public_N)).merged(100)
    return Scenario(
        name=name,
        epoch=epoch,
        labels_N=labels_N[order],
        scores_N=scores_N[order],
        auc=_exact_auc(labels_N, scores_N),
        population=population,
        public_edges=tuple(public.edges.tolist()),
    )


def _draw(population: Population, rng: np.random.Generator) -> tuple[NDArray[np.bool_], Floats]:
    labels = np.arange(population.rows) < round(population.positives)
    return labels, population.score(rng.normal(size=population.rows) + labels * population.separation)


def _exact_auc(labels_N: NDArray[np.bool_], scores_N: Floats) -> float:
    return float(auc_of_counts(*Bins.exact(scores_N).count_classes(labels_N, scores_N)))


def _cases(scenario: Scenario, epsilons: Sequence[float]) -> Iterator[Case]:
    """List the rows of Tables 1, 4, 5 and of the mechanisms' table."""

    def paper(cells: Cells | None, epsilon: float) -> tuple[float, float] | None:
        return cells[EPSILONS.index(epsilon)] if cells is not None and epsilon in EPSILONS else None

    epoch = -1 if scenario.epoch is None else scenario.epoch
    for epsilon in epsilons:
        response = RandomisedResponse(epsilon=epsilon, thresholds=200)
        yield Case(table="table_1", scenario=scenario, mechanism=response, clients=1, paper=paper(TABLE_1.get(epoch), epsilon))
        published = ThresholdCounts(epsilon=epsilon, accounting="published")
        for clients in (10, 1000):
            for partition in ("IID", "non-IID"):
                yield Case(
                    table="table_4",
                    scenario=scenario,
                    mechanism=published,
                    clients=clients,
                    partition=partition,
                    paper=paper(TABLE_4.get((epoch, partition, clients)), epsilon),
                )
        for count in (10, 25, 50, 100, 200):
            yield Case(
                table="table_5",
                scenario=scenario,
                mechanism=ThresholdCounts(epsilon=epsilon, thresholds=count, accounting="published"),
                clients=10,
                paper=paper(TABLE_5.get((epoch, count)), epsilon),
                settings=(("thresholds", count),),
            )
        for clients in (10, 1000):
            for partition in ("IID", "non-IID"):
                for mechanism in _better(scenario, epsilon):
                    yield Case(table="mechanisms", scenario=scenario, mechanism=mechanism, clients=clients, partition=partition)


def _better(scenario: Scenario, epsilon: float) -> list[CountingMechanism]:
    """List what else the same epsilon buys."""
    ranks = TwoStatistics.tuned(epsilon, scenario.population)
    return [
        ThresholdCounts(epsilon=epsilon),
        RecordHistogram(epsilon=epsilon, edges=scenario.public_edges),
        LabelHistogram(epsilon=epsilon),
        ranks,
        SecureSum(inner=LabelHistogram(epsilon=epsilon, count=FINE_BINS)),
        SecureSum(inner=ranks),
    ]


def _measure(case: Case, repeats: int, check_repeats: int, rng: np.random.Generator) -> dict[str, Any]:
    scenario, mechanism = case.scenario, case.mechanism
    grid = Bins(edges=score_grid())
    bins = mechanism.bins(Bins(edges=grid.edges, totals_B=grid.count(scenario.scores_N)))
    positives_B, negatives_B = _dealt_counts(scenario, bins, case, rng)
    draws = simulate(
        mechanism,
        positives_B,
        negatives_B,
        bins,
        clients=case.clients,
        repeats=max(repeats, check_repeats),
        rng=rng,
        shares=case.clients if isinstance(mechanism, SecureSum) else None,
    )
    assumed = Population(
        rows=scenario.population.rows,
        positive_rate=scenario.population.positive_rate,
        auc=scenario.population.auc,
        clients=case.clients,
    )
    predicted = mechanism.predicted_sd(assumed)
    shown, sd_many = draws[:repeats], float(draws.std(ddof=1))
    return {
        "scenario": scenario.name,
        "mechanism": describe(mechanism),
        "accounting": getattr(mechanism, "accounting", None),
        "epsilon": mechanism.epsilon,
        "clients": case.clients,
        "partition": case.partition,
        **dict(case.settings),
        "mean": float(shown.mean()),
        "sd": float(shown.std(ddof=1)),
        "bias": float(draws.mean() - scenario.auc),
        "sd_many": sd_many,
        "predicted_sd": predicted,
        "predicted_ratio": predicted / sd_many if sd_many > 0 else None,  # few draws at a large epsilon may all be free of noise
        "paper_mean": case.paper[0] if case.paper else None,
        "paper_sd": case.paper[1] if case.paper else None,
    }


def _dealt_counts(scenario: Scenario, bins: Bins, case: Case, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Deal rows to clients, count per client and bin, and add the counts up (what the server's sum holds without noise)."""
    rows = len(scenario.labels_N)
    contiguous = np.arange(rows) * case.clients // rows  # rows are in the order of their scores
    owner = rng.integers(0, case.clients, rows) if case.partition == "IID" else contiguous
    cells = (owner * 2 + scenario.labels_N) * len(bins) + np.searchsorted(bins.edges, scenario.scores_N, side="right")
    counts = np.bincount(cells, minlength=case.clients * 2 * len(bins)).reshape(case.clients, 2, len(bins))
    negatives_B, positives_B = counts.sum(axis=0)
    return positives_B, negatives_B


def _measure_noisy_scores(scenario: Scenario, epsilon: float, repeats: int, rng: np.random.Generator) -> dict[str, Any]:
    mechanism, source = NoisyScores(epsilon=epsilon), SimulatedNoise(rng)
    aucs = [mechanism.estimate(scenario.labels_N, mechanism.perturb(scenario.scores_N, noise=source)) for _ in range(repeats)]
    paper = TABLE_3.get(int(epsilon)) if scenario.epoch is not None else None
    return {
        "scenario": scenario.name,
        "mechanism": mechanism.name,
        "epsilon": epsilon,
        "mean": float(np.mean(aucs)),
        "sd": float(np.std(aucs, ddof=1)),
        "predicted_sd": mechanism.predicted_sd(scenario.population),
        "predicted_mean": mechanism.predicted_mean(scenario.population),
        "paper_mean": paper[scenario.epoch] if paper is not None and scenario.epoch is not None else None,
    }


def _pool_predictions(rows: list[dict[str, Any]]) -> None:
    """Compare predictions with the root mean square of the scenarios' sds per epsilon: 100 repeats alone are 14 % uncertain
    (2 sd)."""
    for row in rows:
        alike = [other for other in rows if other["epsilon"] == row["epsilon"]]
        measured = np.sqrt(np.mean([other["sd"] ** 2 for other in alike]))
        predicted = np.sqrt(np.mean([other["predicted_sd"] ** 2 for other in alike]))
        row["predicted_ratio"] = float(predicted / measured)


def _top_k(scenario: Scenario) -> list[dict[str, Any]]:
    return [
        {
            "k": row.k,
            "positives": row.positives,
            "precision": row.precision,
            "recall": row.recall,
            "paper_positives": TABLE_2[row.k] if scenario.epoch is not None else None,
        }
        for row in top_k_attack(scenario.labels_N, scenario.scores_N, list(TABLE_2))
    ]


def _job(function: Callable[..., dict[str, Any]], *arguments: Any) -> Callable[[], dict[str, Any]]:
    return lambda: function(*arguments)


def paper_claims(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Pick out of ``run``'s result what the mechanisms reach at epsilon 1 in epoch 0 (or the file), IID, for K = 10 and 1,000."""
    chosen: Sequence[dict[str, Any]] = [
        *(row for row in result["tables"]["table_4"]),
        *(row for row in result["tables"]["mechanisms"]),
    ]
    keys = ("mechanism", "accounting", "clients", "mean", "sd", "sd_many", "bias", "predicted_sd", "predicted_ratio")
    first = chosen[0]["scenario"]
    return [
        {key: row[key] for key in keys}
        for row in chosen
        if row["epsilon"] == 1 and row["partition"] == "IID" and row["scenario"] == first
    ]
