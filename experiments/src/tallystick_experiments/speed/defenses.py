"""Measure the time of each defence per batch, next to the training step that it defends: ``tallystick bench defenses``.

The step is that of the forward-embedding paper's network in one process: 26 categoricals of 1,000 values at width 4 and 13
numerics, five layers below the cut and two above, Adam. The distance correlation is also compared with its definition over all
pairs by autograd, in time (in turns in one process) and in peak memory (each in a fresh process). The definition is written in
two ways, and the ratios are to the better of them.

Shapes: B batch, D cut width, n rows.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from typer import Option

from tallystick.config.sections import BinaryTarget, MulticlassTarget, TargetConfig
from tallystick.defenses.chain import Defenses, EmbeddingDefenses, chain, embedding_chain
from tallystick.defenses.defense_table import DEFENSES, defense_named, installed_methods
from tallystick.defenses.distance_correlation import squared_distance_correlation
from tallystick.defenses.noise import NoiseStream
from tallystick.errors import TallystickError
from tallystick.models.build import seeded
from tallystick.models.tabular import TabularBottom, TabularTop
from tallystick.tables.features import FeatureShape
from tallystick_experiments.resident import RESET_PEAK, memory_mib
from tallystick_experiments.speed.training import drawn_features

POSITIVE_SHARE = 0.256  # Criteo's
SHAPE = FeatureShape(numeric=13, cardinalities=(1_000,) * 26)
BELOW, ABOVE = 5, 2

BINARY, MULTICLASS = BinaryTarget(), MulticlassTarget(type="multiclass", classes=10)
CASES: dict[str, tuple[dict[str, Any], TargetConfig]] = {
    **{
        method: ({"method": method, **defense.usual}, BINARY if "binary" in defense.targets else MULTICLASS)
        for method in (*DEFENSES, *installed_methods())
        if (defense := defense_named(method)) is not None
    },
    "marvell, dynamic": ({"method": "marvell", "max_sum_kl": 0.16}, BINARY),
    "distance-correlation, 10 classes": ({"method": "distance-correlation", "weight": 0.3}, MULTICLASS),
}
PEAK_TIMEOUT_S = 120


def measure_defenses(
    *,
    rows: Annotated[int, Option(help="Rows of a batch.", min=2)] = 8_192,
    width: Annotated[int, Option(help="Width of the cut.", min=1)] = 128,
    turns: Annotated[int, Option(help="Repetitions; medians are shown.", min=1)] = 5,
    seed: int = 1,
) -> dict[str, Any]:
    """Measure milliseconds per batch of the step and of every defence, and compare the distance correlation with its
    definition.
    """
    step = _training_step(rows, width, seed)
    step_ms = _milliseconds(step, turns)
    defenses = {}
    for name, (keys, target) in CASES.items():
        of_class = defense_named(keys["method"])
        assert of_class is not None, "it was found by this name"
        defense = of_class(**{key: value for key, value in keys.items() if key != "method"})
        defense_chain, hiding = chain([defense], target=target.type), embedding_chain([defense])
        work = _hiding(hiding, rows, width, seed) if hiding else _application(defense_chain, rows, width, target, seed)
        milliseconds = _milliseconds(work, turns)
        defenses[name] = {
            "ms_per_batch": milliseconds,
            "share_of_step": milliseconds / step_ms,
            "applied": "once per run" if defense_chain.labels and not defense_chain.gradients else "every step",
        }
    return {
        "batch_size": rows,
        "cut_width": width,
        "cores": torch.get_num_threads(),
        "training_step_ms": step_ms,
        "defenses": defenses,
        "distance_correlation": _against_definition(rows, width, turns=max(1, turns // 2), seed=seed),
    }


def _hiding(made: EmbeddingDefenses, rows: int, width: int, seed: int) -> Callable[[], object]:
    """Return a feature party's defence, forward and backward."""
    generator = torch.Generator().manual_seed(seed)
    features = drawn_features(SHAPE, rows, generator)
    cut_BD = torch.randn(rows, width, generator=generator).relu()

    def work() -> None:
        leaf_BD = cut_BD.clone().requires_grad_()
        penalty = made.penalty(leaf_BD, features.numeric_NF, features.categorical_NG)
        sent_BD = made.defend(leaf_BD, NoiseStream(bytes(32)))
        (sent_BD.sum() if penalty is None else sent_BD.sum() + penalty).backward()  # type: ignore[no-untyped-call]

    return work


def _training_step(rows: int, width: int, seed: int) -> Callable[[], object]:
    with seeded(seed, "bench defenses"):
        bottom = TabularBottom(SHAPE, embedding_width=4, hidden=(width,) * BELOW)
        top = TabularTop(width, hidden=(width,) * ABOVE, outputs=1)
        model = nn.Sequential(bottom, top)
    generator = torch.Generator().manual_seed(seed)
    features = drawn_features(SHAPE, rows, generator)
    labels_B = (torch.rand(rows, generator=generator) < POSITIVE_SHARE).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(model(features).reshape(-1), labels_B).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _application(made: Defenses, rows: int, width: int, target: TargetConfig, seed: int) -> Callable[[], object]:
    cut_BD, labels_B = _cut(rows, width, target.classes, seed)
    if made.labels and not made.gradients:
        return lambda: made.defend_labels(labels_B, target.classes, os.urandom)
    if made.penalties:
        (penalty,) = made.penalties
        return lambda: _value_and_gradient(lambda leaf_BD: penalty(leaf_BD, labels_B), cut_BD)
    secret = os.urandom(32)
    return lambda: made.defend_gradients(cut_BD / rows, labels_B, NoiseStream(secret))


