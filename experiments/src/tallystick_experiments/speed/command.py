"""Run bench training, which measures one of several things."""

from typing import Annotated, Any

from typer import Option

from tallystick.errors import ConfigError
from tallystick_experiments.speed import training as steps
from tallystick_experiments.speed import unaligned as epochs
from tallystick_experiments.speed import workers as shared

Figures = dict[str, Any]


def training(
    scenario: Annotated[str, Option(help="small, criteo, wide or all.")] = "all",
    turns: Annotated[int | None, Option(help="Repetitions; if left out, as many as the scenario needs.", min=1)] = None,
    device: Annotated[str, Option(help="Where both parties train: cpu, or cuda.")] = "cpu",
    unaligned: Annotated[
        str | None,
        Option(help="Instead: an epoch beside four times as many unaligned rows, by this method, beside one without."),
    ] = None,
    training_workers: Annotated[
        int | None,
        Option(help="Instead: so many training workers a party, of one thread each, beside one; criteo or larger.", min=2),
    ] = None,
    training_cluster: Annotated[
        str | None, Option(help="With --training-workers: also with the further ones on the Ray cluster at this address.")
    ] = None,
) -> Figures:
    """Measure steps per second of one scenario or of all, or by the number of workers, or seconds of epochs with
    unaligned rows.
    """
    if device != "cpu" and (training_workers is not None or unaligned is not None):
        raise ConfigError(f"--device {device}: only works with --scenario alone; leave the others out")
    if training_workers is not None:
        if unaligned is not None or scenario not in ("all", *shared.NETWORKS):
            raise ConfigError(
                f"--training-workers: only works with --scenario {' or '.join(shared.NETWORKS)}, without --unaligned"
            )
        network = "criteo" if scenario == "all" else scenario
        return shared.measure_workers(workers=training_workers, network=network, turns=turns or 3, ray=training_cluster)
    if training_cluster is not None:
        raise ConfigError("--training-cluster: only works with --training-workers; leave it out")
    if unaligned is not None:
        if scenario not in ("all", "small"):
            raise ConfigError("--unaligned: goes by itself, with the scenario small; leave the others out")
        return epochs.measure_unaligned(method=unaligned, turns=turns)
    if scenario not in ("all", *steps.SCENARIOS):
        raise ConfigError(f"--scenario {scenario}: is none of all, {', '.join(steps.SCENARIOS)}")
    names = list(steps.SCENARIOS) if scenario == "all" else [scenario]
    figures: Figures = {}
    for name in names:
        measured = steps.measure_training(scenario=name, turns=turns, device=device)
        figures |= measured if name == names[0] else {name: measured}
    return figures
