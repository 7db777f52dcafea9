"""The command line: JSON as the last line, one line per error, exit codes, templates that load."""

import json
import re
import subprocess
import sys

import polars as pl
import pytest
from typer.testing import CliRunner

from tallystick import __version__
from tallystick.alignment.linkages import LINKAGES
from tallystick.check import check_party_file
from tallystick.cli import setup
from tallystick.cli.app import app
from tallystick.cli.output import finish
from tallystick.config.contract import load_contract
from tallystick.config.party import load_party
from tallystick.config.party_checks import check_party, dialled
from tallystick.network.addresses import free_port
from tallystick.network.certificates import load_identity
from tallystick.privacy.ledger import Ledger


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def commands():
    from typer.main import get_command

    found = get_command(app)
    for name, command in found.commands.items():
        if name != "bench":  # another package's, which experiments/tests/test_app.py asks
            yield pytest.param(command, id=name)


@pytest.mark.parametrize("command", list(commands()))
def test_every_command_has_json_and_help(command):
    assert any("--json" in parameter.opts for parameter in command.params)
    assert command.help


@pytest.mark.parametrize("role", ["label", "feature"])
def test_init_writes_files_that_load(tmp_path, role):
    done = call("init", tmp_path / "new", "--role", role, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout.splitlines()[-1])
    contract, party = load_contract(found["contract"]), load_party(found["party"])
    check_party(contract, party)
    assert contract.role_of(party.party) == role
    again = call("init", tmp_path / "new", "--role", role, "--json")
    assert again.exit_code == 2
    assert json.loads(again.stdout.splitlines()[-1])["error"]["type"] == "ConfigError"
    assert again.stderr.startswith("error: ")
    assert again.stderr.count("\n") == 1


def init_for(folder, role, method, *more):
    done = call("init", folder, "--role", role, "--method", method, "--json", *more)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return load_contract(found["contract"]), load_party(found["party"])


def test_init_writes_a_contract_that_sends_no_gradient_if_asked(tmp_path):
    contracts = [init_for(tmp_path / role, role, "intersection", "--gradients", "none")[0] for role in ("label", "feature")]
    assert [contract.training.gradients for contract in contracts] == ["none", "none"]
    assert contracts[0].hash == contracts[1].hash


def test_init_writes_what_trains_a_head_on_shares_if_asked(tmp_path):
    contracts = []
    for role in ("label", "feature", "helper"):
        contract, party = init_for(tmp_path / role, role, "intersection", "--gradients", "shared")
        check_party(contract, party)
        assert contract.helper == "helper"
        assert set(party.peers) == set(dialled(contract, party.party))
        text = (tmp_path / role / "contract.yaml").read_text()
        assert text.startswith("# Labels are an input: the label party chooses them")
        contracts.append(contract)
    assert {contract.hash for contract in contracts} == {contracts[0].hash}
    assert contracts[0].shares_head


@pytest.mark.parametrize("names", ["clinic,lab", "1,null", "clinic,lab,helper"])
@pytest.mark.parametrize("method", list(LINKAGES))
def test_init_writes_what_fits_the_parties_and_the_method_that_were_asked_for(tmp_path, method, names):
    """All that `check` reports missing are certificates and tables, whichever side's contract all take."""
    label, feature, *helper = names.split(",")
    if helper and not LINKAGES[method].helper:
        assert (
            "--parties: helper: --method"
            in call("init", tmp_path, "--role", "label", "--method", method, "--parties", names).stderr
        )
        return
    roles = {label: "label", feature: "feature", **({"helper": "helper"} if LINKAGES[method].helper else {})}
    files = {role: init_for(tmp_path / role, role, method, "--parties", names) for role in roles.values()}
    contracts = [contract for contract, _ in files.values()]
    assert {name: member.role for name, member in contracts[0].parties.items()} == roles
    assert {contract.hash for contract in contracts} == {contracts[0].hash}
    assert contracts[0].alignment.method == method
    listening = {party.party: party.listen.rpartition(":")[2] for _, party in files.values() if party.listen is not None}
    assert len(set(listening.values())) == len(listening) == len(roles) - 1
    for role, (contract, party) in files.items():
        check_party(contract, party)
        assert roles[party.party] == role
        assert {name: peer.address.rpartition(":")[2] for name, peer in party.peers.items()} == {
            name: listening[name] for name in dialled(contract, party.party)
        }
        path = tmp_path / role / "party.yaml"
        path.write_text(re.sub(r"0\.0\.0\.0:\d+", f"127.0.0.1:{free_port()}", path.read_text()))
        problems = check_party_file(path, tmp_path / "label" / "contract.yaml")["problems"]
        assert [line for line in problems if "ca.pem: No such file" not in line and ".parquet" not in line] == []
        assert len(problems) == (1 if role == "helper" else 2)


