"""Audit a head on shares for columns: measure what a label party would learn that uses one of the columns as its label.

Labels are an input of the protocol. A label party that knows a column for some rows can train on these rows with that column as
the label. Then the score of every other row is the head's guess at the column. A feature party can measure this alone, because
it has the features and the columns.

It cannot measure what this run's own scores reveal, because it has no scores. ``tallystick bench quality --leaks --methods
shared`` measures that on public tables, where both sides are available.

Shapes: N rows, D features of the head.
"""

from collections.abc import Callable, Sequence

import msgspec
import torch
from torch import Tensor

from tallystick import results
from tallystick.attacks.feature_inference.attack_table import FeatureInferenceAttack
from tallystick.attacks.feature_inference.evaluate import KNOWN, AttackPlan, PlannedAttack
from tallystick.attacks.feature_inference.kernel import KernelRidge
from tallystick.attacks.feature_inference.view import SentEmbeddings
from tallystick.attacks.row_sums import chosen_rows
from tallystick.audit.recorded_columns import load_columns, own_columns, save_columns
from tallystick.config.contract import Contract
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.own_rows import OwnRows
from tallystick.run_folder.folder import RunFolder
from tallystick.training.checkpoint import read_tensors, write_tensors
from tallystick.watcher import Watcher

ATTACKED = 2_000
FEATURES = "head-features.safetensors"
ROWS = "rows that have a score"
THROUGH = "the scores of a run that uses the column as its label"
CHOSEN_LABEL = {
    "chosen-label": FeatureInferenceAttack(
        attack=KernelRidge(scaled=False),
        description="the best head on these features, trained on the known rows with the column as label",
    ),
    "chosen-label-scaled": FeatureInferenceAttack(
        attack=KernelRidge(), description="as chosen-label, on features scaled to deviation 1"
    ),
}
NOT_MEASURED = (
    "what this run's own scores reveal: neither side has both the scores and the columns. `tallystick bench quality --leaks "
    "--methods shared` measures it on public tables",
    "a label that packs several columns into one number (in a run on credit-card data one label opened two), several classes, "
    "and the other parties' columns, which would help",
    "several runs together: each run with another label reveals more",
)


def record_features(
    folder: RunFolder,
    contract: Contract,
    party: str,
    own: OwnRows,
    dataset: Dataset,
    features_at: Callable[[Tensor], Tensor],
    *,
    run_id: str,
) -> None:
    """Save this party's features of the head and its columns, at validation and test rows; at most 2,000 of them, evenly
    chosen.

    Args:
        folder: of the run.
        contract: of the run.
        party: this party's name.
        own: this party's rows.
        dataset: the same rows, encoded.
        features_at: returns the head's features of the rows at some positions, (K, D).
        run_id: of the run.
    """
    scored_N = torch.cat([dataset.validation_N, dataset.test_N])
    chosen_K = chosen_rows(torch.arange(len(scored_N)), most=ATTACKED)
    folder.make_views()
    truth = own_columns(own, dataset, scored_N[chosen_K], first_B=scored_N[:0])
    save_columns(folder, contract, party, truth, run_id=run_id)
    tensors = {"features": features_at(truth.rows_R).float()}
    write_tensors(folder.views / FEATURES, tensors, {}, origin=folder.origin, private=True)


def audit_shared_head(
    folder: RunFolder, contract: Contract, *, watcher: Watcher, known: Sequence[int] = KNOWN
) -> results.FeatureAudit:
    """Measure what a label party could learn about these columns by using each of them as the label.

    It also tries with half of the rows known. Threat model: a label party that follows the protocol, knows a column of some
    rows from elsewhere, and chooses label and training rows accordingly. No guarantee: a figure is a floor. Raises DataError if
    the recording is damaged or of another contract.
    """
    watcher.say(f"measuring what {contract.label_party} could learn about these columns if it used one of them as the label")
    truth, party, _ = load_columns(folder, contract)
    features_ND = read_tensors(folder.views / FEATURES, origin=folder.origin)[0]["features"]
    counts = tuple(dict.fromkeys((*known, len(features_ND) // 2)))
    one_look = SentEmbeddings(last_BD=features_ND, mean_BD=features_ND, looks_BE=features_ND, looks_at_BL=None)
    columns: list[results.RebuiltColumn] = []  # the figure of each column and number of known rows
    missing: list[str] = []
    for used, columns_of_use in ((True, truth.used), (False, truth.unused)):
        if columns_of_use.numeric or columns_of_use.categorical:
            plan = AttackPlan.of(one_look, columns_of_use, known=counts, draws=1, attacks=CHOSEN_LABEL)
            leaks = plan.leaks(PlannedAttack.__call__)
            columns += [msgspec.structs.replace(each, used=used) for each in leaks.columns]
            missing += leaks.not_measured
    means = []
    for count in counts:
        if of_count := [each.value for each in columns if each.known == count and each.used]:
            means.append(results.MeanRebuilt(known=count, value=sum(of_count) / len(of_count)))
    label = contract.label_party
    return results.FeatureAudit(
        party=party,
        by=label,
        through=THROUGH,
        summary=f"{label} chooses the labels, and no protocol can prevent it from using one of these columns as the label. "
        f"{party} measured this alone, with a run for each column: {label} trains on the rows whose column it knows, and the "
        "scores of the others show their column. Nothing was sent for it. Every figure is a floor.",
        defense="`privacy.scores_per_row` in the party file bounds how many scores of a row are ever opened",
        groups=[results.RowGroup(rows=ROWS, attacked=len(features_ND), crossed=1, columns=columns, means=means)],
        not_measured=[*NOT_MEASURED, *dict.fromkeys(missing), *truth.notes],
    )
