"""Hold what one party's run needs, whatever its role."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.errors import ConfigError
from tallystick.job.log import Logbook
from tallystick.machine import require_polars_threads
from tallystick.network.channel import Channel
from tallystick.run_folder.folder import RunFolder
from tallystick.tables.keys import Keys
from tallystick.tables.lazy_table import Frame

if TYPE_CHECKING:
    from torch import nn

    from tallystick.run_folder.trained import Architecture

ALL_PHASES = ("alignment", "training", "evaluation")
ALIGNS_ALONE = ("alignment",)
EXPLORE = "explore"
"""The command that runs a contract on a sample of ids."""


def check_process() -> None:
    """Raise ConfigError in a process in which a job would hang or compute other numbers than its peers expect."""
    require_polars_threads()
    torch = sys.modules.get("torch")  # if it is not loaded, its settings are unchanged
    if torch is not None and torch.get_default_dtype() != torch.float32:
        raise ConfigError(
            f"torch.set_default_dtype({torch.get_default_dtype()}) is in force in this process, and parties exchange float32; "
            "call torch.set_default_dtype(torch.float32) before a job"
        )


def stay() -> None:
    """Keep the sessions open, for peers that are threads of the same process."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that one party's run needs. ``bottom`` and ``top``, if given, replace the contract's modules.

    ``keys`` are those of the table, read once before any peer is called; a helper has none. ``leave`` ends all sessions
    normally, for a party whose remaining work must not be visible to others.
    """

    contract: Contract
    party: PartyFile
    frame: Frame
    keys: Keys | None
    channels: Mapping[str, Channel]
    folder: RunFolder
    logbook: Logbook
    command: str = "run"
    resume: bool = False
    phases: tuple[str, ...] = ALL_PHASES
    bottom: "nn.Module | None" = None
    top: "nn.Module | None" = None
    leave: Callable[[], None] = stay
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    @property
    def name(self) -> str:
        """Return this party's name."""
        return self.party.party

    @property
    def is_label(self) -> bool:
        """Tell whether this is the label party."""
        return self.name == self.contract.label_party

    @property
    def feature_channels(self) -> list[Channel]:
        """Return the label party's channels to the feature parties, in the contract's order."""
        return [self.channels[name] for name in self.contract.feature_parties]

    @property
    def all_channels(self) -> list[Channel]:
        """Return the channels to all other parties, the helper included."""
        return list(self.channels.values())

    def progress(self, what: str, completed: int, total: int) -> None:
        """Show the progress of work that needs no peer. Raise the error of a peer that has failed: the work would be in vain."""
        self.logbook.watcher.progress(what, completed, total)
        for channel in self.all_channels:
            channel.check()

    @property
    def grows(self) -> bool:
        """Tell whether this party's bottom model can take categories that an earlier run did not have: built-in models can."""
        return self.bottom is None and self.name not in self.contract.model.bottoms

    @property
    def architecture(self) -> "Architecture":
        """Return the architecture of this party's part of the network."""
        from tallystick.run_folder.noise_secret import row_noise_secret
        from tallystick.run_folder.trained import Architecture

        return Architecture.of(
            self.contract,
            self.name,
            device=self.party.device,
            bottom=self.bottom,
            top=self.top,
            secret=row_noise_secret(self.contract, self.party),
        )


SMALL_STEP = 2**26
"""Number of multiplications of a training step up to which more threads only use more processor time and are not faster."""


def fitting_threads(contract: Contract, rows: int) -> int | None:
    """Return the number of threads for a job on this many rows, if the party file gives none: one for small training steps.

    Sixteen threads took 1.6 times as long as one for a step of 128 rows, and 23 times the processor time, because idle threads
    spin. For larger steps and for the user's own networks it returns None: use all cores.
    """
    model = contract.model
    if model.bottoms or model.top is not None or not rows:
        return None
    weights = sum(before * after for before, after in pairwise([model.hidden[0], *model.hidden]))
    return 1 if contract.training.resolved(rows).batch_size * weights <= SMALL_STEP else None


def use_threads(threads: int | None) -> None:
    """Set the threads of PyTorch and of the linear algebra of NumPy and SciPy. None leaves them as they are."""
    if threads is not None:
        if "torch" in sys.modules:  # else this job does without it
            sys.modules["torch"].set_num_threads(threads)
        threadpool_limits(threads, user_api="blas")