@pytest.mark.parametrize(
    ("header", "method", "found"),
    [
        ({"Customer_ID": ["a", "b"], "age": [1, 2], "churn": ["no", "yes"]}, "intersection", ("Customer_ID", "churn", "binary")),
        ({"k: id": [1, 2, 3], "y": [0, 1, 2]}, "intersection", ("k: id", "y", "multiclass")),
        ({"id": [1, 2, 3], "target": [0.5, 1.5, 2.5]}, "intersection", ("id", "target", "regression")),
        (
            {"id": [1, 2], "order_id": [1, 2], "y": [0, 1], "label": [0, 1]},
            "intersection",
            ("customer_id", "defaulted", "binary"),
        ),
        ({"a": [1, 2], "b": [1, 2]}, "intersection", ("customer_id", "defaulted", "binary")),
        ({"company": ["x", "z"], "id": [1, 2], "$y": [0, 1], "y": [0, 1]}, "similarity", ("company", "y", "binary")),
        ({"Kundennummer": [1, 2], "y": [0, 1]}, "intersection", ("Kundennummer", "y", "binary")),
        ({"member_no": [1, 2], "casino": [1, 2], "y": [0, 1]}, "intersection", ("member_no", "y", "binary")),
        ({"Mitgliedsnummer": [1, 2], "y": [0, 1]}, "intersection", ("Mitgliedsnummer", "y", "binary")),
        ({"codice_cliente": [1, 2], "y": [0, 1]}, "intersection", ("codice_cliente", "y", "binary")),
    ],
    ids=["plain", "odd characters", "regression", "two of each", "none", "similarity", "German", "member", "Mitglied", "cliente"],
)
def test_init_takes_key_and_label_from_the_header_where_they_are_plain(tmp_path, header, method, found):
    pl.DataFrame(header).write_csv(tmp_path / "rows.csv")
    contract, party = init_for(tmp_path / "new", "label", method, "--table", str(tmp_path / "rows.csv"))
    assert party.table.path == tmp_path / "rows.csv"
    assert ((*party.keys.values(),), party.label, contract.target.type) == ((found[0],), *found[1:])
    text = (tmp_path / "new" / "party.yaml").read_text()
    assert text.count("does not make plain which it is") == (2 if found[0] == "customer_id" else 0)
    assert contract.target.classes == (3 if contract.target.type == "multiclass" else 2)


def test_init_shows_the_key_as_the_text_that_a_run_reads(tmp_path):
    (tmp_path / "rows.csv").write_text("customer,postcode\n00123,01067\n00456,01069\n")
    done = call("init", tmp_path / "new", "--role", "feature", "--table", tmp_path / "rows.csv", "--json")
    columns = json.loads(done.stdout.splitlines()[-1])["columns"]
    assert "customer: String, such as 00123, 00456" in columns
    assert [line for line in columns if "leading zero or plus sign" in line and "'postcode'" in line]
    assert not [line for line in columns if "'customer'" in line]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("label", "--parties", "bank"), "wants a label party and one or more feature parties"),
        (("label", "--parties", "bank,shop,post", "--method", "union"), "wants a label and one feature party"),
        (("label", "--parties", "bank,Shop"), '--parties: "Shop": must be 1 to 63'),
        (("label", "--parties", "bank,bank"), "bank is named twice"),
        (("label", "--parties", "helper,bank", "--method", "similarity"), "the label party comes first"),
        (("label", "--method", "join"), '--method "join": must be one of intersection'),
        (("helper", "--method", "union"), "--role helper: --method union has no helper"),
        (("helper", "--table", "t.csv"), "a helper sees no rows"),
        (("feature", "--parties", "bank,shop,post"), "--party: is missing; say whether this is shop or post"),
        (("feature", "--party", "bank"), '--party "bank": must be shop, whose role is feature'),
        (("feature", "--table", "nowhere.csv"), "nowhere.csv: there is no such file; check --table"),
        (("label", "--gradients", "few"), '--gradients "few": must be sent, none or shared'),
        (("label", "--gradients", "shared", "--method", "union"), "--gradients shared: links rows by --method intersection"),
        (("label", "--gradients", "none", "--method", "union"), "--gradients none: --method union draws stand-ins anew"),
    ],
)
def test_init_refuses_what_does_not_go_together_before_it_writes(tmp_path, arguments, says):
    done = call("init", tmp_path / "new", "--role", *arguments)
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_init_refuses_a_union_for_a_label_that_it_cannot_impute(tmp_path):
    pl.DataFrame({"id": [1, 2, 3], "y": [0, 1, 2]}).write_csv(tmp_path / "rows.csv")
    done = call("init", tmp_path / "new", "--role", "label", "--method", "union", "--table", tmp_path / "rows.csv")
    assert 'labels can be imputed for binary targets only, and column "y" has other values' in done.stderr
    assert not (tmp_path / "new").exists()


