"""Search over the keys that a contract allows to tune: with all parties, or on the label party's own columns alone."""

from contextlib import ExitStack

from tallystick import __version__
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.party_checks import check_party
from tallystick.errors import ConfigError
from tallystick.job.findings import RunFindings
from tallystick.job.job import Job, fitting_threads, use_threads
from tallystick.job.log import Logbook, RunLog
from tallystick.job.phases.report import write_report
from tallystick.job.phases.search import require_optuna
from tallystick.job.phases.tuning import allowed_keys
from tallystick.job.phases.tuning_alone import tune_alone
from tallystick.job.preflight import LOADED
from tallystick.job.process import run_process
from tallystick.results import Result
from tallystick.run_folder.folder import RunFolder
from tallystick.tables.keys import keys_of
from tallystick.tables.repeats import with_summaries
from tallystick.tables.table import read_party_table
from tallystick.watcher import Watcher

USE, USE_ALONE = "tune", "tune-alone"


def has_no_partner(party: PartyFile) -> bool:
    """Tell whether a party file has no address of another party."""
    return party.tls is None and party.listen is None and not party.peers


def run_tuning(
    contract: Contract,
    party: PartyFile,
    *,
    watcher: Watcher,
    alone: bool = False,
    resume: bool = False,
    how_to_resume: str = "run `tallystick tune` with --resume on all sides",
) -> tuple[Result, RunFolder]:
    """Search with the other parties, or ``alone``. Return the result, and the folder with the tuned contract.

    Raises what run_process raises, and ConfigError if nothing may be tuned or Optuna is missing.
    """
    allowed_keys(contract, party)
    is_label = contract.role_of(party.party) == "label" if party.party in contract.parties else False
    if is_label:
        require_optuna()
    if not alone:
        phases = ("alignment", "tuning")
        return run_process(
            contract, party, watcher=watcher, command=USE, resume=resume, phases=phases, how_to_resume=how_to_resume
        )
    if not is_label:
        raise ConfigError(f"party = {party.party}: has no labels to tune by; only the label party can tune alone")
    check_party(contract, party, network=False)
    if party.compute is not None:
        watcher.say(party.compute.made().check(LOADED))  # before anything is charged
    frame = with_summaries(read_party_table(party), party, contract.alignment)
    keys = keys_of(frame, party, contract.alignment)
    use_threads(party.threads or fitting_threads(contract, frame.height))
    folder = (RunFolder.latest if resume else RunFolder.new)(party.runs, contract, party.party, use=USE_ALONE, key=party.run_key)
    log = RunLog(watcher)
    with ExitStack() as stack:
        stack.enter_context(folder.locked())
        log.keep_in(folder.path)
        log.note(f"tallystick {__version__}: tune of contract {contract.name} ({contract.hash[:8]}) as {party.party}, alone")
        log.say(f"run folder: {folder.path}")
        logbook = Logbook(party=party.party, watcher=log)
        job = Job(
            contract=contract,
            party=party,
            frame=frame,
            keys=keys,
            channels={},
            folder=folder,
            logbook=logbook,
            command=USE,
            resume=resume,
            phases=("tuning",),
        )
        stack.enter_context(log.recording())
        with logbook.during("tuning", []):
            findings = RunFindings(run_id=folder.path.name, keys=keys.report, trials=tune_alone(job, keys), alone=True)
        return write_report(job, findings), folder
