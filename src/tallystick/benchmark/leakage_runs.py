"""One training run of the label-leakage benchmark: a network, a schedule, defences; what it is worth and what leaks.

Shapes: B rows of a batch, D cut width, N training rows.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from tallystick.attacks.judge import rank_auc
from tallystick.attacks.leakage import LEAKAGE_ATTACKS, LeakageAttack, LeakJudge, audit_leakage
from tallystick.attacks.leakage.direction import DirectionAttack
from tallystick.attacks.leakage.knowledge import HintsPerBatch
from tallystick.attacks.leakage.spectral import spectral_scores
from tallystick.attacks.view import View
from tallystick.benchmark.criteo import ClickData, ClickTable
from tallystick.benchmark.leakage_loop import Epoch, Network, Schedule, SplitNetwork
from tallystick.config.contract import Target
from tallystick.config.defense import DefenseEntry
from tallystick.defenses.build import build
from tallystick.errors import ConfigError

EACH_EPOCH = ("norm", "direction-1", "direction-3", "direction-5", "spectral-gradient", "spectral-embedding")
CLEAN_HINT = "direction-1-clean"
JUDGE = LeakJudge(replicates=1)  # intervals come from seeds


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What tells one row of a table or one point of a figure from the others."""

    name: str
    defense: tuple[DefenseEntry, ...] = ()
    network: Network = field(default_factory=Network)
    schedule: Schedule | None = None  # None: the sweep's
    positive_rate: float | None = None  # None: as it is; else negatives are dropped at random to reach it
    by_layer: bool = False


def run_scenario(
    scenario: Scenario, clicks: ClickData, *, schedule: Schedule, seed: int, attacks: Mapping[str, LeakageAttack] | None = None
) -> dict[str, Any]:
    """Train once; after each epoch judge the fast attacks on its steps, after the last one all of ``attacks``.

    Returns:
        name, seed, seconds; per epoch test_auc, loss and leak AUC by attack; of the last epoch all figures of every attack, and
        the spectral attack's AUC on every layer's output if asked for. AUCs are max(a, 1 - a) per batch: see LeakVerdict.folded.
    """
    started = time.perf_counter()
    schedule = scenario.schedule or schedule
    network = SplitNetwork(clicks, scenario.network, schedule, seed=seed)
    attacks = LEAKAGE_ATTACKS if attacks is None else attacks
    epochs, final = [], {}
    for epoch in network.epochs(build(scenario.defense, target=Target())):
        last = epoch.number == schedule.epochs - 1
        chosen = attacks if last else {name: attacks[name] for name in EACH_EPOCH if name in attacks}
        final = _leaks(epoch, clicks.training_labels_N, chosen, seed=seed)
        epochs.append(
            {
                "test_auc": epoch.test_auc,
                "loss": epoch.loss,
                "leaks": {name: final[name]["folded"] for name in (*EACH_EPOCH, CLEAN_HINT) if name in final},
            }
        )
    return {
        "name": scenario.name,
        "seed": seed,
        "epochs": epochs,
        "attacks": final,
        "layers": layer_aucs(network) if scenario.by_layer else [],
        "seconds": time.perf_counter() - started,
    }


def _leaks(epoch: Epoch, labels_N: Tensor, attacks: Mapping[str, LeakageAttack], *, seed: int) -> dict[str, dict[str, Any]]:
    view = View(received="cut_gradient", steps=epoch.steps)
    found = {
        name: verdict.as_figures()
        for name, verdict in audit_leakage(view, labels_N, attacks=attacks, judge=JUDGE, seed=seed).items()
    }
    if "direction-1" in attacks:
        found[CLEAN_HINT] = _clean_hint(view, epoch.undefended, labels_N, seed=seed)
    return found


def _clean_hint(view: View, undefended: Sequence[Tensor], labels_N: Tensor, *, seed: int) -> dict[str, Any]:
    """Marvell's own evaluation: the attacker is given one positive row's gradient of every batch before any noise."""
    told = HintsPerBatch(count=1).tell(view, labels_N.long(), rng=np.random.default_rng([seed, 3]))
    assert told.known_labels is not None
    clean = tuple(grad_BD[known_B >= 0] for grad_BD, known_B in zip(undefended, told.known_labels, strict=True))
    scores = DirectionAttack()(replace(told, clean_hints=clean), generator=torch.Generator())
    verdict = JUDGE(scores, labels_N.long(), rng=np.random.default_rng([seed, 4]))
    return verdict.as_figures() if verdict is not None else {}


def layer_aucs(network: SplitNetwork) -> list[float]:
    """AUC of the spectral attack on each layer's output, first layer first, the logit last; mean over passes of 8,192 rows.

    The layers above the cut are the label party's: their AUC is no leak, it says where the label is learned.
    """
    by_pass = [
        [_folded(labels_B > 0.5, spectral_scores(output_BD)) for output_BD in outputs] for labels_B, outputs in network.layers()
    ]
    return [float(auc) for auc in np.mean(by_pass, axis=0)]


def _folded(positive_B: Tensor, score_B: Tensor) -> float:
    auc = rank_auc(positive_B.numpy(), score_B.numpy())
    return max(auc, 1 - auc)


def balanced(table: ClickTable, positive_rate: float, *, seed: int) -> ClickTable:
    """Drop negatives at random until positives make up ``positive_rate`` of the rows (appendix G).

    Raises ConfigError if the table's own rate is higher already.
    """
    labels = table.frame.get_column(table.label)
    positives = int(labels.sum())
    wanted = round(positives * (1 - positive_rate) / positive_rate)
    if not 0 < wanted <= len(labels) - positives:
        raise ConfigError(
            f"positive rate {positive_rate:g}: the table has {positives} positives among {len(labels)} rows; choose a rate of at "
            f"least {positives / max(1, len(labels)):.3f} and below 1"
        )
    negatives = np.flatnonzero(labels.to_numpy() == 0)
    kept = np.random.default_rng([seed, 6]).choice(negatives, size=wanted, replace=False)
    rows = np.sort(np.concatenate([np.flatnonzero(labels.to_numpy() == 1), kept]))
    return replace(table, frame=table.frame[pl.Series(rows)])
