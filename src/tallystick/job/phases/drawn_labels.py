"""Labels of a union that are drawn before training: kept in the run folder, so that a resumed run goes on with the same ones."""

import base64

import numpy as np
import torch
from torch import Tensor

from tallystick.dataset.drawn_labels import SettlingRule
from tallystick.dataset.imputed import ImputingObjective
from tallystick.job.job import Job
from tallystick.run_folder.folder import SETTLED, RunFolder
from tallystick.training.objective import Objective
from tallystick.training.run import TrainingRun
from tallystick.training.step_rule import PLAIN, StepRule


def settling(job: Job, objective: Objective, run: TrainingRun) -> StepRule:
    """Return the plain rule, or one that draws absent labels first; a run that goes on takes those that it drew.

    Raises DamagedFile if it goes on and they are lost.
    """
    if not isinstance(objective, ImputingObjective) or not objective.settles_first:
        return PLAIN
    folder = job.folder
    if run.resume_from:
        objective.take_settled(_kept(folder).to(run.schedule.train_N.device))
    return SettlingRule(
        objective=objective,
        seed=folder.secret_seed() % 2**63,
        keep=lambda settled_U: _keep(folder, settled_U),
    )


def _keep(folder: RunFolder, settled_U: Tensor) -> None:
    bits = np.packbits(settled_U.cpu().numpy() > 0)
    folder.note(SETTLED, {"labels": base64.b64encode(bits.tobytes()).decode(), "positions": len(settled_U)}, private=True)


def _kept(folder: RunFolder) -> Tensor:
    noted = folder.required(SETTLED)
    bits = np.unpackbits(np.frombuffer(base64.b64decode(str(noted["labels"])), dtype=np.uint8))
    return torch.from_numpy(bits[: int(str(noted["positions"]))].astype(np.float32))
