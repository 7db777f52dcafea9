"""Vertical federated learning that people can put to work and trust.

Two or more organisations that know different columns about the same people train one neural network together. Rows, labels and
customer lists stay at home.

The public names are in ``__all__`` and nowhere else. Each is loaded when it is first used, and docs/reference/python-names.md
describes it. Until 1.0 a public name may change in a minor version, with a line in the changelog. From 1.0 on it is deprecated
for a minor version first. The same rule holds for the interfaces outside Python: keys of contract and party file, commands and
their options, result.json and run folders. Every module below this package is internal and may change at any time.
"""

import gc
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tallystick.errors import (
    ComputeError,
    ConfigError,
    ContractMismatch,
    DamagedFile,
    DataError,
    Diverged,
    FeatureError,
    IdentityError,
    IdError,
    LabelError,
    MachineError,
    PeerError,
    PeerLost,
    PeerStopped,
    ProtocolError,
    SharedDataError,
    StorageError,
    StoreError,
    TallystickError,
    WorkerLost,
)

if TYPE_CHECKING:
    from tallystick.alignment.linkages import LINKAGES
    from tallystick.api import predict, run
    from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS, LabelInferenceAttack
    from tallystick.attacks.membership.attack_table import MEMBERSHIP_ATTACKS
    from tallystick.attacks.view import Scores, View
    from tallystick.config.contract import Contract, load_contract, parse_contract
    from tallystick.config.party import PartyFile, load_party
    from tallystick.defenses.defense_table import DEFENSES
    from tallystick.evaluation.private.release import release_private_auc
    from tallystick.evaluation.private.result import NothingReleased, PrivateAuc
    from tallystick.job.predict import Predicted
    from tallystick.job.process import JobFailed
    from tallystick.metrics import METRICS
    from tallystick.privacy.ledger import BudgetExceeded, Ledger
    from tallystick.report.page import render
    from tallystick.results import Result, read_result
    from tallystick.simulation import simulate
    from tallystick.tables.features import Features, FeatureShape
    from tallystick.watcher import Silent, Watcher

__all__ = [
    "DEFENSES",
    "LABEL_INFERENCE_ATTACKS",
    "LINKAGES",
    "MEMBERSHIP_ATTACKS",
    "METRICS",
    "BudgetExceeded",
    "ComputeError",
    "ConfigError",
    "Contract",
    "ContractMismatch",
    "DamagedFile",
    "DataError",
    "Diverged",
    "FeatureError",
    "FeatureShape",
    "Features",
    "IdError",
    "IdentityError",
    "JobFailed",
    "LabelError",
    "LabelInferenceAttack",
    "Ledger",
    "MachineError",
    "NothingReleased",
    "PartyFile",
    "PeerError",
    "PeerLost",
    "PeerStopped",
    "Predicted",
    "PrivateAuc",
    "ProtocolError",
    "Result",
    "Scores",
    "SharedDataError",
    "Silent",
    "StorageError",
    "StoreError",
    "TallystickError",
    "View",
    "Watcher",
    "WorkerLost",
    "__version__",
    "load_contract",
    "load_party",
    "parse_contract",
    "predict",
    "read_result",
    "release_private_auc",
    "render",
    "run",
    "simulate",
]

_HOME: Mapping[str, str] = MappingProxyType(
    {
        "simulate": "tallystick.simulation",
        "run": "tallystick.api",
        "predict": "tallystick.api",
        "Contract": "tallystick.config.contract",
        "load_contract": "tallystick.config.contract",
        "parse_contract": "tallystick.config.contract",
        "PartyFile": "tallystick.config.party",
        "load_party": "tallystick.config.party",
        "Result": "tallystick.results",
        "read_result": "tallystick.results",
        "render": "tallystick.report.page",
        "LINKAGES": "tallystick.alignment.linkages",
        "DEFENSES": "tallystick.defenses.defense_table",
        "LABEL_INFERENCE_ATTACKS": "tallystick.attacks.label_inference.attack_table",
        "MEMBERSHIP_ATTACKS": "tallystick.attacks.membership.attack_table",
        "METRICS": "tallystick.metrics",
        "Features": "tallystick.tables.features",
        "FeatureShape": "tallystick.tables.features",
        "LabelInferenceAttack": "tallystick.attacks.label_inference.attack_table",
        "View": "tallystick.attacks.view",
        "Scores": "tallystick.attacks.view",
        "Watcher": "tallystick.watcher",
        "Silent": "tallystick.watcher",
        "JobFailed": "tallystick.job.process",
        "Predicted": "tallystick.job.predict",
        "BudgetExceeded": "tallystick.privacy.ledger",
        "NothingReleased": "tallystick.evaluation.private.result",
        "PrivateAuc": "tallystick.evaluation.private.result",
        "release_private_auc": "tallystick.evaluation.private.release",
        "Ledger": "tallystick.privacy.ledger",
    }
)
"""The module that defines each name that is loaded when first used. The errors need nothing and are loaded at once."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("tallystick")
    elif name in _HOME:
        # The modules that an import brings stay, and a garbage search through them would take a sixth of the time
        collects = gc.isenabled()
        gc.disable()
        try:
            module = import_module(_HOME[name])
        finally:
            if collects:
                gc.enable()
        value = getattr(module, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
