"""Check that a party file fits the contract: tables, columns and units, certificates and addresses."""

import os
from typing import TYPE_CHECKING

from tallystick.config.party import PartyFile
from tallystick.errors import ConfigError
from tallystick.reading import did_you_mean, shown

if TYPE_CHECKING:  # the contract's defences import PyTorch, which a party file does not need
    from tallystick.config.contract import Contract


def check_party(contract: "Contract", party: PartyFile, *, network: bool = True, source: str = "party file") -> None:
    """Check that a party file fits the contract. Raises ConfigError with one line per problem.

    ``network`` is False if all parties run in one process: then certificates and addresses are not needed.
    """
    if party.party not in contract.parties:
        raise ConfigError(
            f"{source}: party = {shown(party.party)}: is not in the contract; {did_you_mean(party.party, contract.parties)}"
        )
    problems = _table_problems(contract, party) + _worker_problems(contract, party)
    if network:
        role = contract.role_of(party.party)
        if party.tls is None:
            problems.append("tls: is missing; give ca, certificate and key (tallystick cert makes some for a test)")
        if role in ("label", "helper") and party.listen is None:
            problems.append(f'listen: is missing; a {role} party listens, for example on "0.0.0.0:7443"')
        problems += [
            f"peers.{name}.address: is missing; {party.party} dials {name}"
            for name in dialled(contract, party.party)
            if name not in party.peers
        ]
        peers = set(contract.parties) - {party.party}
        problems += [
            f"peers.{name}: is not another party of the contract; {did_you_mean(name, peers)}"
            for name in party.peers
            if name not in peers
        ]
    if problems:
        raise ConfigError("\n".join(f"{source}: {problem}" for problem in problems))


def dialled(contract: "Contract", name: str) -> tuple[str, ...]:
    """Name the peers that a party dials: feature parties dial the label party, and both dial the helper."""
    label, helper = (contract.label_party,), (contract.helper,) if contract.helper else ()
    return {"feature": label + helper, "label": helper, "helper": ()}[contract.role_of(name)]


