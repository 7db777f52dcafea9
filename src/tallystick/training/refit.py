"""Train, and refit: repeat training with the validation rows among the training rows, in the same way for every role.

The first training is validated, which shows how many passes over the rows are best; the number need not be an integer. The refit
makes as many passes, from the same first weights, and its weights are the trained model. Results that need rows outside training
use the model before it.
"""

from collections.abc import Callable
from copy import deepcopy

from torch import nn

from tallystick.training.checkpoint import TrainingState
from tallystick.training.plan import Schedule
from tallystick.training.run import TrainingRun


def train_and_refit(
    module: nn.Module,
    run: TrainingRun,
    anew: Schedule | None,
    train: Callable[[TrainingRun], TrainingState],
    *,
    between: Callable[[], None] = lambda: None,
) -> TrainingState:
    """Train, then refit, and leave the trained weights in the module. A run that was interrupted in the refit resumes there.

    Threat model: that of ``train``, for more epochs. Cut gradients then reveal information about the validation rows' labels too.

    Args:
        module: the module that ``train`` trains.
        run: the first training.
        anew: the refit's batches, including the validation rows, without validation; None for no refit.
        train: trains the module in a run, and leaves its best weights.
        between: called after the first training, while the module has its best weights.
    """
    if anew is None:
        return train(run)
    first_weights, begins = deepcopy(module.state_dict()), run.begun()
    if not begins.refit_epochs:
        steps = {"steps": run.schedule.steps_per_epoch, "more_steps": anew.steps_per_epoch}
        begins = train(run).refitting(**steps)
        between()
        module.load_state_dict(first_weights)
    return train(run.refit(anew, begins))
