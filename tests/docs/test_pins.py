"""What is installed is what was tested: one version and its files' hashes for each package."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def pins(name):
    """(requirement, hashes) of each package of a file of pins."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    entries = re.split(r"\n(?=\S)", "\n".join(lines).replace(" \\\n", "\n"))
    entries = [entry.partition("\n") for entry in entries]
    return [(Requirement(head), re.findall(r"--hash=sha256:([0-9a-f]{64})$", rest, re.MULTILINE)) for head, _, rest in entries]


@pytest.mark.parametrize(
    "name",
    ["requirements.txt", "requirements-cuda.txt", "requirements-cpu.txt", "requirements-tools.txt", "requirements-docs.txt"],
)
def test_every_package_has_one_version_and_the_hashes_of_its_files(name):
    found = pins(name)
    assert len({requirement.name for requirement, _ in found}) == len(found) > 0
    for requirement, hashes in found:
        assert [pin.operator for pin in requirement.specifier] == ["=="], requirement
        assert hashes, requirement


def test_the_constraints_are_what_is_installed_with_hashes():
    hashed = {str(requirement) for name in ("requirements.txt", "requirements-cuda.txt") for requirement, _ in pins(name)}
    assert {str(requirement) for requirement, _ in pins("constraints.txt")} == hashed
    ((cpu, _),) = pins("requirements-cpu.txt")
    assert str(cpu).removesuffix("+cpu") in hashed


def test_the_project_admits_its_pins_and_the_tests_run_with_them():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = {canonicalize_name(requirement.name): requirement for requirement, _ in pins("constraints.txt")}
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    wanted += [need for extra in project["project"]["optional-dependencies"].values() for need in extra]
    for need in map(Requirement, wanted):
        pin = pinned[canonicalize_name(need.name)]
        (exactly,) = pin.specifier
        assert need.specifier.contains(exactly.version), need
        assert version(need.name).partition("+")[0] == exactly.version, need
