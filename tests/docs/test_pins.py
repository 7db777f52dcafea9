"""The installed packages are the tested ones: one version and its files' hashes for each."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def pins(name):
    """Return (requirement, hashes) of each package of a file of pins."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    entries = re.split(r"\n(?=\S)", "\n".join(lines).replace(" \\\n", "\n"))
    entries = [entry.partition("\n") for entry in entries]
    return [(Requirement(head), re.findall(r"--hash=sha256:([0-9a-f]{64})$", rest, re.MULTILINE)) for head, _, rest in entries]


@pytest.mark.parametrize(
    "name",
    [f"requirements{part}.txt" for part in ("", "-base", "-image", "-cuda", "-cpu", "-tools", "-docs")],
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


@pytest.mark.parametrize(("name", "extras"), [("base", []), ("image", ["delta", "postgres", "redis", "serve"])])
def test_the_image_and_a_wheel_alone_get_what_is_tested(name, extras):
    """All that they need, from the same files, and nothing of the tests."""
    all_pins = {str(requirement): hashes for requirement, hashes in pins("requirements.txt")}
    part = {str(requirement): hashes for requirement, hashes in pins(f"requirements-{name}.txt")}
    assert part.items() <= all_pins.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [*project["dependencies"], *(need for extra in extras for need in project["optional-dependencies"][extra])]
    held = {canonicalize_name(Requirement(pin).name) for pin in part}
    assert {canonicalize_name(Requirement(need).name) for need in needs} - held == {"torch"}
    assert "setuptools" in held, "what the image builds the wheel with"
    assert not held & {"pytest", "mypy", "ray"}


def test_nothing_is_installed_without_hashes():
    """Each call of pip names hashes, or takes only our own files."""
    said = ""
    for name in ("Makefile", "deploy/Containerfile", "docs/howto/deploy.md"):
        said += (ROOT / name).read_text().replace("\\\n", " ") + "\n"
    assert re.search(r"^HASHED := .*--require-hashes", said, re.MULTILINE)
    calls = [part for part in re.split(r"&&|\|\||\n", said) if re.search(r"(\bpip\b|\(PIP\)).* (install|\$\(HASHED\)) ", part)]
    assert len(calls) >= 8
    for call in calls:
        own = "--no-deps" in call and ("--no-index" in call or "--editable ." in call)
        assert "--require-hashes" in call or "$(HASHED)" in call or own, call


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
