"""A sample result: random scores of the demo's size, really measured."""

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest

from tallystick import results as r
from tallystick.config.sections import EvaluationConfig
from tallystick.evaluation.measure import compare_models
from tallystick.metrics import TargetType

CONTRACT = """version: 1
name: flights-delay
parties:
  carrier: {role: label}
  weather: {role: feature}
alignment: {method: intersection, keys: [{name: flight, normalise: [trim, lower]}]}
target: {type: binary}
training: {epochs: 8, batch_size: 512, mode: synchronous}
seed: 1
"""


@cache
def evaluation(target: TargetType, rows: int = 4000, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    own, more = rng.normal(size=rows), rng.normal(size=rows)
    if target == "regression":
        return compare_models(
            target,
            300 + 90 * own + 60 * more + 40 * rng.normal(size=rows),
            300 + 90 * own + 55 * more,
            300 + 90 * own,
            generator=rng,
        )
    if target == "count":
        counts = rng.poisson(np.exp(0.4 + 0.5 * own + 0.3 * more))
        return compare_models(target, counts, np.exp(0.4 + 0.5 * own + 0.28 * more), np.exp(0.44 + 0.5 * own), generator=rng)
    if target == "survival":
        middle_N = np.exp(3 + 0.5 * own + 0.4 * more)
        time_N, until_N = middle_N * np.exp(0.4 * rng.logistic(size=rows)), rng.exponential(60, rows)
        return compare_models(
            target, np.where(time_N < until_N, time_N, -until_N), middle_N, np.exp(3 + 0.5 * own), generator=rng
        )
    if target == "quantile":
        levels, edges = (0.1, 0.5, 0.9), np.array([-1.3, 0.0, 1.3])
        middle, labels = 300 + 90 * own, 300 + 90 * own + 60 * more + 40 * rng.normal(size=rows)
        joint, alone = (middle + 55 * more)[:, None] + 40 * edges, middle[:, None] + 72 * edges
        return compare_models(target, labels, joint, alone, levels=levels, generator=rng)
    if target == "multilabel":
        labels = rng.integers(0, 4, rows)
        hint = labels[:, None] >> np.arange(2) & 1
        joint, alone = 1.6 * hint + rng.normal(size=(rows, 2)), hint + rng.normal(size=(rows, 2))
        return compare_models(target, labels, joint, alone, labels=("click", "install"), generator=rng)
    if target == "multiclass":
        labels = rng.integers(0, 3, rows)
        hint = np.eye(3)[labels]
        return compare_models(
            target, labels, 1.6 * hint + rng.normal(size=(rows, 3)), hint + rng.normal(size=(rows, 3)), generator=rng
        )
    joint = 0.75 * own + 0.72 * more - 1.4
    labels = rng.random(rows) < 1 / (1 + np.exp(-joint))
    return compare_models(
        target, labels, joint, 0.7 * own - 1.27, evaluation=EvaluationConfig(calibration_bins=15), generator=rng
    )


def history(best: int, start: float, floor: float) -> list[r.EpochRecord]:
    return [
        r.EpochRecord(
            epoch=i,
            train_loss=floor - 0.012 + (start - floor) * np.exp(-i / 1.8) - 0.0022 * i,
            validation_loss=floor + (start - floor) * np.exp(-i / 1.5) + 0.0016 * max(0, i - best) ** 1.5,
            seconds=3.1 + 0.1 * (i % 3),
        )
        for i in range(1, 9)
    ]


def phases(party: str, other: float) -> list[r.PhaseRecord]:
    return [
        r.PhaseRecord(name="handshake", party=party, seconds=0.31, started=0.0, bytes_sent=2100, bytes_received=2100, messages=4),
        r.PhaseRecord(
            name="alignment",
            party=party,
            seconds=24.2,
            started=0.4,
            bytes_sent=int(20.9e6 * other),
            bytes_received=int(20.9e6 / other),
            messages=160,
        ),
        r.PhaseRecord(
            name="training",
            party=party,
            seconds=31.4,
            started=24.8,
            bytes_sent=int(241e6 * other),
            bytes_received=int(241e6 / other),
            messages=7360,
        ),
        r.PhaseRecord(
            name="evaluation",
            party=party,
            seconds=2.2,
            started=67.0,
            bytes_sent=int(17e6 * other),
            bytes_received=int(1e5 / other),
            messages=260,
        ),
    ]


def sample_result(target: TargetType = "binary", party: str | None = None) -> r.Result:
    """Return what the demo's report would have: flights whose delays an airline predicts, with and without the weather."""
    guarantee = "semi-honest, decisional Diffie-Hellman on ristretto255"
    own = [] if party == "weather" else [r.PhaseRecord(name="own-columns baseline", party="carrier", seconds=10.6, started=56.3)]
    losses = [] if party == "weather" else history(6, 0.62, 0.42)
    return r.Result(
        run_id="2026-01-31-0930-5f21",
        party=party,
        parties=[r.PartyInfo(name="carrier", role="label"), r.PartyInfo(name="weather", role="feature")],
        contract=r.ContractInfo(
            name="flights-delay",
            hash="8f6b1d3c52aa90e4b7c1d2f3a4958677e8d9c0b1a2f3e4d5c6b7a8990f1e2d3c",
            yaml=CONTRACT,
            summary={
                "target": target,
                "batch size": 512,
                "epochs": 8,
                "optimizer": "adam, rate 0.001",
                "cut after": "layer 2 of 4",
                "seed": 1,
            },
        ),
        started="2026-01-31T09:30:12+00:00",
        seconds=69.8,
        phases=[
            *(phases("carrier", 1.0) if party != "weather" else []),
            *own,
            *(phases("weather", 0.97) if party != "carrier" else []),
        ],
        alignment=r.AlignmentSummary(
            method="intersection",
            sizes={"rows of carrier": 327_346, "rows of weather": 318_950, "rows in common": 310_112},
            learnt=[
                "carrier learnt how many ids weather has, and which are in common.",
                "weather learnt how many ids carrier has, and which are in common.",
            ],
        ),
        learnt=[
            r.Learnt(
                step="handshake",
                party="carrier",
                what="weather's certificate, version and contract hash",
                guarantee="TLS 1.3, both sides verified",
            ),
            r.Learnt(
                step="handshake",
                party="weather",
                what="carrier's certificate, version and contract hash",
                guarantee="TLS 1.3, both sides verified",
            ),
            r.Learnt(
                step="alignment",
                party="carrier",
                what="the size of weather's id set; which own ids weather has too",
                guarantee=guarantee,
            ),
            r.Learnt(
                step="alignment",
                party="weather",
                what="the size of carrier's id set; which own ids carrier has too",
                guarantee=guarantee,
            ),
            r.Learnt(
                step="training",
                party="carrier",
                what="a cut embedding of 128 numbers per row and step",
                guarantee="no formal guarantee",
            ),
            r.Learnt(
                step="training",
                party="weather",
                what="a cut gradient of 128 numbers per row and step: labels may leak through it",
                guarantee="no formal guarantee",
            ),
            r.Learnt(step="evaluation", party="carrier", what="a cut embedding per test row", guarantee="no formal guarantee"),
        ],
        data=r.DataSummary(
            rows={"train": 217_078, "validation": 31_012, "test": 62_022},
            columns=[
                r.ColumnSummary(party="carrier", numeric=4, categorical=4),
                r.ColumnSummary(party="weather", numeric=11, categorical=5),
            ],
            notes=["9,430 flights without a known delay were left out.", "12 duplicate keys: the first row was kept."],
        ),
        model=[
            r.ModelPart(party="weather", name="bottom model", layers="5 embeddings of width 4, 31-128-128", parameters=41_088),
            r.ModelPart(party="carrier", name="bottom model", layers="4 embeddings of width 4, 20-128-128", parameters=20_004),
            r.ModelPart(party="carrier", name="top model", layers="256-128-128-1", parameters=49_537),
        ],
        training=r.TrainingSummary(
            mode="synchronous",
            steps=3392,
            best_epoch=6,
            history=losses,
            seconds=31.4,
            steps_per_s=108.0,
        ),
        local_baseline_training=None
        if party == "weather"
        else r.TrainingSummary(
            mode="one process", steps=3392, best_epoch=5, history=history(5, 0.63, 0.455), seconds=10.6, steps_per_s=320.0
        ),
        evaluation=None if party == "weather" else evaluation(target),
        versions={
            "tallystick": "0.1.0",
            "python": "3.11.2",
            "torch": "2.13.0",
            "libsodium": "1.0.18, in the wheel of rbcl 1.1.2",
        },
        sections=r.Sections(notes=["A sample: its scores are random numbers."]),
    )


def with_audits(result: r.Result) -> r.Result:
    """Add the sections of later runs."""
    return msgspec.structs.replace(
        result,
        sections=r.Sections(
            membership=r.Audit(
                summary="Both sides trained on the union; label-majority leaks through the gradient's sign.",
                attacks=[
                    r.AttackResult(
                        name="spectral", view="weather, from cut gradients", auc=0.5768, low=0.57, high=0.583, tpr_at_fpr_0=0.0
                    ),
                    r.AttackResult(
                        name="direction",
                        view="weather, from cut gradients",
                        auc=0.628,
                        low=0.624,
                        high=0.632,
                        tpr_at_fpr_0=0.256,
                        note="certain about positives",
                    ),
                    r.AttackResult(name="identical embeddings", view="carrier, from cut embeddings", auc=None),
                ],
            ),
            leakage=r.Audit(
                defense="Marvell, power 4: no formal guarantee",
                attacks=[
                    r.AttackResult(
                        name="norm",
                        view="weather, from cut gradients, knowing no label",
                        auc=0.972,
                        low=0.96,
                        high=0.98,
                        symmetric_auc=0.973,
                        symmetric_low=0.961,
                        symmetric_high=0.981,
                        symmetric_chance=0.521,
                        balanced_accuracy=0.913,
                        tpr_at_fpr_001=0.412,
                    ),
                    r.AttackResult(
                        name="clusters",
                        view="weather, from cut embeddings, knowing no label",
                        auc=0.31,
                        symmetric_auc=0.69,
                        chance=0.556,
                        note="of three classes",
                    ),
                    r.AttackResult(
                        name="probe", view="weather, from cut embeddings", auc=0.8, symmetric_auc=0.8, upper_bound=True
                    ),
                ],
            ),
            privacy=r.PrivacySummary(
                summary="Releases of carrier's labels under label differential privacy.",
                releases=[
                    r.Release(
                        what="AUC of the test split",
                        mechanism="per-bin histogram",
                        protects="labels",
                        epsilon=1.0,
                        party="carrier",
                        note="interval 0.761 to 0.769",
                    )
                ],
                spent_epsilon=1.0,
                cap_epsilon=4.0,
            ),
            notes=result.sections.notes,
        ),
    )


def estimate(mean: float, half: float = 0.01) -> r.Estimate:
    return r.Estimate(mean=mean, low=mean - half, high=mean + half)


def with_sweep(result: r.Result) -> r.Result:
    """A partner: no run, but trials of defences."""
    figures = {("none", ""): (0.78, 0.97, 0.71), ("marvell", "1"): (0.775, 0.66, 0.7), ("marvell", "16"): (0.75, 0.52, 0.69)}
    trials = [
        r.Trial(
            defense=defense,
            strength=strength,
            utility=estimate(utility),
            seeds=3,
            leaks=[
                r.Leak(attack="norm", reads="cut gradients", auc=estimate(gradients), chance=0.52),
                r.Leak(attack="spectral-embedding", reads="cut embeddings", auc=estimate(embeddings), chance=0.52),
                r.Leak(attack="probe", reads="cut embeddings", auc=estimate(0.79), upper_bound=True),
            ],
        )
        for (defense, strength), (utility, gradients, embeddings) in figures.items()
    ]
    sweep = r.Sweep(summary="carrier alone, on 20,000 of its own rows.", local_baseline=estimate(0.726), trials=trials)
    return msgspec.structs.replace(
        result,
        party="carrier",
        evaluation=None,
        training=None,
        phases=[],
        learnt=[],
        sections=r.Sections(sweep=sweep, leakage=with_audits(result).sections.leakage),
    )


@pytest.fixture
def make_sweep() -> Callable[..., r.Result]:
    return lambda *args, **more: with_sweep(sample_result(*args, **more))


@pytest.fixture
def make() -> Callable[..., r.Result]:
    return sample_result


@pytest.fixture
def make_audited() -> Callable[..., r.Result]:
    return lambda *args, **more: with_audits(sample_result(*args, **more))