def _table_problems(contract: "Contract", party: PartyFile) -> list[str]:
    role = contract.role_of(party.party)
    if role == "helper":
        uses = [use for use in ("table", "keys", "units", "label", "weight", "time", "sequences") if getattr(party, use)]
        return [f"{use}: a helper sees no rows; leave it out" for use in uses]
    problems = []
    if party.table is None:
        problems.append("table: is missing; a party with role " + role + " has rows")
    similarity = contract.alignment.similarity
    key_names = {part.name for part in (contract.alignment.keys if similarity is None else similarity.dimensions)}
    problems += [
        f"keys.{name}: is missing; say which of your columns is the contract's key {name}"
        for name in sorted(key_names - set(party.keys))
    ]
    problems += [
        f"keys.{name}: is not a key of the contract; {did_you_mean(name, key_names)}"
        for name in sorted(set(party.keys) - key_names)
    ]
    if party.repeats is not None and contract.linkage.similar:
        problems.append("repeats: rows are linked by similarity here, and all rows take part; leave it out")
    elif party.repeats is not None and contract.alignment.any_of:
        problems.append(
            "repeats: with alignment.alternatives a row has several keys, and alignment.duplicates decides for each; leave it out"
        )
    elif party.repeats is not None and role == "label" and contract.alignment.duplicates == "all":
        problems.append(
            "repeats: by alignment.duplicates = all every row of the label party takes part; leave it out, or agree on first"
        )
    terms = contract.alignment.similarity
    units = {part.name: part.unit for part in terms.dimensions if part.unit is not None} if terms is not None else {}
    problems += [
        f"units.{name}: is missing; say the unit of your column; the contract's {name} is in {unit}"
        for name, unit in units.items()
        if name not in party.units
    ]
    for name, unit in party.units.items():
        if name not in units:
            problems.append(f"units.{name}: is not a key with a unit in the contract; {did_you_mean(name, units)}")
        elif unit != units[name]:
            problems.append(
                f"units.{name} = {shown(unit)}: differs from the contract's {shown(units[name])}; convert the column, or agree "
                "on another unit"
            )
    if party.privacy.scores_per_row is not None and not (contract.shares_head and contract.role_of(party.party) == "feature"):
        problems.append(
            f"privacy.scores_per_row = {party.privacy.scores_per_row}: only a feature party under training.gradients = shared "
            "can limit scores by it; leave it out here"
        )
    elif contract.shares_head:
        where = "with training.gradients = shared"
        problems += [f"sequences: {where} there is none; leave it out"] if party.sequences else []
        if party.device != "cpu":
            problems.append(
                f"device = {shown(party.device)}: {where} a party computes on the processor; give cpu, or leave it out"
            )
    if contract.linkage.imputes:
        if party.weight is not None:
            problems.append("weight: imputed rows of a union have none; leave it out, or align by intersection")
        if party.device != "cpu":
            problems.append(
                f"device = {shown(party.device)}: a union is trained on the CPU; leave it out, or align by intersection"
            )
    if contract.unaligned.used and party.device != "cpu":
        problems.append(f"device = {shown(party.device)}: unaligned rows are trained on the CPU; leave it out")
    if role == "label":
        target = contract.target
        if party.label is None:
            problems.append("label: is missing; the label party says which column it is")
        elif target.type == "multilabel" and set(party.labels) != set(target.labels):
            problems.append(
                f"label = {shown(list(party.labels))}: the contract's target.labels are {shown(list(target.labels))}; name "
                "columns of these names"
            )
        elif target.type != "multilabel" and len(party.labels) > 1:
            problems.append(
                f"label = {shown(list(party.labels))}: target.type = {target.type} in the contract has one label; name one, or "
                "agree on target.type = multilabel"
            )
        labels = target.labels if target.type == "multilabel" else ()
        problems += [
            f"report.costs.{name}: is not one of several labels of the contract (target.labels); "
            "a single label has report.cost_false_positive and cost_false_negative"
            for name in party.report.costs
            if name not in labels
        ]
        if contract.split.method == "time" and party.time is None:
            problems.append("time: is missing; split.method = time in the contract needs the label party's time column")
        return problems
    if party.report.model_fields_set:
        problems.append(f"report: only the label party's report has these; leave it out (role here: {role})")
    for use in ("label", "weight", "time"):
        if getattr(party, use) is not None:
            problems.append(
                f"{use} = {shown(getattr(party, use))}: only the label party has one; leave it out (role here: {role})"
            )
    return problems


def _worker_problems(contract: "Contract", party: PartyFile) -> list[str]:
    """List why a batch cannot be shared between workers: training would differ, or be impossible."""
    if party.training_workers == 1:
        return []
    name, model, role = party.party, contract.model, contract.role_of(party.party)
    where = f"training_workers = {party.training_workers}"
    problems = []
    if not hasattr(os, "memfd_create"):
        problems.append(f"{where}: the processes share memory as Linux has it, and this is another system; leave it out")
    if role == "helper":
        problems.append(f"{where}: a helper trains nothing; leave it out")
    if party.device != "cpu":
        problems.append(f"{where}: device = {shown(party.device)} trains in one process; leave one of the two out")
    if role == "label" and (contract.linkage.imputes or contract.linkage.similar):
        problems.append(
            f"{where}: with alignment.method = {contract.alignment.method} the label party trains in one process; leave it out"
        )
    if role == "label" and contract.unaligned.used:
        problems.append(
            f"{where}: with unaligned.method = {contract.unaligned.method} the label party trains in one process; leave it out"
        )
    if contract.training.folds not in ("auto", 1):
        problems.append(f"{where}: with training.folds = {contract.training.folds} a party trains in one process; leave it out")
    if model.normalization == "batch":
        problems.append(f"{where}: model.normalization = batch is over the whole batch; agree on none, or leave it out")
    own = [f"model.bottoms.{name}"] * (name in model.bottoms) + ["model.top"] * (role == "label" and model.top is not None)
    problems += [
        f"{where}: {each} is a module of your own, which may mix rows of a batch; leave one of the two out" for each in own
    ]
    if contract.shares_head or (role == "feature" and not contract.sends_gradients):
        why = "a head on shares is trained in one process" if contract.shares_head else "this party sends each row once"
        problems.append(f"{where}: with training.gradients = {contract.training.gradients} {why}; leave it out")
    return problems
