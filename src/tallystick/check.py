"""Check a party's side before a job: config, table, keys, certificates, and the way to the peer."""

from functools import partial
from pathlib import Path
from typing import Any

from tallystick.alignment.improvement import estimated_improvement
from tallystick.config.contract import Contract, load_contract
from tallystick.config.party import PartyFile, load_party
from tallystick.config.party_checks import dialled
from tallystick.disclosure.protection import defense_lines, deviation_of, protects_a_row
from tallystick.disclosure.table import disclosure_lines
from tallystick.errors import ConfigError, TallystickError
from tallystick.job.alignment_cost import alignment_cost, line_note
from tallystick.job.overlap import groups_to_count
from tallystick.job.phases.batches_in_flight import pace_note
from tallystick.job.preflight import LOADED, preflight
from tallystick.job.side_checks import Preflight, identity_of, proxy_of
from tallystick.network.certificates import probe
from tallystick.run_folder.folder import RunFolder
from tallystick.tables.key_spelling import spelling_hints
from tallystick.tables.lazy_table import Frame, LazyTable
from tallystick.tables.profile import keys_as_written, profile
from tallystick.tables.repeats import with_summaries
from tallystick.tables.table import read_party_table


def check_party_file(party_path: Path, contract_path: Path | None) -> dict[str, Any]:
    """Check everything that can be checked alone, and collect the problems. It sends nothing but a TLS handshake.

    A problem here is a problem for which a job stops before it discloses anything (job/preflight.py). Raises ConfigError only if
    the party file itself cannot be read. Everything else is listed under ``problems``.
    """
    party, read = load_party(party_path), Preflight()
    contract = read.tried(lambda: load_contract(contract_path)) if contract_path is not None else None
    if contract is not None:
        report = preflight(contract, party)
    else:
        report = read
        report.frame = report.tried(lambda: _table(party)) if party.table is not None else None
        report.notes += report.frame.notes if isinstance(report.frame, LazyTable) else ()
        report.identity = report.tried(lambda: identity_of(party)) if party.tls is not None else None
    summary: dict[str, Any] = {"party": party.party, "problems": [], "warnings": list(report.warnings), "peers": []}
    if report.notes:
        summary["encoding"] = list(report.notes)
    if report.room is not None:
        summary["room"] = report.room.describe()
    if contract is not None:
        summary["contract_hash"] = contract.hash
        summary["alignment"] = f"{contract.alignment.method}; a peer that does not follow the protocol {deviation_of(contract)}"
        summary["disclosures"] = disclosure_lines(contract, own_columns=report.own_columns)
        try:
            summary["defenses"] = defense_lines(contract) + protects_a_row(contract)
        except TallystickError as error:
            summary.setdefault("defenses", [])
            if str(error) not in map(str, report.problems):
                summary["problems"].append(str(error))
        else:
            if report.budget:
                summary["budget"] = "; ".join(each.describe() for each in report.budget)
    if contract is not None and contract.linkage.similar and party.party in contract.parties:
        summary["linkage"] = linkage_lines(contract, party)
    if contract is not None and report.keys is not None and not report.problems:
        cost = alignment_cost(contract, len(report.keys.ids))
        summary |= {"alignment_cost": cost} if cost is not None else {}
    if contract is not None and report.keys is not None and report.frame is not None and not contract.linkage.similar:
        summary["key_shapes"] = spelling_hints(report.frame, columns=party.keys, alignment=contract.alignment)
    if report.frame is not None:
        frame = report.frame
        # Keys that do not fit the contract are a problem already, but the columns can still be looked at.
        fitting = contract if report.keys is not None else None
        look = Preflight()
        shape = look.tried(lambda: profile(frame, party, fitting))
        if shape is not None:
            summary["profile"] = shape.to_dict()
            summary["warnings"] += shape.warnings
        if not report.problems:
            report.problems += look.problems
        if contract is not None and (keys := report.keys) is not None:
            counted = Preflight()
            if (overlap := contract.overlap) is not None and overlap.groups == party.party:
                counted.tried(lambda: groups_to_count(overlap, party, frame, keys))
            summary["warnings"] += [f"tallystick overlap would stop: {error}" for error in counted.problems]
    if report.identity is not None:
        summary["certificate"] = f"{party.tls.certificate if party.tls else ''} is valid for {party.party}"
        if report.identity.expires is not None:
            summary["certificate"] += f" until {report.identity.expires:%Y-%m-%d %H:%M} UTC"
        summary["warnings"] += [report.identity.warning] if report.identity.warning is not None else []
        proxy = report.tried(lambda: proxy_of(party))
        if contract is not None and party.party in contract.parties and (proxy or party.proxy is None):
            times = list[float]()
            for peer in (name for name in dialled(contract, party.party) if name in party.peers):
                address = party.peers[peer].address
                trouble = probe(report.identity, peer, address, proxy=proxy, timed=times.append)
                if trouble is None:
                    ids = len(report.keys.ids) if report.keys is not None else 0
                    notes = [line_note(contract, ids, round_trip_s=times[-1])]
                    if ids and (note := pace_note(contract.training, ids, round_trip_s=times[-1])) is not None:
                        notes.append(note)
                    summary["peers"].append(f"{peer} at {address} answers and its certificate is in order; {'; '.join(notes)}")
                elif "certificate" in trouble or ("the proxy at" in trouble and "it did not reach the peer" not in trouble):
                    summary["peers"].append(trouble)
                    summary["problems"].append(trouble)
                elif "handshake" in trouble:  # another program listens there
                    summary["peers"].append(trouble)
                else:
                    summary["peers"].append(f"{trouble} (fine if {peer} is not up yet)")
    if party.compute is not None:
        summary["compute"] = report.tried(partial(party.compute.made().check, LOADED))
    # A ConfigError has one line for each problem.
    summary["problems"] = [line for error in report.problems for line in str(error).splitlines()] + summary["problems"]
    return summary


def _table(party: PartyFile) -> Frame:
    """Read the table without a contract, and summarise rows that share a key as the party file says."""
    frame = read_party_table(party)
    return with_summaries(frame, party, keys_as_written(party)) if party.keys else frame


def linkage_lines(contract: Contract, party: PartyFile) -> list[str]:
    """Say what the latest linkage under this contract promises, without any training.

    It is empty before the first alignment, and for other parties.
    """
    try:
        latest = RunFolder.latest(party.runs, contract, party.party, key=party.run_key).load_alignment()
    except ConfigError:
        return []
    lines = []
    for name, found in (latest[1].candidates if latest is not None else {}).items():
        if found.similarity_NK is not None:
            gained = estimated_improvement(found)
            lines.append(
                f"links with {name}: before any training, weighting them loses {gained['AvgSim']:.3g} less than using all "
                "equally "
                f"and {gained['Top1Sim']:.3g} less than using only the most similar, in links of a row that are wrongly used "
                "or left out (FedSim, definition 1)"
            )
    return lines
