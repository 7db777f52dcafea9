"""Audit what cut gradients reveal about other parties' columns. The owner of the columns measures it.

A gradient depends on p - y, and on which units of the top model are active. Both depend on all parties' columns. So a feature
party can learn something from it about the label party's columns, and about another feature party's.

- The label party has its own columns and the gradients that it sent, and attacks in the role of each feature party. It lacks
  that party's columns, so the cut embeddings replace them. The attacker gets the true label, so that a finding is about columns
  and not about the label.
- No party has both a feature party's columns and the gradients of another feature party. So its own gradients replace the
  other's: these depend on the same score and the same units, through other weights.

Shapes: N attacked rows, D cut width, C classes, I inputs.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from msgspec.structs import replace
from torch import Tensor
from torch.nn.functional import one_hot, pad

from tallystick import results
from tallystick.attacks.feature_inference.attack_table import FEATURE_INFERENCE_ATTACKS, FeatureInferenceAttack
from tallystick.attacks.feature_inference.averaged_kernels import AveragedKernels
from tallystick.attacks.feature_inference.evaluate import AttackPlan, FeatureLeaks, PlannedAttack
from tallystick.attacks.feature_inference.inputs import components, even_columns
from tallystick.attacks.feature_inference.view import ColumnValues, SentEmbeddings
from tallystick.attacks.matrix import principal_components, top_direction, two_means_cut
from tallystick.attacks.row_sums import chosen_rows
from tallystick.attacks.view import StepView
from tallystick.audit.columns import stronger
from tallystick.audit.recorded_columns import load_columns
from tallystick.audit.recorded_labels import load_labels, sums_of
from tallystick.audit.recording import GRADIENTS, gradient_sums
from tallystick.config.contract import Contract
from tallystick.errors import DataError
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.recorder import ViewStore
from tallystick.training.objective import label_columns
from tallystick.watcher import Watcher

MOST_ROWS, QUICK_ROWS = 2_000, 1_000  # greatest number of attacked rows
KNOWN, QUICK_KNOWN = (20, 200, 1000), (20, 200)
TURNED = FeatureInferenceAttack(
    attack=AveragedKernels(),
    description="smooth curves from gradients that are turned to one side, from their lengths and from own embeddings",
)
ATTACKS = {name: FEATURE_INFERENCE_ATTACKS[name] for name in ("ridge", "ridge-mean", "kernel")}
ATTACKS_WITHOUT = {name: ATTACKS[name] for name in ("ridge", "ridge-mean", "kernel")}
"""On credit-card data, a curve with a block of columns for each class found no more than one without."""
COMPONENTS = 8  # number of components of the cut embeddings, which a feature party has anyway
OWN_COMPONENTS = 64  # number of them with kernels
LENGTHS, CLASSES, OWN = 0.2, 0.2, 0.5  # weights of these inputs, relative to the directions of gradients
PLANS = 3  # number of plans, each with its own inputs; in each, luck may find something
MOST_DEVIATIONS = 5.0  # the logarithm of a gradient's length is cut at this many deviations
MOST_INPUTS = 2_048
WITHOUT_GRADIENTS = "without gradients"
SIMILAR = "what cut gradients reveal about own columns: not attacked, because rows are linked by similarity"
NUMBERS = (
    "what cut gradients reveal about own columns: not attacked, because no sums of gradients are recorded if the target "
    "is a number"
)


def audit_columns_from_gradients(
    folder: RunFolder, contract: Contract, *, role: Literal["label", "feature"], watcher: Watcher
) -> list[results.ColumnsFromGradients]:
    """Attack this party's columns by cut gradients, and compare with its own columns.

    Threat model: an honest-but-curious feature party that keeps every gradient and knows some rows' columns from elsewhere. No
    guarantee: every figure is a floor. Raises DataError if the recording is damaged or of another contract or run.
    """
    truth, party, run_id = load_columns(folder, contract, GRADIENTS if role == "label" else None)
    notes = [*truth.notes]
    if unused := [*truth.unused.numeric, *truth.unused.categorical]:
        notes.append(f"{len(unused)} columns that the model does not use: gradients depend on them only as far as labels do")
    if not (truth.used.numeric or truth.used.categorical):
        by = " or ".join(name for name in contract.feature_parties if name != party)
        return [results.ColumnsFromGradients(party=party, by=by, not_measured=notes)] if notes else []
    watcher.say("attacking own columns through cut gradients, as a feature party could")
    peers = contract.feature_parties if role == "label" else (contract.label_party,)
    most = QUICK_ROWS if contract.audit == "quick" else MOST_ROWS
    from_gradients = []
    for peer in peers:
        store = ViewStore(folder=folder.views / peer, contract=contract.hash, origin=folder.origin, run_id=run_id)
        rows = sums_of(store) if role == "label" else gradient_sums(store)
        epochs = rows.epochs()
        if not epochs:
            continue
        (step,) = rows.load(epochs[-1]).view().steps
        kept_K = chosen_rows(torch.isin(truth.rows_R, step.rows_B).nonzero().flatten(), most=most)
        here = step.only(torch.isin(step.rows_B, truth.rows_R[kept_K]))
        order_K = truth.rows_R[kept_K].argsort()
        columns = truth.used.rows(kept_K[order_K])
        if role == "label":
            label_N = load_labels(folder, contract).label_N[here.rows_B].long()
            if contract.target.type == "multilabel":
                classes_NC = label_columns(label_N, contract.target.outputs)
            else:
                classes_NC = one_hot(label_N, max(2, contract.target.classes)).float()
            own_ND, by = here.sent_BD, peer
            who = f"{peer}, which has its own columns and knows every label,"
        else:
            # The label that a feature party can infer: the side of the gradients' main direction on which a row lies
            centred_BD = here.received_BD.double() - here.received_BD.double().mean(dim=0)
            centred_BD = centred_BD.nan_to_num(nan=0, posinf=0, neginf=0)  # such gradients are named when they are attacked
            along_B = centred_BD @ top_direction(centred_BD)
            cut = two_means_cut(along_B)
            classes_NC, own_ND = one_hot((along_B > (cut or 0.0)).long(), 2).float(), None
            by = " or ".join(name for name in contract.feature_parties if name != party)
            who = f"{by} (assuming gradients like those of {party}, and without its own columns)"
        rebuilt = _rebuilt_columns(contract, party, by, who, here, own_ND, classes_NC, columns)
        from_gradients.append(replace(rebuilt, not_measured=[*rebuilt.not_measured, *notes]))
    return from_gradients


def _by_class(x_ND: Tensor, classes_NC: Tensor) -> Tensor:
    """Make a block of columns for each class, 0 in rows of other classes, so that each class is fitted separately.

    If that makes too many columns, return them unchanged.
    """
    if x_ND.shape[1] * classes_NC.shape[1] > MOST_INPUTS:
        return x_ND
    return (classes_NC[:, :, None] * x_ND[:, None]).flatten(1)


def _rebuilt_columns(
    contract: Contract,
    party: str,
    by: str,
    who: str,
    step: StepView,
    own_ND: Tensor | None,
    classes_NC: Tensor,
    columns: ColumnValues,
) -> results.ColumnsFromGradients:
    """Measure how well columns are rebuilt with gradients and without.

    An attacker may ignore gradients, so the figure with gradients is never less than the one without.
    """
    quick = contract.audit == "quick"
    known_counts = [count for count in (QUICK_KNOWN if quick else KNOWN) if len(columns) >= 2 * count]
    notes: list[str] = []
    if not known_counts:
        notes.append(
            f"columns of {party} by {by}: gradients of {len(columns)} rows were recorded; {2 * QUICK_KNOWN[0]} are needed"
        )
    leaks: list[FeatureLeaks] = []
    for gradients in (step, None):
        try:
            if own_ND is not None and not bool(torch.isfinite(own_ND).all()):
                raise DataError("its embeddings are NaN or infinite; training diverged or the record is damaged")
            attacks = ATTACKS if gradients is not None else ATTACKS_WITHOUT
            none_N0 = classes_NC[:, :0]
            if gradients is None:
                own = own_ND if own_ND is not None else none_N0
                first, second = torch.cat([own, classes_NC], dim=1), torch.cat([_by_class(own, classes_NC), classes_NC], dim=1)
            else:
                assert gradients.length_B is not None, "sums by row hold lengths"
                size_N1 = torch.linalg.vector_norm(gradients.received_BD, dim=1, keepdim=True)
                beside = torch.cat([classes_NC, size_N1, gradients.length_B[:, None]], dim=1)
                unit_ND = gradients.received_BD / size_N1.clamp(min=torch.finfo(torch.float32).tiny)
                few = principal_components(own_ND, min(COMPONENTS, own_ND.shape[1])).float() if own_ND is not None else none_N0
                first = torch.cat([_by_class(unit_ND, classes_NC), beside, few], dim=1)
                second = torch.cat([_by_class(gradients.received_BD, classes_NC), beside, few], dim=1)
            width = max(first.shape[1], second.shape[1])
            first, second = (pad(each, (0, width - each.shape[1])) for each in (first, second))
            group_leaks = _found(first, second, columns, known_counts, attacks)
            if gradients is not None:
                two_sides = contract.target.type != "multilabel" and classes_NC.shape[1] == 2
                turned = _turned(gradients, classes_NC, own_ND, two_sides=two_sides)
                group_leaks = stronger(group_leaks, [_found(turned, turned, columns, known_counts, {"turned": TURNED})])
            leaks.append(group_leaks)
        except DataError as error:  # NaN of a training that diverged
            notes.append(f"columns of {party} by {by}: {error}")
            leaks.append(FeatureLeaks(columns=()))
    with_gradients, without = leaks
    with_gradients = stronger(with_gradients, [without], how=WITHOUT_GRADIENTS)
    return results.ColumnsFromGradients(
        party=party,
        by=by,
        summary=f"How well could {who} rebuild columns of {party} from cut gradients? Measured by {party} alone, on "
        f"{len(columns):,} training rows, compared with what would be rebuilt without gradients. If noise hides a column in "
        "gradients, the figure without them counts, because an attacker may ignore them. Nothing was sent for it. No defence of "
        "labels promises anything for columns; only `training.gradients: none` sends no gradient. Every figure is a floor.",
        columns=list(with_gradients.columns),
        without=list(without.columns),
        means=_means(with_gradients, known_counts),
        means_without=_means(without, known_counts),
        not_measured=[*dict.fromkeys([*notes, *with_gradients.not_measured])],
    )


def _found(
    last_ND: Tensor, mean_ND: Tensor, columns: ColumnValues, known: Sequence[int], attacks: Mapping[str, FeatureInferenceAttack]
) -> FeatureLeaks:
    embeddings = SentEmbeddings(last_BD=last_ND, mean_BD=mean_ND, looks_BE=last_ND, looks_at_BL=None)
    return AttackPlan.of(embeddings, columns, known=known, draws=1, attacks=attacks).leaks(PlannedAttack.__call__, groups=PLANS)


def _turned(gradients: StepView, classes_NC: Tensor, own_ND: Tensor | None, *, two_sides: bool) -> Tensor:
    """Put what a feature party has side by side: directions, lengths, guessed classes and own columns, each with its weight.

    A gradient is p - y times a direction, which follows from the units that are active at the row. Of two classes all gradients
    lie on ``two_sides``. Turned to one side they show the direction, whatever the label, also if a defence replaced it. The
    length and the side show p. With several labels a gradient is a sum of such products, which have no two sides.
    """
    assert gradients.length_B is not None, "sums by row hold lengths"
    tiny = torch.finfo(torch.float64).tiny
    received_ND = gradients.received_BD.double()
    size_N1 = torch.linalg.vector_norm(received_ND, dim=1, keepdim=True).clamp(min=tiny)
    unit_ND = received_ND / size_N1
    side_N1 = (unit_ND @ top_direction(unit_ND)).sign()[:, None] if two_sides else torch.ones_like(size_N1)
    logs_N2 = even_columns(torch.cat([size_N1, gradients.length_B.double()[:, None].clamp(min=tiny)], dim=1).log())
    logs_N2 = logs_N2.clamp(-MOST_DEVIATIONS, MOST_DEVIATIONS)
    parts = [
        _of_one_size(_uneven(unit_ND * side_N1)),
        LENGTHS * _of_one_size(torch.cat([logs_N2, logs_N2 * side_N1, side_N1], dim=1)),
        CLASSES * _of_one_size(classes_NC.double()),
    ]
    if own_ND is not None:
        parts.append(OWN * _of_one_size(_uneven(own_ND.double())[:, :OWN_COMPONENTS]))
    return torch.cat(parts, dim=1).float()


def _uneven(x_ND: Tensor) -> Tensor:
    """Return the principal components, of which each keeps the root of its deviation."""
    z_NP, share_P = components(even_columns(x_ND))
    return z_NP * share_P.sqrt()


def _of_one_size(x_ND: Tensor) -> Tensor:
    """Centre the rows, and divide them by their root mean square length."""
    centred_ND = x_ND - x_ND.mean(dim=0)
    return centred_ND / centred_ND.square().sum(dim=1).mean().sqrt().clamp(min=torch.finfo(torch.float32).tiny)


def _means(leaks: FeatureLeaks, known: Sequence[int]) -> list[results.MeanRebuilt]:
    return [results.MeanRebuilt(known=count, value=value) for count in known if (value := leaks.mean(count)) is not None]
