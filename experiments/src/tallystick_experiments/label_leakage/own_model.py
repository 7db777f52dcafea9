"""Run attacks that train the feature party's own model, on the run folders of a simulation.

In a real run nobody can measure them: the feature party has the model and the columns, and the label party the labels.
"""

import secrets
from dataclasses import replace
from pathlib import Path

from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS
from tallystick.attacks.label_inference.auxiliary import FewLabels
from tallystick.attacks.label_inference.evaluate import LabelInferenceEvaluation
from tallystick.audit.labels import AUXILIARY_LABELS, attack_result
from tallystick.audit.recorded_labels import load_labels
from tallystick.config.contract import Contract
from tallystick.config.party import parse_party
from tallystick.dataset.datasets import dataset_of
from tallystick.dataset.own_rows import OwnRows
from tallystick.errors import DataError
from tallystick.privacy.randomness import SEED_BITS
from tallystick.results import AttackResult
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.row_recorder import RowStore
from tallystick.run_folder.trained import Architecture, TrainedFeatureParty, kept_encoder
from tallystick.tables.keys import read_keys
from tallystick.trials.partner import SimulatedPartner
from tallystick_experiments.label_leakage.runs import EmbedsRows


def attacked_with_model(contract: Contract, partner: SimulatedPartner, runs: Path) -> list[AttackResult]:
    """Attack the records that a simulation with ``audit: true`` left in ``runs``, with the trained bottom model and its columns.

    Attackers know the same rows and labels as in the run's own audit.
    """
    label, feature = (RunFolder.latest(runs / name, contract, name) for name in (partner.label, partner.feature))
    label_file = load_labels(label, contract)
    store = RowStore(
        folder=label.views / partner.feature,
        contract=contract.hash,
        origin=label.origin,
        received="cut_gradient",
        run_id=label_file.run_id,
    )
    view = replace(
        store.load(store.epochs()[-1]).view(classes=contract.target.classes), own_model=_own_model(contract, partner, feature)
    )
    evaluation = LabelInferenceEvaluation(view, label_file.label_N)
    few = FewLabels(count=max(AUXILIARY_LABELS, contract.target.classes))
    attacks = [(name, replace(row, knows=few)) for name, row in LABEL_INFERENCE_ATTACKS.items() if row.with_model]
    measured = [(name, row, evaluation(row)) for name, row in attacks if row.allows(view.classes)]
    return [attack_result(name, row, partner.feature, metrics) for name, row, metrics in measured if metrics is not None]


def _own_model(contract: Contract, partner: SimulatedPartner, folder: RunFolder) -> EmbedsRows:
    """Return the feature party's trained model over its columns at the linked positions, from its own run folder."""
    aligned = folder.load_alignment()
    if aligned is None:
        raise DataError(f"{folder.path} holds no alignment; it does not look like a finished run")
    values = {"party": partner.feature, "table": {"path": "table.parquet"}, **partner.columns[partner.feature]}  # never read
    party, frame = parse_party(values, folder=folder.path, source=partner.feature), partner.tables[partner.feature]
    keys = read_keys(frame, columns=party.keys, alignment=contract.alignment)
    own = OwnRows(party=party, is_label=False, frame=frame, keys=keys, alignment=aligned[1])
    dataset = dataset_of(contract.linkage).to_score(
        contract, own, kept_encoder(folder), secret_seed=lambda: secrets.randbits(SEED_BITS)
    )
    trained = TrainedFeatureParty.load(folder, Architecture.of(contract, partner.feature), dataset)
    return EmbedsRows(trained.bottom, dataset.features_at)
