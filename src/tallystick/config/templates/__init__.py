"""Write commented party files and contracts to start from, with the requested parties, method and columns."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from string import Template

from tallystick.alignment.linkages import LINKAGES, Linkage
from tallystick.errors import ConfigError
from tallystick.reading import PARTY_NAME, Role, shown

HELPER = "helper"
COMMENTS_AT = 36  # column of the comments after keys
_COMMENTED = re.compile(r"(.*\S) {2,}(# .*)")
FIRST_PORT = 7443
_GRADIENTS = ("sent", "none", "shared")
_SHARED = """\
# Labels are an input: the label party chooses them, and reads a column off the scores if it takes that column for the label. No
# protocol prevents it. A feature party can bound how many scores of a row are ever opened (privacy.scores_per_row in its file).
"""
_CLASSES, _REGRESSION = ("binary", "multiclass"), "regression"


@dataclass(frozen=True, kw_only=True)
class FoundColumns:
    """Columns whose use is clear from a table's header.

    Args:
        names: names of all its columns.
        key: the column that names a row, or from which similar keys are read; None if several are possible, or none.
        label: the column to predict; None in the same cases.
        classes: number of the label's classes; None for a number to estimate, or if unknown.
    """

    names: tuple[str, ...] = ()
    key: str | None = None
    label: str | None = None
    classes: int | None = 2


@dataclass(frozen=True, kw_only=True)
class FileRequest:
    """A request for a contract and a party file.

    Args:
        role: role of the party file's owner.
        parties: the label party first, then the feature parties; the helper may be named as well.
        method: how rows are linked.
        party: owner of the file; None if the role determines it.
        table: table of that party, relative to the party file's folder; None is a file next to it, named like the party.
        columns: columns whose use is clear from the table's header.
        gradients: whether cut gradients are sent, or none, or a head is trained on secret shares.

    Raises ConfigError for names, a role or a method that cannot be combined.
    """

    role: Role
    parties: tuple[str, ...]
    method: str
    party: str | None = None
    table: Path | None = None
    columns: FoundColumns = field(default_factory=FoundColumns)
    gradients: str = "sent"

    def __post_init__(self) -> None:
        if self.method not in LINKAGES:
            raise ConfigError(f"--method {shown(self.method)}: must be one of {', '.join(LINKAGES)}")
        if self.gradients not in _GRADIENTS:
            raise ConfigError(f"--gradients {shown(self.gradients)}: must be {', '.join(_GRADIENTS[:-1])} or {_GRADIENTS[-1]}")
        if self.gradients == "shared" and self.method != "intersection":
            raise ConfigError(f"--gradients shared: links rows by --method intersection, not {self.method}; leave --method out")
        if self.gradients == "none" and self.facts.imputes:
            raise ConfigError(
                f"--gradients none: --method {self.method} draws stand-ins anew in each epoch, and here each row crosses once; "
                "choose intersection or similarity, or send gradients"
            )
        for name in self.parties:
            if not PARTY_NAME.fullmatch(name):
                raise ConfigError(
                    f"--parties: {shown(name)}: must be 1 to 63 of a-z, 0-9, - and _, starting and ending with a letter or digit"
                )
            if self.parties.count(name) > 1:
                raise ConfigError(f"--parties: {name} is named twice; each party has one name")
        if self.parties[0] == HELPER:
            raise ConfigError(f"--parties {','.join(self.parties)}: the label party comes first; {HELPER} is the helper's name")
        if HELPER in self.parties and not self.has_helper:
            raise ConfigError(
                f"--parties: {HELPER}: --method {self.method} has no helper; leave it out, or choose another method"
            )
        count = len(self.features)
        if count < 1 or (count > 1 and not self.facts.several):
            expected = "a label party and one or more feature parties" if self.facts.several else "a label and one feature party"
            raise ConfigError(f"--parties {','.join(self.parties)}: --method {self.method} wants {expected}, in this order")
        if self.role == "helper" and not self.has_helper:
            helped = " or ".join(name for name, linkage in LINKAGES.items() if linkage.helper)
            raise ConfigError(f"--role helper: --method {self.method} has no helper; choose {helped}, or --gradients shared")
        if self.role == "helper" and self.table is not None:
            raise ConfigError(f"--table {self.table}: a helper sees no rows; leave it out")
        if self.facts.imputes and self.columns.classes != 2:
            raise ConfigError(
                f"--method {self.method}: labels can be imputed for binary targets only, and column {shown(self.columns.label)} "
                "has other values; choose intersection or similarity"
            )
        here = [name for name, role in self.roles.items() if role == self.role]
        if self.party is None and len(here) > 1:
            raise ConfigError(f"--party: is missing; say whether this is {' or '.join(here)}")
        if self.party is not None and self.party not in here:
            raise ConfigError(f"--party {shown(self.party)}: must be {' or '.join(here)}, whose role is {self.role}")

    @property
    def facts(self) -> Linkage:
        """Return the facts of the linkage."""
        return LINKAGES[self.method]

    @property
    def has_helper(self) -> bool:
        """Tell whether a third party without rows takes part."""
        return self.facts.helper or self.gradients == "shared"

    @property
    def features(self) -> tuple[str, ...]:
        """List the feature parties."""
        return tuple(name for name in self.parties[1:] if name != HELPER)

    @property
    def roles(self) -> dict[str, Role]:
        """Return every party's role, in the contract's order."""
        roles: dict[str, Role] = {self.parties[0]: "label", **dict.fromkeys(self.features, "feature")}
        return {**roles, HELPER: "helper"} if self.has_helper else roles

    @property
    def name(self) -> str:
        """Return the name of the file's owner."""
        return self.party or next(name for name, role in self.roles.items() if role == self.role)


