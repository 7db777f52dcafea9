"""Attack what a feature party sent, and measure how well the label party could rebuild its columns.

The feature party runs these attacks itself. It sent the embeddings and has the columns, so nothing has to be disclosed.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from tallystick import results
from tallystick.attacks.feature_inference.attack_table import FEATURE_INFERENCE_ATTACKS, FeatureInferenceAttack
from tallystick.attacks.feature_inference.evaluate import (
    KNOWN,
    MOST_ROWS,
    NO_ROW_KNOWN,
    AttackPlan,
    FeatureLeaks,
    PlannedAttack,
    draws_of_known,
)
from tallystick.attacks.feature_inference.tasks import leaks_on
from tallystick.attacks.row_sums import epochs_in_words
from tallystick.audit.other_run import runs_in_words
from tallystick.audit.recorded_columns import RecordedColumns
from tallystick.compute.task import Engine
from tallystick.config.contract import Contract
from tallystick.cut.forward import Part
from tallystick.disclosure.protection import defense_lines
from tallystick.disclosure.training import start_lines
from tallystick.errors import DataError
from tallystick.run_folder.embedding_charge import embeddings_epsilon, noise_on_embeddings, serves_others
from tallystick.run_folder.folder import RunFolder
from tallystick.watcher import Watcher

GROUPS: Mapping[Part, str] = MappingProxyType(
    {
        "training": "training rows, embedded once more before an epoch",
        "validation": "validation rows",
        "test": "test rows",
    }
)
NO_GROUP = (
    "rows that predictions, requests or a later evaluation send after this audit: the same weights embed them as the test "
    "rows, so the test rows' figure holds for them; it is higher if other weights embed a row, too"
)
GROUPS_ALONE = (
    "on validation and test rows: attacks that know no row (except on shuffled columns), columns that the model was not given, "
    "and several runs together"
)
MANY_KNOWN = 100
QUICK = "a quick audit leaves them out; `audit: true` runs them and may find more"
NO_NOISE = (
    "embeddings have neither noise nor levels here, and then other attacks found as much in our measurements; `tallystick "
    "audit FOLDER` runs these on what this run recorded"
)
NO_START = "known-start: needs the starting weights, which are this side's secret"
NO_KNOWN_ROW = (
    "an attacker who knows no row: known-start needs a public start; marginals, which knows how each column is distributed, and "
    "simulator, which has other people's rows, run only with `audit: true`"
)
OF_NO_ROW = (
    "A figure for 0 known rows is that of an attacker who knows the distribution of each column (marginals) or other people's "
    "rows (simulator), but no row that was sent. "
)


def audit_columns(
    recorded: RecordedColumns,
    *,
    watcher: Watcher,
    known: Sequence[int] = KNOWN,
    engine: Engine | None = None,
    every: bool = True,
    seed: int = 0,
) -> results.FeatureAudit:
    """Attack what this party sent during the whole training, as the label party could, and compare with its own columns.

    Where several runs were recorded, they are also attacked together, on the rows that they share. The stronger figure of each
    column counts. Threat model: an honest-but-curious label party that keeps every embedding and knows the columns of a few
    rows from elsewhere. No guarantee: every figure is a floor; the attacks here lack the label party's own columns, which would
    help it. ``with_releases`` adds the privacy cost of noise on the embeddings.
    """
    contract = recorded.contract
    watcher.say("attacking what this side sent, for its columns, as the label party could")
    leaks_by_name: dict[str, FeatureLeaks] = {}
    notes: list[str] = []
    attacks = _attacks(contract, every=every)
    for name, columns in (("used", recorded.truth.used), ("unused", recorded.truth.unused)):
        if not (columns.numeric or columns.categorical):
            continue
        try:
            plans = [
                AttackPlan.of(
                    # The starting weights of other runs are not known
                    dataclasses.replace(view, first=recorded.first if name == "used" and number == 0 else None),
                    columns,
                    # Many known rows are drawn only once: which rows they are changes the figures little
                    known={
                        count: draws if count < MANY_KNOWN else draws[:1]
                        for count, draws in draws_of_known(len(view.last_BD), known=known, seed=seed).items()
                    },
                    marginals=True,
                    attacks={each: row for each, row in attacks.items() if name == "used" or not row.from_others},
                    seed=seed,
                )
                for number, view in enumerate(recorded.views)
            ]
            alone, *together = [_rebuilt(plan, engine) for plan in plans]
        except DataError as error:  # NaN of a training that diverged
            notes.append(f"all columns: {error}")
            continue
        leaks_by_name[name] = stronger(alone, together, how=f"{recorded.runs} runs")
        notes += alone.not_measured
    notes += _left_out(contract, attacks)
    by_marginals = any(row.from_marginals for row in attacks.values())
    if recorded.first is None:
        notes.append(NO_START if by_marginals else NO_KNOWN_ROW)
    groups, group_notes = _group_leaks(recorded, attacks, known=known, engine=engine, seed=seed)
    notes += group_notes
    if len(recorded.epochs) == 1:
        notes.append(
            "what a row's embeddings of several epochs reveal together: only one epoch was recorded, and more epochs reveal more"
        )
    by, rows = contract.label_party, recorded.rows
    which = f"{min(rows, MOST_ROWS):,} {'evenly chosen ' if rows > MOST_ROWS else ''}"
    which += "rows that training rows are linked to" if contract.linkage.similar else "training rows"
    form = "This is the quick form: `audit: true` runs all attacks. " if contract.audit == "quick" else ""
    summary = (
        f"How well could {by} rebuild the columns of {recorded.party} from the cut embeddings that it was sent? Measured by "
        f"{recorded.party} alone, on {which} over epoch{'s' if len(recorded.epochs) > 1 else ''} "
        f"{epochs_in_words(recorded.epochs)}; nothing was sent for it. {by}'s own columns, which would help, are not known here. "
        f"{form}Every figure is a floor: another attack may find more.{runs_in_words(recorded.runs)}"
    )
    sentence = (
        "a row may stand in for others here, so the number of times that it is sent has no bound, and no ε holds for the run"
    )
    unbounded = [sentence] if noise_on_embeddings(contract) and serves_others(contract) else []
    return results.FeatureAudit(
        party=recorded.party,
        by=by,
        summary=(OF_NO_ROW if by_marginals and recorded.first is None else "") + summary,
        defense="; ".join([*defense_lines(contract, of="features"), *unbounded, *start_lines(contract)]),
        quick=contract.audit == "quick",
        columns=[replace(each, used=name == "used") for name, leaks in leaks_by_name.items() for each in leaks.columns],
        means=_means(leaks_by_name["used"], known) if "used" in leaks_by_name else [],
        groups=groups,
        not_measured=[*dict.fromkeys(notes), *recorded.truth.notes],
    )


def _rebuilt(plan: AttackPlan, engine: Engine | None) -> FeatureLeaks:
    """Return what the attacks on one view find."""
    groups = len(GROUPS)
    return plan.leaks(PlannedAttack.__call__, groups=groups) if engine is None else leaks_on(engine, plan, groups=groups)


def _attacks(contract: Contract, *, every: bool) -> dict[str, FeatureInferenceAttack]:
    """Select the attacks that this party can run on its own data; only the quick ones if the contract asks for a quick audit.

    Without ``every``, or in a quick audit, leave out the attacks that find nothing more when embeddings have neither noise nor
    levels.
    """
    quick = contract.audit == "quick"
    plain = (quick or not every) and not contract.embedding_defenses()
    return {
        name: row
        for name, row in FEATURE_INFERENCE_ATTACKS.items()
        if not row.own_columns and (row.quick or not quick) and not (plain and row.behind_noise)
    }


def _left_out(contract: Contract, attacks: Mapping[str, FeatureInferenceAttack]) -> list[str]:
    """Name the attacks that need known rows but are not run, and give the reason for each."""
    quick = contract.audit == "quick"
    names = [
        name
        for name, row in FEATURE_INFERENCE_ATTACKS.items()
        if name not in attacks and not (row.own_columns or row.knows_no_row)
    ]
    return [f"{', '.join(names)}: {QUICK if quick else NO_NOISE}"] if names else []


def with_releases(audit: results.FeatureAudit, folder: RunFolder, contract: Contract) -> results.FeatureAudit:
    """Update the findings with everything sent so far, and its privacy cost: evaluations and predictions may follow an audit."""
    epsilon, delta, releases = embeddings_epsilon(contract, folder)
    return replace(audit, epsilon=epsilon, delta=delta, releases=releases)


def stronger(some: FeatureLeaks, others: Sequence[FeatureLeaks], *, how: str = "") -> FeatureLeaks:
    """Keep the greater figure for each column and number of known rows. ``how`` says how the figures of ``others`` were found."""
    more = {(each.name, each.known): each for leaks in others for each in leaks.columns}
    columns = []
    for each in some.columns:
        other = more.get((each.name, each.known), each)
        attack = f"{other.attack}, {how}" if how else other.attack
        columns.append(replace(other, attack=attack) if other.value > each.value else each)
    return dataclasses.replace(some, columns=tuple(columns))


def _group_leaks(
    recorded: RecordedColumns,
    attacks_run: Mapping[str, FeatureInferenceAttack],
    *,
    known: Sequence[int],
    engine: Engine | None,
    seed: int,
) -> tuple[list[results.RowGroup], list[str]]:
    """Attack what crossed outside training steps, one part of the split at a time, and say what could not be measured."""
    split = recorded.contract.split
    expected = {"training": False, "validation": bool(split.validation), "test": True}
    notes = [NO_GROUP, *(f"{GROUPS[part]}: none had crossed when the audit began" for part in recorded.absent if expected[part])]
    groups = []
    for group in recorded.groups:
        contrast = group.sent.contrast_BCD is not None
        attacks = {
            name: row for name, row in attacks_run.items() if not row.knows_no_row and (group.passes > 1 or not row.several_looks)
        }
        try:
            plan = AttackPlan.of(
                group.sent,
                group.columns,
                marginals=contrast,
                known=known,
                draws=1,
                attacks=attacks,
                seed=seed,
            )
            leaks = _rebuilt(plan, engine)
        except DataError as error:  # NaN of a training that diverged
            notes.append(f"{GROUPS[group.part]}: {error}")
            continue
        rows = GROUPS[group.part] + (", also with each column shuffled" if contrast else "")
        means = _means(leaks, known)
        groups.append(
            results.RowGroup(
                rows=rows, attacked=len(group.columns), crossed=group.crossed, columns=list(leaks.columns), means=means
            )
        )
        notes += [f"{GROUPS[group.part]}: {reason}" for reason in leaks.not_measured if reason != NO_ROW_KNOWN]
    return groups, [*notes, GROUPS_ALONE] if groups else notes


def _means(leaks: FeatureLeaks, known: Sequence[int]) -> list[results.MeanRebuilt]:
    values = [(count, leaks.mean(count)) for count in dict.fromkeys((0, *known))]
    return [results.MeanRebuilt(known=count, value=value) for count, value in values if value is not None]
