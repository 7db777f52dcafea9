"""Say what each side learnt in a job: it follows from the contract, so every party says the same of every party."""

from tallystick import results
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.disclosure.disclosure import RunFacts, TrialFacts
from tallystick.disclosure.table import learnt_in_run
from tallystick.job.findings import RunFindings
from tallystick.job.job import ALL_PHASES


def learnt_of_run(contract: Contract, party: PartyFile, found: RunFindings) -> list[results.Learnt]:
    """List what this party, and what its peers, learnt in each phase, in the phases' order."""
    dataset, trials, search = found.dataset, [trial for trial in found.trials if not trial.problem], None
    rows = {}
    if dataset is not None:
        parts = {"training": dataset.train_N, "validation": dataset.validation_N, "test": dataset.test_N}
        rows = {name: len(part_N) for name, part_N in parts.items()}
    if trials and not found.alone:
        training, validation = trials[0].rows
        epochs = sum(trial.epochs for trial in trials)
        search = TrialFacts(trials=len(trials), epochs=epochs, training=training, validation=validation)
    facts = RunFacts(
        party=party.party,
        alignment=found.alignment,
        helper=found.helper,
        rows=rows,
        networks=dataset.networks if dataset is not None else 1,
        training=found.training,
        search=search,
        finished=found.evaluated.finished,
    )
    return sorted(learnt_in_run(contract, facts), key=lambda item: ALL_PHASES.index(item.step))
