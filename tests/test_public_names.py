"""The public names are loaded when used, a command loads what it needs, and the reference is up to date."""

import ast
import importlib.util
import json
import subprocess
import sys
import threading
from pathlib import Path

import polars as pl
import pytest
import torch
from tiny import PATIENCE_S

import tallystick

DOCS = Path(__file__).parent.parent / "docs"
HEAVY = {"torch", "scipy", "polars", "pyarrow", "numpy", "pandas", "sklearn", "duckdb", "opendp"}

# --- what is loaded


def loaded_after(script, folder):
    """Return the heavy libraries that a fresh interpreter has loaded after a script."""
    listed = f"\nimport json, sys\nprint(json.dumps(sorted({HEAVY!r} & set(sys.modules))))"
    done = subprocess.run([sys.executable, "-c", script + listed], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


COMMAND = """
import sys
from tallystick.cli.app import app
for arguments in {calls}:
    try:
        app(arguments)
    except SystemExit as end:
        assert end.code in (None, {code}), (arguments, end.code)
"""
HELP = """
from typer.main import get_command
from typer.testing import CliRunner
from tallystick.cli.app import app

commands = get_command(app).commands
assert len(commands) > 12
for name, command in commands.items():
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert command.help.split()[0] in shown.stdout
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("import tallystick; dir(tallystick); tallystick.ConfigError", id="import tallystick"),
        pytest.param(COMMAND.format(calls=[["--help"]], code=0), id="--help"),
        pytest.param(COMMAND.format(calls=[["--version"]], code=0), id="--version"),
        pytest.param(COMMAND.format(calls=[["brun"], ["run", "--prty", "x"]], code=2), id="misspelt"),
        pytest.param(COMMAND.format(calls=[["cert", "certificates", "bank", "shop"]], code=0), id="cert"),
        pytest.param(COMMAND.format(calls=[["init", "new", "--role", "feature"]], code=0), id="init"),
        pytest.param(HELP, id="every command's --help"),
    ],
)
def test_what_computes_nothing_loads_no_library_that_computes(tmp_path, script):
    assert loaded_after(script, tmp_path) == []


TRAINING = """
import sys, torch, tallystick, tallystick.job.process
from torch import nn
from tallystick.config.sections import SynchronousTraining
from tallystick.training.step import take_back
from tallystick.training.updates import Updates

tallystick.DEFENSES
network = nn.Linear(2, 1)
updates = Updates(SynchronousTraining().resolved(1000), network, steps=1)
take_back(network(torch.ones(3, 2)), torch.ones(3, 1))
updates.step(1)
updates.zero_grad()
assert not {"scipy.stats", "torch._dynamo", "sympy"} & set(sys.modules)
"""


@pytest.mark.long
def test_a_party_trains_without_the_slowest_parts_of_scipy_and_torch_and_the_list_of_libraries_catches_the_others(tmp_path):
    # scipy.stats takes a party's process 24 MiB and some time, for quantiles that scipy.special has, and ranks that polars has.
    # PyTorch's compiler takes a second, for optimizers that do without it, and its algebra a third of one, for gradients that do.
    assert {"numpy", "polars", "torch"} <= set(loaded_after(TRAINING, tmp_path))


def test_a_misspelt_command_is_answered_with_the_nearest(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tallystick", "predct"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 2
    assert "predict" in done.stderr


# --- the names


def test_every_public_name_is_where_types_say_it_is():
    (typed,) = (
        node
        for node in ast.parse(Path(tallystick.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    homes = {alias.name: imported.module for imported in typed.body for alias in imported.names}
    assert homes == dict(tallystick._HOME)
    errors = {name for name, value in vars(tallystick.errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert {*homes, *errors, "__version__"} == set(tallystick.__all__)
    for name in tallystick.__all__:
        assert getattr(tallystick, name) is not None
        assert name in dir(tallystick)
    for name in ("simulate", "run", "predict"):  # no module of the package shadows a function's name
        assert callable(getattr(tallystick, name))


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        tallystick.simulat  # noqa: B018


def test_the_reference_is_what_the_docstrings_say():
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    page = made.reference()
    assert (DOCS / "reference" / "python-names.md").read_text(encoding="utf-8") == page, "run `make reference`"
    errors = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    for name in tallystick.__all__:
        assert f"`{name}`" in page + errors or name == "__version__"
    assert not [line for line in page.splitlines() if line.endswith(": ") or "Create a function object" in line]


# --- a name means one thing

ROOT = DOCS.parent
PACKAGES = [
    ROOT / part / "src" / name
    for part, name in (("experiments", "tallystick_experiments"), ("robustness", "tallystick_robustness"))
]


def public_names():
    """Return where each public class and function of the three packages is defined."""
    where: dict[str, set[str]] = {}
    for package in (Path(tallystick.__file__).parent, *PACKAGES):
        for path in sorted(package.rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                is_named = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                if is_named and not node.name.startswith("_") and node.name != "main":  # Python's name for where a process begins
                    where.setdefault(node.name, set()).add(str(path.relative_to(package.parent)))
    return where


def test_no_public_name_stands_twice_with_two_meanings():
    names = public_names()
    assert {"ExperimentResult", "Campaign", "Result"} <= set(names), "a package was not read"
    twice = {name: files for name, files in names.items() if len(files) > 1}
    assert twice == {}, "rename one of them"


# --- run and predict


def both(job, work):
    """Do a party's work for both at the same time, in threads of one process that meet over TLS. Return what each returned."""
    found = {}

    def one(party):
        found[party] = work(party)

    threads = [threading.Thread(target=one, args=(party,)) for party in job.parties]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return found


@pytest.fixture
def own_threads():
    """PyTorch's threads belong to the process: two parties that are threads of it restore each other's."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("own_threads")
def test_run_and_predict_are_the_commands_in_python(lay_out_job):
    job = lay_out_job(rows=200, training__epochs=5)
    results = both(job, lambda party: tallystick.run(job.home(party) / "contract.yaml", str(job.home(party) / "party.yaml")))
    assert isinstance(results["bank"], tallystick.Result)
    assert results["bank"].evaluation["joint"]["auc"]["value"] > 0.5
    assert results["shop"].evaluation is None
    contract, scores = tallystick.load_contract(job.home("bank") / "contract.yaml"), job.root / "scores.csv"
    told = both(
        job,
        lambda party: tallystick.predict(
            contract,
            tallystick.load_party(job.home(party) / "party.yaml"),
            table=str(job.home(party) / "table.parquet"),
            output=str(scores) if party == "bank" else None,
        ),
    )
    assert pl.read_csv(scores).height == told["bank"]["rows"] > 100


def test_run_says_what_is_wrong_with_a_file(tmp_path):
    with pytest.raises(tallystick.ConfigError, match="cannot be read"):
        tallystick.run(tmp_path / "contract.yaml", tmp_path / "party.yaml")
