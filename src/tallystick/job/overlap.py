"""Run `tallystick overlap`: two parties learn how many ids they share, and nothing else, before they plan a training.

Nothing here loads PyTorch. Counts are kept in a folder of their own under ``runs``, which also records how often exact counts
were given.
"""

import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from tallystick.alignment.overlap import (
    MOST_GROUPS,
    IdGroups,
    Overlap,
    overlap_comparing_side,
    overlap_permuting_side,
)
from tallystick.alignment.randomness import SecureRandom
from tallystick.config.contract import Contract
from tallystick.config.overlap import OverlapConfig
from tallystick.config.party import PartyFile
from tallystick.errors import ConfigError, DataError
from tallystick.job.handshake import ResumeState, shake_hands, shake_hands_label_party
from tallystick.job.log import RunLog
from tallystick.job.phases.align import max_rows
from tallystick.job.process import with_sessions
from tallystick.job.side_checks import require_to_align
from tallystick.network.channel import Channel
from tallystick.privacy.ledger import BudgetExceeded, outlook
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import KEYS, charged, data_set, known_budget
from tallystick.tables.groups import groups_of
from tallystick.tables.keys import Keys
from tallystick.tables.lazy_table import Frame
from tallystick.tables.table import require_column
from tallystick.watcher import Watcher

COMMAND = "overlap"
NOTE = "overlap"
LEAST_NOISY_GROUP = 20
"""The fewest ids of a group that is counted with noise. Of exact counts, ``overlap.least`` is the bound."""


def run_overlap(contract: Contract, party: PartyFile, *, watcher: Watcher) -> dict[str, Any]:
    """Count the ids that both parties have, as the contract's ``overlap`` says. Return the counts and the file that keeps them.

    Raises ConfigError or DataError before a peer is called, if the contract allows no count, all exact counts were used up, or
    a table, a budget or a file is not usable; PeerError for what the other party does.
    """
    config = contract.overlap
    if config is None:
        raise ConfigError("overlap: the contract has no such section, so nobody may count; agree on one, such as overlap: {}")
    frame, keys = require_to_align(contract, party)
    assert keys is not None, "a contract with an overlap has no helper"
    (peer,) = (name for name in contract.parties if name != party.party)
    groups = groups_to_count(config, party, frame, keys) if config.groups == party.party else None
    _require_allowed(config, party, peer)
    log = RunLog(watcher)
    with ExitStack() as stack, log.recording():

        def work(channels: dict[str, Channel], _leave: object) -> dict[str, Any]:
            channel, is_label = channels[peer], party.party == contract.label_party
            state = ResumeState(command=COMMAND)
            watcher.phase("handshake")
            agreement = (
                shake_hands_label_party(contract, state, {peer: channel}) if is_label else shake_hands(contract, state, channel)
            )
            folder = RunFolder.new(party.runs, contract, party.party, use=COMMAND, key=party.run_key)
            stack.enter_context(folder.locked())
            log.keep_in(folder.path)
            watcher.say(f"run folder: {folder.path}")
            facts = {"run_id": agreement.run_id, "peer": peer, "exact": config.epsilon is None}
            folder.note(NOTE, facts | {"began": datetime.now(UTC).isoformat()})  # a killed count is counted
            _require_allowed(config, party, peer, beside=folder)  # two at once: each is noted before it looks
            if (noise := config.noise) is not None:
                with charged(party, folder, KEYS) as ledger:
                    what = f"{contract.name}, run {agreement.run_id}: size of the overlap with {peer}"
                    ledger.spend(data_set(party, KEYS), noise.event, what=what)
            watcher.phase("overlap")
            clock = time.monotonic()
            permutes = permuting_role(contract)
            terms, most = config.terms(permuting=permutes), max_rows(contract, len(keys.ids))
            common: dict[str, Any] = {
                "rng": SecureRandom(),
                "terms": terms,
                "leads": is_label,
                "max_rows": most,
                "progress": watcher.progress,
            }
            if is_label == (permutes == "label"):
                overlap = overlap_permuting_side(keys.ids, channel, groups=groups, **common)
            else:
                overlap = overlap_comparing_side(keys.ids, channel, **common)
            seconds, traffic = time.monotonic() - clock, channel.traffic
            cost = {"seconds": round(seconds, 3), "bytes": traffic.bytes_sent + traffic.bytes_received}
            outcome = {**facts, **_described(config, overlap, peer), **cost}
            folder.note(NOTE, outcome)
            return {"folder": str(folder.path), **outcome}

        return with_sessions(contract, party, work, watcher=log)