def test_init_for_one_of_several_feature_parties(tmp_path):
    contract, party = init_for(tmp_path, "feature", "similarity", "--parties", "bank,shop,post", "--party", "post")
    assert (party.party, set(contract.feature_parties), contract.helper) == ("post", {"shop", "post"}, "helper")


def test_the_defence_that_the_template_proposes_loads(tmp_path):
    call("init", tmp_path / "new", "--role", "label")
    text = (tmp_path / "new" / "contract.yaml").read_text()
    proposed = text.replace("defense: []\n# defense:\n", "defense:\n").replace("#   - {method", "  - {method")
    (tmp_path / "other.yaml").write_text(proposed)
    assert [entry.method for entry in load_contract(tmp_path / "other.yaml").defense] == ["label-dp"]
    party = load_party(tmp_path / "new" / "party.yaml")
    assert party.privacy.model_dump() == {
        "ledger": tmp_path / "new" / "privacy-ledger.sqlite",
        "identity": Ledger(tmp_path / "new" / "privacy-ledger.sqlite", party="bank").identity,
        "dataset": "labels",
        "cap": None,
        "scores_per_row": None,
        "delta": 0.0,
        "allow": (),
    }


def test_init_of_a_role_that_does_not_exist(tmp_path):
    done = call("init", tmp_path / "new", "--role", "wizard")
    assert done.exit_code == 2
    assert "--role wizard: must be label, feature or helper" in done.stderr


@pytest.mark.parametrize("role", ["label", "feature"])
def test_init_names_the_table_from_the_files_folder_and_keeps_comments_under_each_other(tmp_path, monkeypatch, role):
    monkeypatch.chdir(tmp_path)
    pl.DataFrame({"a_key_with_a_long_name_indeed": ["7"], "customer_id": ["8"], "y": [1]}).write_csv("rows.csv")
    done = call("init", "homes/bank", "--role", role, "--table", "rows.csv")
    assert done.exit_code == 0, done.stderr
    text = (tmp_path / "homes" / "bank" / "party.yaml").read_text()
    assert load_party(tmp_path / "homes" / "bank" / "party.yaml").table.path.resolve() == tmp_path / "rows.csv"
    assert str(tmp_path) not in text
    assert "# repeats: {latest: " in text
    behind = [found for line in text.splitlines() if (found := re.fullmatch(r"(.*\S) {2,}(# .*)", line))]
    assert len(behind) > 10
    assert {found.start(2) for found in behind if len(found[1]) < 35} == {36}


