"""Run one party's side of a contract over the network from Python, as `tallystick run` and `tallystick predict` do."""

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

    The other parties do the same at the same time. The run folder under the party file's ``runs`` then holds model, encoders,
    result and report. The result's ``learnt`` says what each side learns. Training has no formal guarantee unless a defence of
    the contract gives one.

    Args:
        contract: the contract that all parties hold, or the path of its file.
        party: this party's private file, or its path.
        resume: continue the latest run of this contract; all parties must do so.
        start_from: the id of a finished run with whose weights this one starts; all parties must give it.
        watcher: shows the progress; by default a notebook or a terminal does.

    Raises ConfigError and DataError for unusable input, before anything is sent; JobFailed if anything ends the job later.
    """
    import torch  # here: `import tallystick` and commands that only read files should not wait for it

    check_process()
    threads = torch.get_num_threads()
    try:
        result, _ = run_process(
            _contract(contract), _party(party), watcher=watcher or watcher_here(), resume=resume, start_from=start_from
        )
        return result
    finally:
        torch.set_num_threads(threads)  # the party's own setting must not change its host's


def predict(
    contract: Contract | Path | str,
    party: PartyFile | Path | str,
    *,
    table: Path | str | None = None,
    output: Path | str | None = None,
    run: str | None = None,
    watcher: Watcher | None = None,
) -> Predicted:
    """Score new ids with the model of the latest complete run, or of a chosen run, with all parties online.

    Returns how many of the own rows have a score, how many have none and why, and the id and folder of the run.

    Args:
        contract: the contract that the model was trained under, or the path of its file.
        party: this party's private file, or its path.
        table: the new rows, as a path or an address in an object store; by default the party file's table.
        output: a .csv or .parquet file for the scores, which the label party writes, or both sides on a union.
        run: the run whose model scores: its id, which all parties know, or its folder's name or path.
        watcher: shows the progress; by default a notebook or a terminal does.

    Raises ConfigError and DataError for unusable input, before anything is sent; PeerError if a peer fails or breaks the
    protocol.
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
