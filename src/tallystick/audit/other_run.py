"""Read another run on the same rows, to attack its recorded view together with that of the audited run.

Shapes: N aligned positions of the run that is audited.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tallystick.config.contract import Contract
from tallystick.errors import ConfigError
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.listing import contract_of


@dataclass(frozen=True, kw_only=True)
class OtherRun:
    """This party's folder of another run, and the other run's position of each row of the audited run.

    Args:
        folder: of the other run.
        contract: of the other run.
        number_N: int64, the other run's position of the row at each position; -1 if it lacks the row.
    """

    folder: RunFolder
    contract: Contract
    number_N: Tensor

    @classmethod
    def of(cls, path: Path, folder: RunFolder, contract: Contract) -> "OtherRun":
        """Open the other run.

        Args:
            path: a run folder of the same party.
            folder: the run that is audited.
            contract: that of the audited run.

        Raises ConfigError for a run of other parties or ids, or one that is not an intersection; what ``RunFolder`` raises.
        """
        contract_of(path)
        other = RunFolder.open(path)
        agreed = other.contract()
        other.require_rows()
        if other.path.resolve() == folder.path.resolve():
            raise ConfigError(f"--also {path}: is the run that is audited; give another run's folder")
        if any(each.alignment.method != "intersection" for each in (contract, agreed)):
            raise ConfigError(f"--also {path}: both runs must align by intersection, so that a row of one is known in the other")
        if agreed.parties.keys() != contract.parties.keys() or agreed.target != contract.target:
            raise ConfigError(f"--also {path}: is of other parties or another target; give a run of the same ones")
        aligned = []  # the fingerprint of the ids, and the own row at each position
        for each in (folder, other):
            if (kept := each.load_alignment()) is None:
                raise ConfigError(f"{each.path}: holds no alignment; give a run that was trained")
            aligned.append((kept[0].table, torch.from_numpy(kept[1].rows_N.copy())))
        (here, rows_here), (there, rows_there) = aligned
        if here != there:
            raise ConfigError(f"--also {path}: is of other ids of this party's table; give a run of the same table")
        position_N = torch.full((int(max(rows_here.max(), rows_there.max())) + 1,), -1, dtype=torch.int64)
        position_N[rows_there] = torch.arange(len(rows_there))
        return cls(folder=other, contract=agreed, number_N=position_N[rows_here])

    def renumbered(self, rows_B: Tensor) -> Tensor:
        """Return the audited run's positions of these rows of the other run, or -1 where it lacks one."""
        size = 1 + int(max(int(self.number_N.max()), int(rows_B.max()) if len(rows_B) else 0))
        back = torch.full((size,), -1, dtype=torch.int64)
        (here,) = torch.nonzero(self.number_N >= 0, as_tuple=True)
        back[self.number_N[here]] = here
        return back[rows_B]


def runs_in_words(runs: int) -> str:
    """Say how many runs a figure is about, if there are several."""
    return f" Beside this run alone, {runs} runs on the same rows were attacked as one view." if runs > 1 else ""
