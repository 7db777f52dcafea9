"""Define the contract's defences: an entry per row of defenses/defense_table.py, or of an installed package's entry point.

An entry has the keys that the defence itself declares.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, Union, get_args, get_type_hints

from pydantic import (
    Field,
    SerializeAsAny,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo

from tallystick.alignment.linkages import Linkage
from tallystick.defenses.defense import Defense
from tallystick.defenses.defense_table import DEFENSES, GROUP, defense_named, installed_methods
from tallystick.errors import ConfigError
from tallystick.reading import Model, Problems, did_you_mean, problem_lines, shown

_METHOD = f"which defence: {', '.join(DEFENSES)}"


class DefenseKeys(Model):
    """One entry: the method, and its own keys."""

    defense: ClassVar[type[Defense]]
    """The defence that the entry names."""

    def make(self) -> Defense:
        """Make the defence. Raises ConfigError if its keys cannot be combined."""
        return self.defense(**self.model_dump(exclude={"method"}))

    @property
    def covers_labels(self) -> bool:
        """Tell whether it replaces labels under a formal guarantee, which then holds for the whole run."""
        return self.defense.stage == "labels" and self.make().guarantee().event is not None

    @model_validator(mode="after")
    def _keys_together(self) -> "DefenseKeys":
        try:
            self.make()
        except ConfigError as error:
            Problems.raise_any([str(error)])
        return self


def _entry(defense: type[Defense]) -> type[DefenseKeys]:
    hints = get_type_hints(defense, include_extras=True)
    keys: dict[str, Any] = {
        field.name: (hints[field.name], ... if field.default is MISSING else field.default)
        for field in fields(defense)  # type: ignore[arg-type]
        if any(isinstance(note, FieldInfo) for note in get_args(hints[field.name]))
    }
    method = Annotated[Literal[defense.method], Field(description=_METHOD)]  # type: ignore[name-defined]
    entry = create_model(defense.__name__, __base__=DefenseKeys, method=(method, ...), **keys)
    entry.defense = defense
    return entry


def _known_or_installed(values: Any, known: ValidatorFunctionWrapHandler) -> Any:
    """Read an entry whose method is not in the table by the class of an installed package."""
    method = values.get("method") if isinstance(values, Mapping) else None
    if isinstance(values, DefenseKeys) or not isinstance(method, str) or method in DEFENSES:
        return known(values)
    try:
        defense = defense_named(method)
    except ConfigError as error:
        raise Problems([f"method = {method}: {error}"]) from None
    if defense is None:
        known_here = did_you_mean(method, [*DEFENSES, *installed_methods()])
        raise Problems([f"method = {shown(method)}: is not known, nor an installed entry point of {GROUP}; {known_here}"])
    entry = _entry(defense)
    try:
        return entry.model_validate(values)
    except ValidationError as error:
        raise Problems(problem_lines(entry, error)) from None


if TYPE_CHECKING:
    DefenseEntry: TypeAlias = DefenseKeys
else:
    _ENTRIES = tuple(_entry(defense) for defense in DEFENSES.values())
    DefenseEntry = Annotated[
        SerializeAsAny[Union[_ENTRIES]],  # noqa: UP007 - of a tuple
        Field(discriminator="method", examples=[{"method": "label-dp", "epsilon": 1}]),
        WrapValidator(_known_or_installed),
    ]


def defense_problems(entries: Sequence[DefenseKeys], target_type: str, linkage: Linkage) -> list[str]:
    """List the problems of a contract's defences together, and with its target."""
    problems = []
    entries_by_key = [
        (f"defense.{number}.method = {entry.defense.method}", entry.defense) for number, entry in enumerate(entries)
    ]
    for where, defense in entries_by_key:
        if target_type not in defense.targets:
            instead = f"; {defense.instead[target_type]}" if target_type in defense.instead else ""
            problems.append(f"{where}: is for {' or '.join(defense.targets)} targets; target.type = {target_type}{instead}")
        if defense.stage == "labels" and linkage.imputes:
            problems.append(f"{where}: labels are replaced once, but a union imputes absent ones anew; align by intersection")
    defenses = [defense for _, defense in entries_by_key]
    kinds: dict[str, list[int]] = {}
    for number, defense in enumerate(defenses):
        kinds.setdefault("labels" if defense.stage == "labels" else defense.method, []).append(number)
    for kind, numbers in kinds.items():
        if len(numbers) > 1:
            keys = ", ".join(f"defense.{number}" for number in numbers)
            replacing = ", ".join(name for name, each in DEFENSES.items() if each.stage == "labels")
            what = f"replace the labels ({replacing})" if kind == "labels" else f"are {kind}"
            problems.append(f"{keys}: {len(numbers)} entries {what}; give one")
    soft = next((number for number, defense in enumerate(defenses) if defense.soft_labels), None)
    class_defenses = ", ".join(name for name, each in DEFENSES.items() if each.stage == "labels" and not each.soft_labels)
    problems += [
        f"defense.{number}.method = {defense.method}: needs a class per row, but defense.{soft}.method = {defenses[soft].method} "
        f"makes labels numbers between the classes; replace it by one that keeps classes: {class_defenses}"
        for number, defense in enumerate(defenses)
        if soft is not None and defense.needs_classes
    ]
    return problems
