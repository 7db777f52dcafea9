"""What one party's run needs, whatever its role."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import polars as pl
from torch import nn

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.data.features import FeatureShape
from tallystick.job.folder import RunFolder
from tallystick.job.phases import Logbook
from tallystick.models.build import build_label_model
from tallystick.models.split import LabelModel
from tallystick.network.channel import Channel

ALL_PHASES = ("alignment", "training", "evaluation")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that one party's run needs; ``bottom`` and ``top`` stand in for the contract's modules when given."""

    contract: Contract
    party: PartyFile
    frame: pl.DataFrame
    channels: Mapping[str, Channel]
    folder: RunFolder
    logbook: Logbook
    command: str = "run"
    resume: bool = False
    phases: tuple[str, ...] = ALL_PHASES
    bottom: nn.Module | None = None
    top: nn.Module | None = None
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    @property
    def name(self) -> str:
        """This party's name."""
        return self.party.party

    @property
    def feature_channels(self) -> list[Channel]:
        """The label party's channels to the feature parties, in the contract's order."""
        return [self.channels[name] for name in self.contract.feature_parties]

    def label_model(self, own: FeatureShape | None, widths: list[int]) -> LabelModel:
        """The label party's share of the network for these cut widths; none of them for its own columns alone."""
        if self.top is not None:
            return LabelModel(self.top, bottom=self.bottom).to(self.party.device)
        outputs = self.contract.target.classes if self.contract.target.type == "multiclass" else 1
        seed = self.contract.seed
        return build_label_model(self.contract.model, self.name, own, widths, outputs=outputs, seed=seed).to(self.party.device)
