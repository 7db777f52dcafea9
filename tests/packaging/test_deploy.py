"""The files under deploy/ fit the rest: files that they copy, extras, commands and options exist. No image is built here."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
import yaml

from tallystick.cli.app import app

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
UNITS = sorted((DEPLOY / "systemd").iterdir())
INSTRUCTIONS = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"}


def is_a_command(words):
    """Fail unless our parser accepts a command line: the command, and each of its options."""
    group = typer.main.get_command(app)
    name, command, rest = group.resolve_command(group.make_context("tallystick", list(words), resilient_parsing=True), words)
    assert command.make_context(name, rest), words


def instructions(name):
    """Return (instruction, the rest of its line) of a container file, without comments and with continued lines joined."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / name).read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], " ".join(line.split()[1:])) for line in text.splitlines() if line.strip()]


def test_the_image_is_made_of_what_is_there():
    lines = instructions("Containerfile")
    assert {kind for kind, _ in lines} <= INSTRUCTIONS
    names = {rest.split("=")[0] for kind, rest in lines if kind == "ARG"}
    used = set(re.findall(r"\$\{(\w+)", " ".join(rest for _, rest in lines)))
    assert used <= names, "an argument that is used is declared"
    copied = [rest.split() for kind, rest in lines if kind == "COPY" and not rest.startswith("--from")]
    for *sources, _ in copied:
        for source in sources:
            assert (ROOT / source).exists(), source
    wanted = {"pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "src"}  # what a build reads
    assert wanted <= {source for sources in copied for source in sources}


def test_the_image_runs_our_command_as_nobody():
    lines = dict(instructions("Containerfile"))
    assert lines["ENTRYPOINT"] == '["tallystick"]'
    assert "tallystick" in PROJECT["scripts"]
    assert lines["USER"].split(":")[0].isdigit()
    assert int(lines["USER"].split(":")[0]) > 0


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.suffix == ".service"], ids=lambda unit: unit.name)
def test_a_unit_runs_a_command_of_ours(unit):
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    program, *words = shlex.split(line)
    assert Path(program).name in PROJECT["scripts"]
    is_a_command(words)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(tmp_path):
    program = Path(sys.executable).with_name("tallystick")
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/tallystick/bin/tallystick", str(program)))
    instances = [tmp_path / unit.name.replace("@", "@job") for unit in UNITS]
    for unit, instance in zip(UNITS, instances, strict=True):
        instance.symlink_to(tmp_path / unit.name)
    said = subprocess.run(["systemd-analyze", "verify", *instances], capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")
    services = [instance for instance in instances if instance.suffix == ".service"]
    for service in services:  # 0 is a service without rights, 10 one with all
        secure = ["systemd-analyze", "security", "--offline=yes", "--threshold=30", "--no-pager", service]
        assert subprocess.run(secure, capture_output=True, text=True).returncode == 0, service.name


def test_the_parties_of_the_compose_file_run_commands_of_ours():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    parties = {name: service for name, service in services.items() if service["image"] == "tallystick"}
    assert len(parties) == 2
    (built,) = [service["build"] for service in services.values() if "build" in service]
    assert (DEPLOY / built["context"] / built["dockerfile"]).resolve() == DEPLOY / "Containerfile"
    for service in parties.values():
        is_a_command(service["command"])
        assert service["volumes"][0].endswith(f":{dict(instructions('Containerfile'))['WORKDIR']}")


def test_prometheus_asks_a_service_for_what_it_offers():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    (scrape,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    (target,) = scrape["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert f"{port}:{port}" in services[host]["ports"]
    assert set(services[host]["networks"]) & set(services["prometheus"]["networks"])
    offered = (ROOT / "src/tallystick/serving/http.py").read_text()
    assert f'("{scrape["metrics_path"]}", scores.metrics, "GET")' in offered
    mounted = {volume.split(":")[1] for volume in services["prometheus"]["volumes"]}
    named = {scrape["tls_config"]["ca_file"], scrape["authorization"]["credentials_file"], "/etc/prometheus/prometheus.yml"}
    assert named <= mounted