def groups_to_count(config: OverlapConfig, party: PartyFile, frame: Frame, keys: Keys) -> IdGroups:
    """Return the groups of this party's ids. Their names and sizes will cross, so none may be small.

    Raises ConfigError if the party file names no column, DataError for a column that makes no groups, or one of few ids.
    """
    if party.overlap_groups is None:
        raise ConfigError(
            f"overlap_groups: is missing; overlap.groups = {config.groups} in the contract asks {party.party} for a column"
        )
    names, code_N = groups_of(require_column(frame, party.overlap_groups, use="overlap_groups"))
    if not 1 <= len(names) <= MOST_GROUPS:
        raise DataError(f"overlap_groups = {party.overlap_groups}: has {len(names)} groups; 1 to {MOST_GROUPS} can be counted")
    rows_M = keys.rows_R
    if keys.id_R is not None:  # if an id has several rows, the first one counts
        rows_M = keys.rows_R[np.unique(keys.id_R, return_index=True)[1]]
    sizes = np.bincount(code_N[rows_M], minlength=len(names))
    least = config.least if config.epsilon is None else LEAST_NOISY_GROUP
    if (smallest := int(sizes.min())) < least:
        count_of_it = "could only be withheld" if config.epsilon is None else "would be little but noise"
        raise DataError(
            f"overlap_groups = {party.overlap_groups}: group {names[int(sizes.argmin())]!r} has {smallest} "
            f"id{'s' if smallest != 1 else ''}, fewer than {least}: its count {count_of_it}, and its name and size would still "
            "cross; join it with another group"
        )
    return IdGroups(names=tuple(name[:200] for name in names), number_M=code_N[rows_M].astype(np.uint8))


def permuting_role(contract: Contract) -> Literal["label", "feature"]:
    """Return which side permutes: the one with groups, or the only one that does not get the count, or the label party."""
    assert contract.overlap is not None
    if contract.overlap.groups is not None:
        return "label" if contract.overlap.groups == contract.label_party else "feature"
    return "feature" if contract.overlap.told_to == "label" else "label"


def _require_allowed(config: OverlapConfig, party: PartyFile, peer: str, *, beside: RunFolder | None = None) -> None:
    """Refuse an exact count beyond the limit, or a noisy one beyond the party's cap. ``beside`` is this count's folder, if it
    has begun.

    Raises ConfigError, BudgetExceeded.
    """
    if config.noise is not None:
        spent, cap = known_budget(party, KEYS)
        ahead = outlook(data_set(party, KEYS), spent, [config.noise.event], cap=cap) if cap is not None else None
        if ahead is not None and not ahead.fits:
            raise BudgetExceeded(f"privacy.cap: {ahead.describe()}; take a smaller overlap.epsilon, or raise the cap")
        return
    earlier = 0
    for path in party.runs.glob(f"*-{COMMAND}-*"):
        if beside is not None and path.name == beside.path.name:
            continue
        noted = RunFolder.open(path, key=party.run_key).noted(NOTE)
        earlier += noted.get("peer") == peer and bool(noted.get("exact"))
    if earlier >= config.answers:
        raise ConfigError(
            f"overlap.answers = {config.answers}: {party.runs} has {earlier} exact count{'s' if earlier != 1 else ''} with "
            f"{peer} already; two counts of sets that differ by one id show whether it is common, so agree on more only if the "
            "tables stay the same, or on an epsilon"
        )


def _described(config: OverlapConfig, overlap: Overlap, peer: str) -> dict[str, Any]:
    """Describe what this side learnt, as values and as sentences."""
    counts = overlap.counts
    grouped = overlap.groups != ("",)
    total = None if counts is None or None in counts else sum(count for count in counts if count is not None)
    learnt_lines = [f"{peer} has {overlap.others:,} ids."]
    if grouped:
        learnt_lines.append(f"{peer if config.groups == peer else 'This side'} has the groups {', '.join(overlap.groups)}.")
    if counts is None:
        learnt_lines.append("The common ids were counted, but this side does not learn the number.")
    elif total is None:
        learnt_lines.append(
            f"Counts of fewer than {config.least:,} ids, or that leave fewer of a set, are withheld: "
            f"{sum(count is None for count in counts)} of {len(counts)}."
        )
    elif config.noise is not None:
        noise = replace(config.noise, groups=len(counts))
        each = (
            f"the count of each group is off by at most {noise.most}" if grouped else f"the count is off by at most {noise.most}"
        )
        learnt_lines.append(f"Some {total:,} ids are common; {each} (epsilon = {noise.epsilon:g}).")
    else:
        learnt_lines.append(f"{total:,} ids are common.")
    outcome: dict[str, Any] = {
        "own": overlap.own,
        "others": overlap.others,
        "common": total,
        "withheld": counts is not None and total is None,
    }
    if grouped and counts is not None:
        outcome["groups"] = dict(zip(overlap.groups, counts, strict=True))
    return outcome | {"learnt": learnt_lines}
