"""Turn a party's own half of the network into one module over tensors, and write it as ONNX and safetensors.

Shapes: B batch, F numeric columns, G columns of codes, D cut width, C outputs.
"""

import copy
import json
import logging
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from tallystick.config.contract import Contract
from tallystick.errors import ConfigError, DataError
from tallystick.evaluation.importance import column_places
from tallystick.models.build import width_of
from tallystick.models.folds import build_folded_bottom
from tallystick.models.numbers import PiecewiseLinear
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.trained import Architecture, TrainedLabelParty, kept_encoder, kept_folds
from tallystick.storage import Origin, check_sealed, write_bytes
from tallystick.tables.encoder import Encoder
from tallystick.tables.features import Features
from tallystick.tables.target import LabelCoder
from tallystick.training.calibration import Calibration
from tallystick.training.checkpoint import load_weights, read_tensors

NUMERIC, CODES, EMBEDDING, LOGIT = "numeric_BF", "codes_BG", "embedding_BD", "logit"
OPSET = 18
CHECKED_ROWS, TOLERANCE = 7, 1e-4


class ExportedHalf(nn.Module):
    """One party's half over tensors: it takes encoded columns and, at the label party, the cut embeddings of the others.

    It returns the cut embedding (B, D) of a feature party, or the label party's calibrated logits: (B,), or (B, C).
    """

    def __init__(self, module: nn.Module, *, cuts: int | None, calibration: Calibration | None) -> None:
        super().__init__()
        self.module = module
        self.cuts = cuts
        self.calibration = calibration

    def forward(self, numeric_BF: Tensor, codes_BG: Tensor, *cuts_BD: Tensor) -> Tensor:
        """Make one pass."""
        own = Features(numeric_NF=numeric_BF, categorical_NG=codes_BG)
        if self.calibration is None:
            embedding_BD: Tensor = self.module(own)
            return embedding_BD
        return self.calibration.prediction_logits(self.module(list(cuts_BD), own))


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A half that was read from a run folder, with the facts that another program needs.

    Args:
        contract: contract of the run.
        origin: the run to which it belongs.
        half: the module, ready for rows.
        encoder: encoder of the own columns; None for a label party without columns.
        widths: widths of its input cut embeddings, by feature party; empty for a feature party's half.
        meaning: how the output becomes a score.
    """

    contract: Contract
    origin: Origin
    half: ExportedHalf
    encoder: Encoder | None
    widths: dict[str, int]
    meaning: dict[str, Any]

    @property
    def inputs(self) -> list[str]:
        """Return the names of the inputs, in order."""
        return [NUMERIC, CODES, *(f"{EMBEDDING}_{name}" for name in self.widths)]

    def example(self, rows: int) -> tuple[Tensor, ...]:
        """Make rows of zeros of the right shapes."""
        numbers, codes = (self.encoder.feature_shape.numeric, len(self.encoder.feature_shape.codes)) if self.encoder else (0, 0)
        cuts = [torch.zeros(rows, width) for width in self.widths.values()]
        return (torch.zeros(rows, numbers), torch.zeros(rows, codes, dtype=torch.int64), *cuts)


def half_of(folder: RunFolder) -> Exported:
    """Read a party's half from its run folder.

    Raises ConfigError if the half alone is not what the contract trains: imputed rows of a union, several links of a row, or
    noise on what is sent; DataError for a run that was not finished, DamagedFile for a damaged one.
    """
    contract = folder.contract()
    party = folder.origin.party
    why = None
    if contract.role_of(party) == "helper":
        why = "a helper has no half of the network"
    elif contract.linkage.imputes:
        why = "on a union rows that a side lacks are filled in while they are scored; use `tallystick predict`"
    elif contract.linkage.similar:
        why = "the label party merges several linked rows into one, with weights of their similarity; use `tallystick predict`"
    elif contract.role_of(party) == "feature" and contract.embedding_defenses().noisy:
        why = "the contract's defence adds noise to what this half sends, and the exported half would send it without noise"
    if why is not None:
        raise ConfigError(f"contract {contract.name}: its halves are not exported: {why}")
    if not folder.trained:
        raise DataError(f"{folder.path} holds no trained model; go on with it by `tallystick run --resume` on all sides")
    for path in (folder.model, folder.path / "training.json"):
        check_sealed(path, origin=folder.origin)
    if contract.role_of(party) == "feature":
        encoder = kept_encoder(folder)
        if encoder is None:
            raise DataError(f"{folder.encoder}: it is missing, and the model cannot be used without it")
        model = contract.feature_model
        bottom = build_folded_bottom(
            model, party, encoder.feature_shape, seed=contract.seed, folds=kept_folds(folder), cut_width=model.cut_width
        )
        if contract.embedding_defenses():  # weights are one level deeper there
            weights = {
                name.removeprefix("bottom."): each for name, each in read_tensors(folder.model, origin=folder.origin)[0].items()
            }
            bottom.load_state_dict(weights)
        else:
            load_weights(bottom, folder.model, origin=folder.origin)
        half = ExportedHalf(bottom, cuts=None, calibration=None)
        meaning: dict[str, Any] = {"output": "cut embedding, (rows, width)", "width": width_of(bottom)}
        widths: dict[str, int] = {}
    else:
        trained = TrainedLabelParty.load(folder, Architecture.of(contract, party))
        encoder, coder = trained.encoder, trained.coder
        half = ExportedHalf(trained.model, cuts=len(trained.widths), calibration=trained.calibration)
        widths = dict(zip(contract.feature_parties, trained.widths, strict=True))
        meaning = meaning_of(coder)
    return Exported(contract=contract, origin=folder.origin, half=half.eval(), encoder=encoder, widths=widths, meaning=meaning)


def meaning_of(coder: LabelCoder) -> dict[str, Any]:
    """Say how an output becomes a score."""
    meanings: dict[str, dict[str, Any]] = {
        "binary": {"output": "logit; its sigmoid is the probability of the positive class"},
        "multiclass": {"output": "logits; their softmax is the probability of each class", "classes": list(coder.classes)},
        "multilabel": {
            "output": "logits; the sigmoid of each is the probability that its label is positive",
            "labels": {name: list(classes) for name, classes in coder.labels.items()},
        },
        "regression": {"output": "output * deviation + mean is the value", "deviation": coder.deviation, "mean": coder.mean},
        "count": {"output": "mean * exp(output) is the expected count, at most 1e12", "mean": coder.mean},
        "survival": {
            "output": "mean * exp(deviation * output) is the time by which half have had their event",
            "deviation": coder.deviation,
            "mean": coder.mean,
        },
        "quantile": {
            "output": "output * deviation + mean, sorted within a row, are the quantiles of these levels",
            "deviation": coder.deviation,
            "mean": coder.mean,
            "levels": list(coder.levels),
        },
    }
    return meanings[coder.type]


def safetensors_of(exported: Exported) -> bytes:
    """Return the half's weights as safetensors, with facts on their origin."""
    facts = {"format": "pt", "party": exported.origin.party, "run": exported.origin.run, "contract": exported.contract.hash}
    weights = {name: each.contiguous() for name, each in exported.half.module.state_dict().items()}
    return save(weights, facts)


