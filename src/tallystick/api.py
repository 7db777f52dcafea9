"""One party's side of a contract over the network, from Python: what `tallystick run` and `tallystick predict` do."""

from pathlib import Path

from tallystick.config.contract import Contract, load_contract
from tallystick.config.party import PartyFile, load_party
from tallystick.job.job import check_process
from tallystick.job.predict import Predicted, predict_rows
from tallystick.job.process import run_process
from tallystick.job.watchers import watcher_here
from tallystick.results import Result
from tallystick.watcher import Watcher


def run(
    contract: Contract | Path | str,
    party: PartyFile | Path | str,
    *,
    resume: bool = False,
    start_from: str | None = None,
    watcher: Watcher | None = None,
) -> Result:
    """Run this party's side of a contract over mutual TLS: align, train, audit, evaluate, report.

    The other parties do the same at the same time. Model, encoders, result and report are left in a run folder under the party
    file's ``runs``. What each side learns is in the result's ``learnt``; training has no formal guarantee unless a defence of the
    contract gives one.

    Args:
        contract: the contract that all parties hold, or the path of its file.
        party: this party's private file, or its path.
        resume: go on with the latest run of this contract; all parties must.
        start_from: a finished run at whose weights this one begins, by its id, which all parties have to give.
        watcher: shown progress; left out, a notebook and a terminal show it.

    Raises ConfigError and DataError for unusable input, before anything is sent; JobFailed for whatever ends the job later.
    """
    import torch  # here: `import tallystick` and what only reads files should not wait for it

    check_process()
    threads = torch.get_num_threads()
    try:
        result, _ = run_process(
            _contract(contract), _party(party), watcher=watcher or watcher_here(), resume=resume, start_from=start_from
        )
        return result
    finally:
        torch.set_num_threads(threads)  # a party's own setting is not its host's


def predict(
    contract: Contract | Path | str,
    party: PartyFile | Path | str,
    *,
    table: Path | str | None = None,
    output: Path | str | None = None,
    run: str | None = None,
    watcher: Watcher | None = None,
) -> Predicted:
    """Score new ids with the latest complete run's model, or a chosen run's, all parties online.

    Gives how many own rows have a score, how many not, and why, and the id and folder of the run.

    Args:
        contract: the contract that the model was trained under, or the path of its file.
        party: this party's private file, or its path.
        table: the new rows, by path or by an object store's address; the party file's table if left out.
        output: a .csv or .parquet file for the scores: the label party's, on a union both sides'.
        run: the run whose model scores, by its id, which all parties know, or by its folder's name or path.
        watcher: shown progress; left out, a notebook and a terminal show it.

    Raises ConfigError and DataError for unusable input, before anything is sent; PeerError for what a peer did, or failed to do.
    """
    check_process()
    return predict_rows(
        _contract(contract),
        _party(party),
        table=table,
        output=None if output is None else Path(output),
        run=run,
        watcher=watcher or watcher_here(),
    )


def _contract(contract: Contract | Path | str) -> Contract:
    return contract if isinstance(contract, Contract) else load_contract(contract)


def _party(party: PartyFile | Path | str) -> PartyFile:
    return party if isinstance(party, PartyFile) else load_party(party)