def contract_text(request: FileRequest) -> str:
    """Write the contract. It is the same for every party with the same request, except for the target, which depends on the label
    party's table.
    """
    classes = request.columns.classes if request.role == "label" else 2
    target = _REGRESSION if classes is None else _CLASSES[classes > 2]
    return (_SHARED if request.gradients == "shared" else "") + _filled(
        "contract.yaml",
        {
            "parties": "\n".join(f"  {_name(name)}: {{role: {role}}}" for name, role in request.roles.items()),
            "method": f"{request.method:<25}",
            "keys": _part("similarity.yaml" if request.facts.similar else "keys.yaml").rstrip("\n"),
            "unaligned": "warm-start" if request.method == "intersection" and request.gradients != "shared" else "none",
            "training": _filled(
                "training-shared.yaml" if request.gradients == "shared" else "training.yaml", {"gradients": request.gradients}
            ).rstrip("\n"),
            "target": f"type: {target}" + (f"\n  classes: {classes}" if target == "multiclass" else ""),
        },
    )


def party_text(request: FileRequest) -> str:
    """Write one party's file. If the header does not show a column's use, a comment says so."""
    label, columns = request.parties[0], request.columns
    ports = {name: FIRST_PORT + place for place, name in enumerate([label, *([HELPER] if request.has_helper else [])])}
    dialled = {"label": [HELPER], "feature": [label, HELPER], "helper": []}[request.role]
    peers = [name for name in dialled if name in ports]
    key = "name" if request.facts.similar else "customer"
    return _filled(
        f"{request.role}.yaml",
        {
            "party": _name(request.name),
            "file": request.name,
            "table": json.dumps(str(request.table), ensure_ascii=False) if request.table else f"{request.name}.parquet",
            "keys": f"{{{key}: {_quoted(columns.key or ('name' if key == 'name' else 'customer_id'))}}}",
            "key_note": _note(columns, columns.key, "the contract's key: your column"),
            "label": _quoted(columns.label or "defaulted"),
            "label_note": _note(columns, columns.label, "the column to predict"),
            "port": str(ports.get(request.name, FIRST_PORT)),
            "peers": "".join(f'\n  {_name(name)}: {{address: "127.0.0.1:{ports[name]}"}}   # its host' for name in peers)
            or " {}",
        },
    )


def _note(columns: FoundColumns, column: str | None, use: str) -> str:
    if not columns.names:
        return use
    return f"{use}, by its name" if column is not None else f"yours: {use}; the table's header does not make plain which it is"


def _name(party: str) -> str:
    """Quote the name if YAML would read a number or null."""
    return party if party[0].isalpha() and party not in ("null", "true", "false") else _quoted(party)


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _part(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _filled(name: str, values: Mapping[str, str]) -> str:
    """Fill the template with its values, and align the comments after them."""
    lines = []
    for line in _part(name).splitlines():
        match = _COMMENTED.fullmatch(line)
        content = Template(line if match is None else match[1]).substitute(values)
        if match is not None:
            last = len(content) - content.rfind("\n") - 1
            content += " " * max(2, COMMENTS_AT - last) + Template(match[2]).substitute(values)
        lines.append(content)
    return "\n".join(lines) + "\n"
