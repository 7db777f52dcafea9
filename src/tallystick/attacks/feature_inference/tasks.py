"""Run a plan's attacks as tasks on an engine. Each has its own seed, so it finds the same on any worker, in any order."""

from collections.abc import Mapping

import msgspec
from safetensors.torch import load, save
from torch import Tensor

from tallystick.attacks.feature_inference.attack_table import FEATURE_INFERENCE_ATTACKS
from tallystick.attacks.feature_inference.evaluate import AttackPlan, FeatureLeaks, PlannedAttack
from tallystick.attacks.feature_inference.view import ColumnValues, Reconstruction, SentEmbeddings
from tallystick.compute.task import Engine, TaskFunction, Work

WORTH_CELLS = 75_000
"""Least number of cells (rows times columns) for which a worker is worth starting. Smaller attacks end before it begins."""


def leaks_on(engine: Engine, plan: AttackPlan, *, groups: int = 1) -> FeatureLeaks:
    """Run the plan's attacks, on the engine if that is quicker. Their names are those of the attack table.

    Attacks that know the starting weights run in this process, because their model stays here.
    """
    if len(plan.columns) * (len(plan.columns.numeric) + len(plan.columns.categorical)) < WORTH_CELLS:
        return plan.leaks(PlannedAttack.__call__, groups=groups)
    handed = [each.key for each in plan.planned() if not each.row.from_start]
    columns, embeddings = plan.columns, plan.sent
    tensors: dict[str, Tensor | None] = {
        "last": embeddings.last_BD,
        "mean": embeddings.mean_BD,
        "looks": embeddings.looks_BE,
        "looks at": embeddings.looks_at_BL,
        "contrast": embeddings.contrast_BCD,
        "own": embeddings.own_BA,
        "numeric": columns.numeric_NF,
        "categorical": columns.categorical_NG,
        **{f"known {count} {draw}": rows for count, draws in plan.told.items() for draw, rows in enumerate(draws)},
    }
    facts = _Facts(
        numeric=columns.numeric,
        categorical=columns.categorical,
        categories=columns.categories,
        attacks=list(plan.attacks),
        told=[(count, len(draws)) for count, draws in plan.told.items()],
        marginals=plan.marginals,
        shuffles=embeddings.shuffles,
        seed=plan.seed,
    )
    packed = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
    work = Work(prepare=f"{__name__}:{prepare_attack.__name__}", shared=msgspec.msgpack.encode((facts, save(packed))))
    reconstructions: dict[tuple[int, int, str], Reconstruction | str] = {}
    for number, output in engine.map(work, (msgspec.json.encode(key) for key in handed), _rebuilt):
        reconstructions[handed[number]] = output
    return plan.leaks(lambda each: reconstructions[each.key] if each.key in reconstructions else each(), groups=groups)


def prepare_attack(shared: bytes) -> TaskFunction:
    """Rebuild the plan in a worker. The input of a task is the key of an attack."""
    facts, packed = msgspec.msgpack.decode(shared, type=tuple[_Facts, bytes])
    tensor_of: Mapping[str, Tensor] = load(packed)
    plan = AttackPlan(
        sent=SentEmbeddings(
            last_BD=tensor_of["last"],
            mean_BD=tensor_of["mean"],
            looks_BE=tensor_of["looks"],
            looks_at_BL=tensor_of.get("looks at"),
            contrast_BCD=tensor_of.get("contrast"),
            shuffles=facts.shuffles,
            own_BA=tensor_of.get("own"),
        ),
        columns=ColumnValues(
            numeric_NF=tensor_of["numeric"],
            categorical_NG=tensor_of["categorical"],
            numeric=facts.numeric,
            categorical=facts.categorical,
            categories=facts.categories,
        ),
        marginals=facts.marginals,
        told={count: [tensor_of[f"known {count} {draw}"] for draw in range(draws)] for count, draws in facts.told},
        attacks={name: FEATURE_INFERENCE_ATTACKS[name] for name in facts.attacks},
        seed=facts.seed,
    )
    planned = {each.key: each for each in plan.planned()}

    def attack(payload: bytes) -> bytes:
        outcome = planned[msgspec.json.decode(payload, type=tuple[int, int, str])]()
        if isinstance(outcome, str):
            return msgspec.msgpack.encode((outcome, b""))
        tensors = {"numeric": outcome.numeric_NF.contiguous(), "categorical": outcome.categorical_NG.contiguous()}
        tensors |= {f"score {place}": score_JN.contiguous() for place, score_JN in enumerate(outcome.scores)}
        tensors |= {f"codes {place}": code_J.contiguous() for place, code_J in enumerate(outcome.codes)}
        return msgspec.msgpack.encode(("", save(tensors)))

    return attack


def _rebuilt(output: bytes) -> Reconstruction | str:
    reason, tensors = msgspec.msgpack.decode(output, type=tuple[str, bytes])
    if reason:
        return reason
    rebuilt = load(tensors)
    ranked_columns = range((len(rebuilt) - 2) // 2)
    return Reconstruction(
        numeric_NF=rebuilt["numeric"],
        categorical_NG=rebuilt["categorical"],
        scores=tuple(rebuilt[f"score {place}"] for place in ranked_columns),
        codes=tuple(rebuilt[f"codes {place}"] for place in ranked_columns),
    )


class _Facts(msgspec.Struct, frozen=True):
    """Facts of a plan that are not tensors."""

    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    categories: tuple[int, ...]
    attacks: list[str]
    told: list[tuple[int, int]]  # known rows, and draws of them
    marginals: bool
    shuffles: int
    seed: int
