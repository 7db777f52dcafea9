"""A training, and its refit: it begins anew with the validation rows among the training rows, the same for every role.

The first training is validated, and that says how many passes over the rows are best, which need not be whole ones. The refit
takes so many, from the same first weights; its weights are the trained model. What needs rows that trained nothing is left to
the model before it.
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
    """Train, then refit, and leave the trained weights in the module. A run that goes on in the refit goes on there.

    Threat model: that of ``train``, for so many epochs more. Cut gradients then tell of the validation rows' labels too.

    Args:
        module: what ``train`` trains.
        run: the first training.
        anew: the refit's batches, with the validation rows among them and none to validate by; None for no refit.
        train: trains the module by a run, and leaves the best weights of it.
        between: called once the first training is over, while the module has its best weights.
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
