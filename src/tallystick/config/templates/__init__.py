"""Commented party files and a contract to start from."""

from importlib.resources import files
from typing import Literal

from tallystick.config.reading import Role

TemplateKind = Literal["contract", "party"]


def template(kind: TemplateKind, role: Role) -> str:
    """Give a commented YAML file to start from; the contract is the same for every role."""
    name = "contract.yaml" if kind == "contract" else f"{role}.yaml"
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