def test_people_are_shown_no_null_and_no_json(capsys):
    found = {"scores": "s.csv", "rows": 3, "unscored": {}, "scored_by": {"joint model": 2, "own columns": 1}, "files": ["a", "b"]}
    finish({**found, "report": None}, as_json=False)
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines()] == [
        *(["scores", "s.csv"], ["rows", "3"], ["scored_by", "joint", "model", "2,", "own", "columns", "1"]),
        *(["files", "a"], ["b"]),
    ]
    finish({**found, "report": None}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {**found, "report": None}


def test_cert_writes_what_a_party_needs(tmp_path):
    done = call("cert", tmp_path / "pem", "bank", "shop", "--json")
    assert done.exit_code == 0
    names = {path.name for path in (tmp_path / "pem").iterdir()}
    assert names == {"ca.pem", "ca.key", "bank.pem", "bank.key", "shop.pem", "shop.key"}
    for key in ("bank.key", "ca.key"):
        assert (tmp_path / "pem" / key).stat().st_mode & 0o077 == 0
    assert call("cert", tmp_path / "pem", "bank").exit_code == 2


def test_a_party_that_joins_later_gets_a_certificate_of_the_same_ca(tmp_path):
    pem = tmp_path / "pem"
    assert call("cert", pem, "bank", "--days", "5").exit_code == 0
    before = {path.name: path.read_bytes() for path in pem.iterdir()}
    assert call("cert", pem, "shop", "--days", "30").exit_code == 0
    assert {name: (pem / name).read_bytes() for name in before} == before
    bank, shop = (
        load_identity(name, ca=pem / "ca.pem", certificate=pem / f"{name}.pem", key=pem / f"{name}.key")
        for name in ("bank", "shop")
    )
    assert shop.expires == bank.expires  # no later than the CA's own end
    (pem / "ca.key").unlink()
    done = call("cert", pem, "post")
    assert done.exit_code == 2
    assert "ca.pem: cannot issue another certificate: its key, ca.key, is not there" in done.stderr
    assert not (pem / "post.pem").exists()
    assert "ca.pem and ca.key are the CA's own files" in call("cert", tmp_path / "other", "ca").stderr


@pytest.mark.parametrize(
    ("names", "says"),
    [(("bank", "bank"), "is named twice"), (("Bank", "shop"), '"Bank": must be'), (("../bank", "shop"), "must be")],
)
def test_cert_refuses_names_that_no_contract_takes_before_it_writes(tmp_path, names, says):
    done = call("cert", tmp_path / "pem", *names)
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "pem").exists()


def test_version():
    done = call("--version")
    assert done.exit_code == 0
    assert done.stdout == f"tallystick {__version__}\n"


def test_check_finds_nothing_wrong_and_then_something(lay_out_job):
    job = lay_out_job()
    arguments = (job.home("bank") / "party.yaml", job.home("bank") / "contract.yaml", "--json")
    done = call("check", *arguments)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["problems"] == []
    assert found["profile"]
    assert found["defenses"] == ["none; no formal guarantee"]
    job.change("bank", label="z", tls={"ca": "ca.pem", "certificate": "own.pem", "key": "ca.pem"})
    done = call("check", *arguments)
    assert done.exit_code == 2
    (line,) = done.stdout.splitlines()
    problems = " ".join(json.loads(line)["problems"])
    assert done.stderr.startswith("error: 2 problem(s): ")
    assert "'z' is not in the table" in problems
    assert "tls.key" in problems


def test_check_of_a_peer_that_does_not_answer_is_told_not_fatal(lay_out_job):
    job = lay_out_job()
    done = call("check", job.home("shop") / "party.yaml", job.home("shop") / "contract.yaml", "--json")
    assert done.exit_code == 0, done.stderr
    (said,) = json.loads(done.stdout.splitlines()[-1])["peers"]
    assert "Connection refused" in said
    assert said.endswith(" (fine if bank is not up yet)")


@pytest.mark.parametrize("command", ["run", "align", "train", "evaluate", "predict"])
def test_a_missing_file_is_one_line_and_exit_code_2(tmp_path, command):
    done = call(command, tmp_path / "no.yaml", "--party", tmp_path / "no.yaml", "--json")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert json.loads(done.stdout.splitlines()[-1])["error"]["type"] == "ConfigError"


def test_check_names_what_the_contract_discloses_and_a_group_column_that_is_absent(lay_out_job):
    shared = {"share_metrics": ["auc"], "importance": {"feature_columns": "both"}}
    job = lay_out_job(rows=60, evaluation=shared)
    arguments = (job.home("bank") / "party.yaml", job.home("bank") / "contract.yaml")
    shown = call("check", *arguments)
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.output.split())
    assert "discloses: bank sends shop the exact auc of the test rows" in text
    assert "exact figures of the validation labels" in text
    job.change("bank", report={"subgroups": ["knd"]})
    found = call("check", *arguments, "--json")
    assert found.exit_code == 2
    assert "'knd'" in json.loads(found.stdout.splitlines()[-1])["problems"][0]