def _cut(rows: int, width: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw cut embeddings, or gradients, that depend on the labels."""
    generator = torch.Generator().manual_seed(seed)
    if classes == 2:
        labels_B = (torch.rand(rows, generator=generator) < POSITIVE_SHARE).float()
    else:
        labels_B = torch.randint(0, classes, (rows,), generator=generator)
    return torch.randn(rows, width, generator=generator) + 0.2 * labels_B[:, None], labels_B


def _milliseconds(work: Callable[[], object], turns: int) -> float:
    """Return the median time of some calls, after one that is not counted."""
    work()
    times = []
    for _ in range(turns):
        started = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def _value_and_gradient(function: Callable[[Tensor], Tensor], cut_BD: Tensor) -> tuple[float, Tensor]:
    leaf_BD = cut_BD.clone().requires_grad_()
    value = function(leaf_BD)
    return value.item(), torch.autograd.grad(value, leaf_BD)[0]


def by_matrix_product(cut_BD: Tensor, labels_B: Tensor) -> Tensor:
    """Compute dCor^2 by definition, with squared distances from one matrix product, as it is usually written in PyTorch."""
    square_B = cut_BD.square().sum(dim=1)
    squared_BB = (square_B[:, None] + square_B[None, :] - 2 * cut_BD @ cut_BD.T).clamp_min(0)
    return _by_definition((squared_BB + 1e-8).sqrt(), labels_B)


def by_cdist(cut_BD: Tensor, labels_B: Tensor) -> Tensor:
    """Compute dCor^2 by definition, with distances from torch.cdist."""
    return _by_definition(torch.cdist(cut_BD, cut_BD), labels_B)


def _by_definition(distance_BB: Tensor, labels_B: Tensor) -> Tensor:
    first_BB, second_BB = _centred(distance_BB), _centred((labels_B[:, None] != labels_B[None, :]).to(distance_BB.dtype))
    variances = (first_BB * first_BB).mean() * (second_BB * second_BB).mean()
    return (first_BB * second_BB).mean() / variances.sqrt()


def _centred(d_BB: Tensor) -> Tensor:
    return d_BB - d_BB.mean(dim=0) - d_BB.mean(dim=1, keepdim=True) + d_BB.mean()


WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "closed_form": squared_distance_correlation,
    "matrix_product": by_matrix_product,
    "cdist": by_cdist,
}


def _against_definition(rows: int, width: int, *, turns: int, seed: int) -> dict[str, Any]:
    cut_BD, labels_B = _cut(rows, width, 2, seed)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    values, gradients = {}, {}
    small_BD, small_B = _cut(64, width, 2, seed)
    for way in WAYS.values():  # a first call loads libraries
        _value_and_gradient(lambda leaf_BD, way=way: way(leaf_BD, small_B), small_BD)  # type: ignore[misc]
    for _ in range(turns):
        for name, way in WAYS.items():
            started = time.perf_counter()
            values[name], gradients[name] = _value_and_gradient(lambda leaf_BD, way=way: way(leaf_BD, labels_B), cut_BD)  # type: ignore[misc]
            seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    best_time = min(medians["matrix_product"], medians["cdist"])
    scale = float(gradients["matrix_product"].abs().max())
    return {
        "ms": {name: 1e3 * value for name, value in medians.items()},
        "time_ratio": medians["closed_form"] / best_time,
        **_peaks(rows, width, seed),
        "value_difference": abs(values["closed_form"] - values["matrix_product"]) / values["matrix_product"],
        "gradient_difference": float((gradients["closed_form"] - gradients["matrix_product"]).abs().max()) / scale,
    }


def _peaks(rows: int, width: int, seed: int) -> dict[str, Any]:
    if not RESET_PEAK.exists():
        return {"peak_mib": None, "peak_ratio": None}  # only Linux lets a process reset its peak
    peaks = {name: _peak_mib(name, rows, width, seed) for name in WAYS}
    return {"peak_mib": peaks, "peak_ratio": peaks["closed_form"] / min(peaks["matrix_product"], peaks["cdist"])}


def _peak_mib(way: str, rows: int, width: int, seed: int) -> float:
    """Measure how far one value and gradient raise a fresh process's resident memory."""
    arguments = [sys.executable, "-m", __name__, way, str(rows), str(width), str(seed)]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=PEAK_TIMEOUT_S, check=False)
    if ended.returncode:
        raise TallystickError(f"measuring the memory of {way} failed: {ended.stderr.strip()[-300:]}")
    return float(json.loads(ended.stdout))


def _measure_peak(way: str, rows: int, width: int, seed: int) -> float:
    """Run in the fresh process: make a first call that loads libraries, reset the peak, then run once."""
    small_BD, small_B = _cut(64, width, 2, seed)
    _value_and_gradient(lambda leaf_BD: WAYS[way](leaf_BD, small_B), small_BD)
    cut_BD, labels_B = _cut(rows, width, 2, seed)
    RESET_PEAK.write_text("5", encoding="ascii")
    before = memory_mib("VmRSS")
    _value_and_gradient(lambda leaf_BD: WAYS[way](leaf_BD, labels_B), cut_BD)
    return memory_mib("VmHWM") - before


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure_peak(sys.argv[1], *(int(word) for word in sys.argv[2:]))))