def onnx_of(exported: Exported, path: Path) -> None:
    """Write the half as ONNX. Raises DataError if the library is not installed, or if a user's module cannot be exported."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise DataError("ONNX is written by libraries that are not installed; run: pip install 'tallystick[onnx]'") from None
    half = copy.deepcopy(exported.half)
    for module in half.modules():
        if type(module) is PiecewiseLinear:
            module.__class__ = _ByComparison
    rows = {0: torch.export.Dim("rows", min=1)}
    output = EMBEDDING if half.calibration is None else LOGIT
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports libraries that are not needed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's warnings about its own code
            program = torch.onnx.export(
                half,
                exported.example(3),
                dynamo=True,
                opset_version=OPSET,
                input_names=exported.inputs,
                output_names=[output],
                dynamic_shapes=(rows, rows, *([tuple(rows for _ in exported.widths)] if exported.widths else [])),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        why = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).partition("## Exception summary")[2].strip().partition("\n")[0]
        raise DataError(f"this half cannot be written as ONNX ({why}); --no-onnx writes the rest") from None
    assert program is not None
    # Remove PyTorch's notes about the code that made the model: paths on this machine, and names of modules
    model = program.model_proto
    graph = model.graph
    parts = [model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer, *model.functions]
    for part in [*parts, *(node for function in model.functions for node in function.node)]:
        del part.metadata_props[:]
        part.ClearField("doc_string")
    write_bytes(path, model.SerializeToString())
    _compare(exported, path)


@torch.no_grad()
def _compare(exported: Exported, path: Path) -> None:
    """Raise DataError unless ONNX Runtime and PyTorch agree, for another number of rows than in the export."""
    from onnxruntime import InferenceSession

    generator = torch.Generator().manual_seed(0)
    rows = list(exported.example(CHECKED_ROWS))
    for place, each in enumerate(rows):
        rows[place] = torch.randn(each.shape, generator=generator) if each.is_floating_point() else each
    expected = exported.half(*rows)
    try:
        session = InferenceSession(path, providers=["CPUExecutionProvider"])
        input_names = {each.name for each in session.get_inputs()}  # an input that nothing reads is removed
        inputs = {name: each.numpy() for name, each in zip(exported.inputs, rows, strict=True) if name in input_names}
        (got,) = session.run(None, inputs)
    except Exception as error:  # ONNX Runtime's errors have no common base
        raise DataError(f"ONNX Runtime does not run the half ({type(error).__name__}); --no-onnx writes the rest") from None
    if (apart := float((torch.from_numpy(got) - expected).abs().max())) > TOLERANCE * max(1.0, float(expected.abs().max())):
        raise DataError(f"ONNX gives other values than PyTorch (by up to {apart:.2g}); --no-onnx writes the rest")


class _ByComparison(PiecewiseLinear):
    """The same embedding without a sorted search, which ONNX lacks: a number's bin is the count of edges at or below it."""

    def bins_of(self, number_FB: Tensor) -> Tensor:
        """Return the place of the last edge at or below each number, or -1 if there is none."""
        return (number_FB[:, :, None] >= self.edges[:, None, :]).sum(dim=2) - 1


def columns_json(exported: Exported) -> str:
    """Write the place of each column in the inputs, the other inputs, and the meaning of the output, as JSON."""
    places = column_places(exported.encoder) if exported.encoder is not None else []
    facts = {
        "columns": [{"name": each.name, NUMERIC: each.numeric, CODES: each.categorical} for each in places],
        "embeddings": {f"{EMBEDDING}_{name}": width for name, width in exported.widths.items()},
        "meaning": exported.meaning,
    }
    return json.dumps(facts, indent=2)