def test_check_shows_people_the_profile(lay_out_job):
    job = lay_out_job(rows=60)
    home = job.home("bank")
    shown = CliRunner().invoke(app, ["check", str(home / "party.yaml"), str(home / "contract.yaml")])
    assert shown.exit_code == 0, shown.output
    assert "no problems" in shown.output
    assert "positive class: 1; a score is its probability" in shown.output
    assert "{}" not in shown.output  # a count that this table does not have has no place
    assert "noise" in shown.output  # a column of the table
    (heading,) = (line.split() for line in shown.output.splitlines() if "missing" in line and "distinct" in line)
    assert heading[-2:] == ["min", "max"]  # 80 columns wide
    assert "defence: none; no formal guarantee" in shown.output
    assert "alignment: intersection; a peer that does not follow the protocol can test ids" in " ".join(shown.output.split())


def test_check_at_80_columns_gives_bounds_a_place_where_names_are_long(lay_out_job, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    job = lay_out_job(rows=60)
    path = job.home("shop") / "table.parquet"
    pl.read_parquet(path).select("id", average_balance_of_12_months=(1 + pl.int_range(pl.len())) / 3).write_parquet(path)
    job.change("shop", features=None)
    arguments = ["check", str(job.home("shop") / "party.yaml"), str(job.home("shop") / "contract.yaml")]
    lines = CliRunner().invoke(app, arguments).stdout.splitlines()
    (heading,) = (line.split() for line in lines if line.split()[:2] == ["column", "use"])
    assert heading[-1] == "distinct"
    (samples,) = (line for line in lines if line.startswith("average_balance_of_12_months: such as "))
    assert samples.endswith("; from 0.333333 to 19.0")


def test_check_at_80_columns_cuts_no_name_and_keeps_problems_under_their_heading(lay_out_job, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    job = lay_out_job(rows=60)
    long = {"x": "average_balance_of_the_last_12", "noise": "n" * 70, "kind": "[bold]kind"}
    path = job.home("shop") / "table.parquet"
    pl.read_parquet(path).rename(long).write_parquet(path)
    job.change("shop", features=None)
    arguments = ["check", str(job.home("shop") / "party.yaml"), str(job.home("shop") / "contract.yaml")]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    table = lines[next(index for index, line in enumerate(lines) if line.split()[:2] == ["column", "use"]) :]
    table = table[: next(index for index, line in enumerate(table) if line.startswith("keys"))]
    assert [line for line in table if len(line) > 80 and ": such as " not in line] == []
    cells = [line[:31].strip() for line in table]
    assert "average_balance_of_the_last_12" in cells
    assert "[bold]kind" in cells
    assert "n" * 70 in "".join(cells)
    job.change("shop", features={"numeric": ["no_such_column"]})
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 2
    heading, *problems = shown.stdout.splitlines()[-2:]
    assert heading == "problems"
    assert "no_such_column" in problems[0]
    assert shown.stderr == ""


def test_check_keeps_the_head_of_a_table_whose_columns_have_short_names(lay_out_job):
    job = lay_out_job(rows=60)
    path = job.home("shop") / "table.parquet"
    frame = pl.read_parquet(path)
    frame.rename({name: f"c{place}" for place, name in enumerate(frame.columns) if name != "id"}).write_parquet(path)
    job.change("shop", features=None)
    shown = CliRunner().invoke(app, ["check", str(job.home("shop") / "party.yaml"), str(job.home("shop") / "contract.yaml")])
    assert ["column", "use"] in [line.split()[:2] for line in shown.stdout.splitlines()]


def test_check_says_each_doubt_once_and_in_words(lay_out_job):
    """A line about the encoding that is a warning, too, appears once. A key with fractions has only a sentence."""
    job = lay_out_job(rows=60)
    home = job.home("bank")
    path = home / "table.parquet"
    frame = pl.read_parquet(path)
    weeks = pl.Series("since", [f"2024-W{row % 50 + 1:02}" for row in range(frame.height)])
    frame.with_columns(weeks, id=pl.int_range(pl.len()) + 0.5).write_parquet(path)
    job.change("bank", features=None)
    shown = CliRunner().invoke(app, ["check", str(home / "party.yaml"), str(home / "contract.yaml")])
    words = " ".join(shown.stdout.split())
    assert words.count("look like dates or times") == 1
    assert words.count("a fraction or an exponent in ") == 1
    assert "doubtful" not in words


def test_check_shows_people_the_first_of_very_many_columns_and_the_keys(lay_out_job, monkeypatch):
    """20,000 took six minutes to draw, and nobody reads them."""
    monkeypatch.setattr(setup, "MOST_COLUMNS", 3)
    home = lay_out_job(rows=60).home("bank")
    path = home / "table.parquet"
    pl.read_parquet(path).select("x", "noise", "kind", "weight", "id", "y").write_parquet(path)
    arguments = [str(home / "party.yaml"), str(home / "contract.yaml")]
    shown = CliRunner().invoke(app, ["check", *arguments])
    assert shown.exit_code == 0, shown.output
    first = [line.split()[0] for line in shown.stdout.splitlines() if "%" in line and not line.startswith("keys:")]
    assert first == ["x", "id", "y"]
    assert "and 3 more columns; --json lists all" in shown.stdout
    listed = json.loads(call("check", *arguments, "--json").stdout.splitlines()[-1])["profile"]["columns"]
    assert [column["name"] for column in listed] == ["x", "noise", "kind", "weight", "id", "y"]


def test_check_says_what_auto_comes_to_by_the_rows_for_training(lay_out_job):
    job = lay_out_job(rows=1500, model__numeric="auto", training__epochs="auto")
    arguments = [job.home("shop") / "party.yaml", job.home("shop") / "contract.yaml"]
    told = " ".join(json.loads(call("check", *arguments, "--json").stdout.splitlines()[-1])["encoding"])
    # 1,425 own rows, of which seven tenths are for training.
    assert "2 numeric columns get piecewise-linear embeddings of 128 bins, by the 1,0" in told
    assert "training.epochs = auto: 60, by 1,0" in told
    assert "training.batch_size" not in told  # the contract says it
    assert "rows that all parties have, and may then choose otherwise" in told
    assert "model.numeric = auto" in call("check", *arguments).stdout


@pytest.mark.parametrize("command", ["check", "run"])
def test_arguments_the_wrong_way_round_are_named_in_one_line(lay_out_job, command):
    home = lay_out_job(rows=50).home("bank")
    party, contract = home / "party.yaml", home / "contract.yaml"
    done = call("check", contract, party) if command == "check" else call("run", party, "--party", contract)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    due = {
        "check": "error: contract.yaml: is a contract (it has the key parties, and not party); give a party file",
        "run": "error: party.yaml: is a party file (it has the key party, and not parties); give a contract",
    }
    assert line == due[command]


def test_a_party_file_given_as_the_contract_is_one_problem(lay_out_job):
    home = lay_out_job(rows=50).home("bank")
    done = call("check", home / "party.yaml", home / "party.yaml", "--json")
    assert done.exit_code == 2
    problems = json.loads(done.stdout.splitlines()[-1])["problems"]
    assert problems == ["party.yaml: is a party file (it has the key party, and not parties); give a contract"]


@pytest.mark.parametrize("spoil", ["damaged", "gone"])
def test_a_ledger_that_cannot_be_used_is_bad_input_for_ledger_as_for_check(lay_out_job, spoil):
    job = lay_out_job(rows=50)
    home = job.home("bank")
    party = load_party(home / "party.yaml")
    if not party.privacy.ledger.exists():
        assert call("ledger", home / "party.yaml", "--create").exit_code == 0
    if spoil == "gone":
        job.change("bank", privacy={"identity": Ledger(party.privacy.ledger, party="bank").identity})
        party.privacy.ledger.unlink()
    else:
        party.privacy.ledger.write_bytes(b"not a ledger")
    checked = call("check", home / "party.yaml", home / "contract.yaml", "--json")
    shown = call("ledger", home / "party.yaml")
    assert (checked.exit_code, shown.exit_code) == (2, 2)
    (line,) = shown.stderr.splitlines()
    assert line.removeprefix("error: ") in json.loads(checked.stdout.splitlines()[-1])["problems"]


@pytest.mark.long
def test_a_query_of_duckdb_writes_nothing_to_standard_error(tmp_path):
    """Its binding reports at the end of a process what was not collected."""
    query = "SELECT 'k' || i AS id, i AS x FROM range(9) t(i)"
    (tmp_path / "party.yaml").write_text(f'party: a\ntable: {{query: "{query}"}}\nkeys: {{id: id}}\n')
    command = [sys.executable, "-m", "tallystick", "check", str(tmp_path / "party.yaml")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "no problems" in ended.stdout
