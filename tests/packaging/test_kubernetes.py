"""Kubernetes accepts the files under deploy/kubernetes; they run commands of ours, and have no right that is not needed."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_deploy import is_a_command

from tallystick.config.contract import load_contract
from tallystick.config.party import load_party
from tallystick.config.party_checks import check_party

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
EXAMPLE = KUBERNETES / "example"
FILES = sorted(path for path in KUBERNETES.rglob("*.yaml") if path.parent != EXAMPLE and path.name not in {"kustomization.yaml"})
OLDEST, NEWEST = "1.28", "1.36"


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


def pods() -> dict[str, dict[str, Any]]:
    """Return the pods that are made, by what makes them."""
    made = {}
    for path in FILES:
        for document in documents(path):
            if document["kind"] == "CronJob":
                made[document["metadata"]["name"]] = document["spec"]["jobTemplate"]["spec"]["template"]
            elif document["kind"] == "Deployment" and path.name != "probes.yaml":
                made[document["metadata"]["name"]] = document["spec"]["template"]
    return made


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("path", [path for path in FILES if path.name != "probes.yaml"], ids=lambda path: path.stem)
def test_each_object_fits_kubernetes_schema_without_an_unknown_field(path: Path, version: str) -> None:
    from kubernetes_validate import validate

    for document in documents(path):
        validate(document, version, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_example_comes_together_and_fits_the_schema() -> None:
    from kubernetes_validate import validate

    built = subprocess.run(["kubectl", "kustomize", EXAMPLE], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    objects = list(yaml.safe_load_all(built.stdout))
    for each in objects:
        validate(each, NEWEST, strict=True)
    assert {each["metadata"]["namespace"] for each in objects} == {"tallystick"}
    (policy,) = [each for each in objects if each["kind"] == "NetworkPolicy" and each["metadata"]["name"] == "tallystick"]
    assert "192.0.2." not in str(policy), "the stand-in for the partner's addresses is replaced"
    (serving,) = [each for each in objects if each["kind"] == "Deployment"]
    (container,) = serving["spec"]["template"]["spec"]["containers"]
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)


def test_the_example_is_a_contract_and_a_party_file_of_ours() -> None:
    contract, party = load_contract(EXAMPLE / "contract.yaml"), load_party(EXAMPLE / "party.yaml")
    check_party(contract, party)
    assert party.listen == "0.0.0.0:7443"
    mounts = {mount["mountPath"] for pod in pods().values() for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    assert {"/config", "/job", "/secrets", "/tmp"} == mounts
    assert all(str(path).startswith("/job/") for path in (party.runs, party.privacy.ledger))


def test_probes_ask_for_what_is_offered() -> None:
    (probes,) = documents(KUBERNETES / "scores" / "probes.yaml")
    offered = (Path(__file__).parents[2] / "src/tallystick/serving/http.py").read_text()
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = probes["spec"]["template"]["spec"]["containers"][0][name]["httpGet"]
        assert f'("{asked["path"]}", scores.' in offered
        assert asked["port"] == "scores"


@pytest.mark.parametrize("name", ["tallystick-run", "tallystick-serve"])
def test_a_pod_runs_our_command_as_nobody_and_without_rights(name: str) -> None:
    pod = pods()[name]["spec"]
    (container,) = pod["containers"]
    is_a_command(container["args"])
    assert not pod["automountServiceAccountToken"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    rights = container["securityContext"]
    assert rights == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert not ({"hostNetwork", "hostPID", "hostIPC"} & set(pod))
    mounted = {volume["name"] for volume in pod["volumes"]}
    assert mounted == {mount["name"] for mount in container["volumeMounts"]}


def test_each_service_and_policy_selects_a_pod_that_is_made() -> None:
    labels = [pod["metadata"]["labels"] for pod in pods().values()]
    chosen = [document for path in FILES for document in documents(path) if document["kind"] in {"Service", "NetworkPolicy"}]
    assert len(chosen) == 5
    for each in chosen:
        selector = each["spec"].get("selector") or each["spec"]["podSelector"].get("matchLabels")
        if selector is not None:
            assert any(selector.items() <= those.items() for those in labels), each["metadata"]
        else:
            ((expression,),) = [each["spec"]["podSelector"]["matchExpressions"]]
            assert {those[expression["key"]] for those in labels} == set(expression["values"])
