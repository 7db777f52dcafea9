"""Explain predicted scores by the embeddings that arrived for the scores. Nothing else crosses. Shapes: W watched rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import torch
from torch import Tensor

from tallystick.config.contract import Contract
from tallystick.cut.forward import Cuts
from tallystick.dataset.dataset import Dataset
from tallystick.errors import ConfigError
from tallystick.evaluation.explain import Explanation, Game, Row, explain
from tallystick.evaluation.importance import column_places
from tallystick.run_folder.trained import TrainedLabelParty
from tallystick.tables.features import Features

REFERENCE_ROWS, FEWEST = 64, 10
LOGIT, BASE = "logit", "base"


def check_explained(contract: Contract, party: str) -> None:
    """Refuse a contract or party without explanations. Raises ConfigError."""
    why = None
    if contract.role_of(party) != "label":
        why = "the label party explains scores, and only it has them"
    elif contract.alignment.method != "intersection":
        why = f"rows are linked by {contract.alignment.method}, where one score depends on several rows of a party"
    elif contract.target.type == "multiclass":
        why = "a score of several classes has no single logit"
    elif contract.target.outputs > 1:
        why = f"several {'labels' if contract.target.type == 'multilabel' else 'quantiles'} have no single output"
    elif contract.shares_head:
        why = "it needs several scores of a row, and training.gradients = shared opens only one"
    if why is not None:
        raise ConfigError(f"--explain: {why}; leave it out")


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A store of the arriving embeddings at some positions: those to explain, and those to compare them with.

    Args:
        explained: positions whose scores are explained.
        reference: positions to compare them with.
    """

    explained: Tensor
    reference: Tensor
    _came: dict[int, list[Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Tensor, scored: int, *, seed: int) -> "Watched":
        """Watch these positions, and others drawn by the seed. Raises ConfigError if there are too few to compare with."""
        if scored < FEWEST:
            raise ConfigError(f"--explain: {scored} rows are scored, and at least {FEWEST} are needed to compare a row with")
        random_rows = torch.randperm(scored, generator=torch.Generator().manual_seed(seed))[:REFERENCE_ROWS]
        return cls(explained=rows, reference=random_rows.sort().values)

    @property
    def positions(self) -> Tensor:
        """Return all watched positions, in ascending order."""
        return torch.from_numpy(np.union1d(self.explained.numpy(), self.reference.numpy()))

    def watching(self, peer: int, cuts: Cuts) -> Cuts:
        """Return the same Cuts, and keep those at the watched positions. Batches come in the order of positions."""
        positions, received = self.positions, self._came.setdefault(peer, [])

        def receive(number: int, index_B: Tensor) -> Tensor:
            cut_BD = cuts(number, index_B)
            received.append(cut_BD[torch.isin(index_B, positions)].clone())
            return cut_BD

        return receive

    def at(self, dataset: Dataset, index_M: Tensor) -> Row:
        """Return own columns and embeddings at some of the positions."""
        place_M = torch.searchsorted(self.positions, index_M)
        return Row(own=dataset.features_at(index_M), cuts=[torch.cat(came)[place_M] for came in self._came.values()])


def explanations(
    trained: TrainedLabelParty, dataset: Dataset, watched: Watched, *, parties: Sequence[str], seed: int
) -> list[Explanation]:
    """Explain the watched rows' logits: own columns one by one, and each partner's embedding as a whole."""
    places = column_places(trained.encoder) if trained.encoder is not None else []
    game, reference = Game(columns=places, parties=parties), watched.at(dataset, watched.reference)
    generator = torch.Generator().manual_seed(seed)

    def logits(cuts_MD: Sequence[Tensor], own: Features) -> Tensor:
        return trained.calibration.prediction_logits(trained.model(cuts_MD, own))

    trained.model.eval()
    results_found = [
        explain(logits, game, watched.at(dataset, each[None]), reference, generator=generator) for each in watched.explained
    ]
    trained.model.train()
    return results_found


def as_table(explanations: Sequence[Explanation]) -> pl.DataFrame:
    """Build a row for each explanation: the logit, the reference rows' mean, each player's contribution, and its
    error if drawn.
    """
    rows = [
        {LOGIT: each.logit, BASE: each.base}
        | {f"by {name}": value for name, value in each.contributions.items()}
        | {f"error of {name}": value for name, value in each.deviations.items()}
        for each in explanations
    ]
    return pl.DataFrame(rows)
