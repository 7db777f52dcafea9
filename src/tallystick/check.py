"""Check a party's side before a job: config, table, keys, certificates, and the way to the peer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tallystick.config.contract import load_contract
from tallystick.config.party import check_party, dialled, load_party
from tallystick.data.groups import check_subgroups
from tallystick.data.profile import profile
from tallystick.data.table import read_party_table
from tallystick.errors import ConfigError, DataError, StorageError
from tallystick.job.audit import defense_lines
from tallystick.job.defense import budget_outlook, over_budget
from tallystick.job.disclosure import disclosure_lines
from tallystick.job.process import identity_of, proxy_of
from tallystick.network.certificates import probe

T = TypeVar("T")


def check_party_file(party_path: Path, contract_path: Path | None) -> dict[str, Any]:
    """Go through everything that can be checked alone and collect the problems; sends nothing but a TLS handshake.

    Raises ConfigError only if the party file itself cannot be read: everything else is listed under ``problems``.
    """
    problems: list[str] = []

    def tried(work: Callable[[], T]) -> T | None:
        try:
            return work()
        except (ConfigError, DataError, StorageError) as error:
            problems.extend(str(error).splitlines())  # config has a line for each
            return None

    party = load_party(party_path)
    contract = tried(lambda: load_contract(contract_path)) if contract_path is not None else None
    if contract is not None:
        tried(lambda: check_party(contract, party))
    found: dict[str, Any] = {"party": party.party, "problems": problems, "warnings": [], "peers": []}
    if contract is not None:
        found["contract_hash"] = contract.hash
        found["disclosures"] = disclosure_lines(contract)
        found["defenses"] = tried(lambda: defense_lines(contract)) or []
        budget = tried(lambda: budget_outlook(contract, party)) if party.party in contract.parties else None
        if budget is not None:
            found["budget"] = budget.describe()
            if not budget.fits:
                problems.append(over_budget(budget))
    if party.table is not None:
        frame = tried(lambda: read_party_table(party))
        tried(lambda: check_subgroups(frame, party) if frame is not None else None)
        shown = tried(lambda: profile(frame, party, contract)) if frame is not None else None
        if shown is not None:
            found["profile"] = shown.to_dict()
            found["warnings"] += shown.warnings
    identity = tried(lambda: identity_of(party)) if party.tls is not None else None
    if identity is not None:
        found["warnings"] += [identity.warning] if identity.warning is not None else []
        found["certificate"] = f"{party.tls.certificate if party.tls else ''} is valid for {party.party}"
    proxy = tried(lambda: proxy_of(party))
    if identity is not None and contract is not None and party.party in contract.parties and (proxy or party.proxy is None):
        for peer in dialled(contract, party.party):
            if peer in party.peers:
                trouble = probe(identity, peer, party.peers[peer].address, proxy=proxy)
                if trouble is None:
                    found["peers"].append(f"{peer} at {party.peers[peer].address} answers and its certificate is in order")
                elif "certificate" in trouble or ("the proxy at" in trouble and "it did not reach the peer" not in trouble):
                    found["peers"].append(trouble)
                    problems.append(trouble)
                elif "handshake" in trouble:  # something else listens there
                    found["peers"].append(trouble)
                else:
                    found["peers"].append(f"{trouble} (fine if {peer} is not up yet)")
    return found
