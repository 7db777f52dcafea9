"""Encrypted run folders: the same results, nothing readable on the disk, and one line for each file that does not fit."""

import json
import re
import shutil

import polars as pl
import pytest
from test_chosen_runs import PARTIES, Watching, both
from tiny import OnDisk, contract_values, files_of, lay_out
from typer.testing import CliRunner

from tallystick import predict
from tallystick.cli.app import app
from tallystick.config.contract import load_contract
from tallystick.config.party import load_party
from tallystick.config.serving import AnswersConfig
from tallystick.encryption import MAGIC, FolderKey
from tallystick.errors import ConfigError, DamagedFile
from tallystick.export.half import half_of
from tallystick.job.process import run_process
from tallystick.job.promotion import Decision, count_decision
from tallystick.job.start_from import run_to_start_from
from tallystick.run_folder.answer_journal import AnsweredRow, AnswerLog, read_answers
from tallystick.run_folder.folder import RunFolder
from tallystick.storage import Origin, check_sealed, read_own, write_json

KEYS = {name: bytes([number] * 32).hex() for number, name in enumerate(PARTIES)}
PLAIN = {"origin.json", "contract.json", "format", "lock", "run.log"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Make a run of two parties, each with its own key in a file."""
    changes = {"audit": "quick", "training__epochs": 1, "evaluation__bootstrap": 0}
    job = lay_out(tmp_path_factory.mktemp("encrypted"), PARTIES, contract_values(PARTIES, **changes), rows=150)
    for name in PARTIES:
        (job.home(name) / "run.key").write_text(KEYS[name] + "\n")
        job.change(name, encryption={"key": {"file": "run.key"}})
    both(lambda name: run_process(*files_of(job, name), watcher=Watching()))
    return job


@pytest.fixture
def job(trained, tmp_path):
    """Return a copy of it, to be changed."""
    for name in PARTIES:
        shutil.copytree(trained.home(name), tmp_path / "homes" / name)
    return OnDisk(tmp_path / "homes", PARTIES)


def said(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code in (2, 3), done.output
    (line,) = done.stderr.strip().splitlines()
    return line


def predicted(job, file):
    def work(name):
        home = job.home(name)
        output = home / file if name == "bank" else None
        return predict(home / "contract.yaml", home / "party.yaml", output=output, watcher=Watching())

    found = both(work)
    return found, job.home("bank") / file


def test_nothing_of_a_run_can_be_read_without_the_key_and_all_of_it_with(job, tmp_path):
    for name in PARTIES:
        (folder,) = job.runs(name)
        kept = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert {"model.safetensors", "result.json", "report.html", "encoder.json"} <= {path.name for path in kept}
        assert {path.name for path, content in kept.items() if not content.startswith(MAGIC)} <= PLAIN
        whole = b"".join(kept.values())
        for word in (b"standard", KEYS[name].encode(), bytes.fromhex(KEYS[name]), b"<html"):
            assert word not in whole, word
        opened = tmp_path / name
        home = job.home(name)
        arguments = ["decrypt", folder, "--party", home / "party.yaml", "--to", opened, "--json"]
        assert CliRunner().invoke(app, [str(argument) for argument in arguments]).exit_code == 0
        assert (opened / "report.html").read_text().lstrip().startswith("<!")
        assert json.loads((opened / "result.json").read_bytes())["party"] == name
        RunFolder.open(opened).check(trained=True)  # an audit, a comparison and an export can read it


def test_answers_of_a_server_are_encrypted_line_by_line_and_decrypted_with_the_rest(job, tmp_path):
    (folder,) = job.runs("bank")
    run = RunFolder.open(folder, key=load_party(job.home("bank") / "party.yaml").run_key)
    log = AnswerLog(origin=run.origin, secret=bytes(32), config=AnswersConfig())
    for number in range(3):
        log.keep([AnsweredRow(row=f"{number:016x}", by="joint model", scores=(0.25,))], {"all": 1.0})
    log.close()
    (kept,) = folder.glob("served-*.jsonl")
    assert not any(word in kept.read_bytes() for word in (b"joint", b"0.25", b'"rows"'))
    assert [answer.rows[0].row for answer in read_answers(run)] == [f"{number:016x}" for number in range(3)]
    run.copy_plain(tmp_path / "plain")
    assert len(list(read_answers(RunFolder.open(tmp_path / "plain")))) == 3
    assert b"joint model" in (tmp_path / "plain" / kept.name).read_bytes()
    kept.rename(kept.with_name("served-2020-01-01.jsonl"))
    with pytest.raises(DamagedFile, match="line 1: "):
        list(read_answers(run))


def test_a_model_that_is_encrypted_scores_and_another_key_is_named(job):
    found, scores = predicted(job, "scores.csv")
    assert pl.read_csv(scores).height == found["bank"]["rows"] > 0
    job.change("bank", encryption={"key": {"command": ["echo", KEYS["shop"]]}})
    contract, party = files_of(job, "bank")
    with pytest.raises(ConfigError) as caught:
        predict(contract, party, output=job.home("bank") / "none.csv", watcher=Watching())
    assert re.search(
        r"its files are encrypted with key [0-9a-f]{16}, and here is key [0-9a-f]{16}; name that key", str(caught.value)
    )
    assert not any(key in str(caught.value) for key in KEYS.values())
    job.change("bank", encryption=None)
    home = job.home("bank")
    arguments = ("predict", home / "contract.yaml", "--party", home / "party.yaml", "--output", home / "none.csv")
    assert "and none is given here; name that key as encryption.key in the party file" in said(*arguments)
    for command in (("audit",), ("compare", job.runs("bank")[0]), ("export", "--no-onnx", "--to", home / "out")):
        assert "its files are encrypted with key" in said(command[0], job.runs("bank")[0], *command[1:])
    assert not (home / "out").exists()


def test_a_file_that_was_changed_swapped_or_laid_open_is_named(job):
    folder = job.runs("bank")[0]
    contract, party = load_contract(job.home("bank") / "contract.yaml"), load_party(job.home("bank") / "party.yaml")

    def opened():
        RunFolder.latest(party.runs, contract, "bank", key=party.run_key).check(trained=True)

    opened()
    model, whole = folder / "model.safetensors", (folder / "model.safetensors").read_bytes()
    changed = bytearray(whole)
    changed[len(changed) // 2] ^= 1
    for content, words in (
        (bytes(changed), "was changed after it was written"),
        (whole[:-1], "was changed after it was written"),
        ((folder / "encoder.json").read_bytes(), "is another file in this one's place"),
        (b"{}", "is not encrypted"),
        (b"", "is not encrypted"),
    ):
        model.write_bytes(content)
        with pytest.raises(DamagedFile, match=words) as caught:
            opened()
        assert len(str(caught.value).splitlines()) == 1
    model.write_bytes(whole)
    opened()
    other = party.runs.parent / "copy"
    shutil.copytree(folder, other)
    (folder / "origin.json").write_bytes((other / "origin.json").read_bytes().replace(party.run_key.id.encode(), b"0" * 16))
    with pytest.raises(DamagedFile, match="does not match its digest"):
        opened()


def test_a_folder_that_lies_open_is_refused_where_a_key_is_named_unless_it_is_listed(job, tmp_path):
    """A forged folder has everything that a plain one has, because seals are not secret."""
    home, (folder,) = job.home("bank"), job.runs("bank")
    plain = tmp_path / folder.name
    party = home / "party.yaml"
    arguments = ["decrypt", folder, "--party", party, "--to", plain, "--json"]
    assert CliRunner().invoke(app, [str(argument) for argument in arguments]).exit_code == 0
    shutil.rmtree(folder)
    shutil.copytree(plain, folder)
    asked = ("predict", home / "contract.yaml", "--party", party, "--output", home / "none.csv")
    line = said(*asked)
    assert "its files are not encrypted, and the party file names a key" in line
    assert f"list '{folder.name}' as encryption.clear" in line
    with pytest.raises(ConfigError, match="not encrypted"):
        RunFolder.open(folder, key=load_party(party).run_key)
    job.change("bank", encryption={"key": {"file": "run.key"}, "clear": [folder.name]})
    found, _ = predicted(job, "scores.csv")
    assert found["bank"]["rows"] > 0


@pytest.mark.parametrize("forge", ["key", "run", "no proof", "another proof"])
def test_an_origin_that_was_not_written_with_the_key_is_refused(forge, job, tmp_path):
    folder, key = job.runs("bank")[0], load_party(job.home("bank") / "party.yaml").run_key
    facts = json.loads((folder / "origin.json").read_bytes())
    forged = {name: facts[name] for name in ("run", "party", "contract", "key", "proof")}
    forged |= {"key": {"key": "0" * 16}, "run": {"run": "0" * 16}, "no proof": {}, "another proof": {"proof": "0" * 64}}[forge]
    if forge == "no proof":
        del forged["proof"]
    write_json(
        folder / "origin.json",
        json.dumps(forged).encode(),
        origin=Origin(folder=folder, **{name: forged[name] for name in ("run", "party", "contract")}),
    )
    with pytest.raises((DamagedFile, ConfigError), match=r"with key 0000|not written with this party's key"):
        RunFolder.open(folder, key=key)


@pytest.mark.parametrize("content", ["forged", b"", bytes(range(256)) * 9, b"{}", MAGIC])
@pytest.mark.parametrize("name", ["model.safetensors", "report.html", "added.json", "result.json"])
def test_decrypt_takes_no_file_that_was_not_encrypted_with_the_key(name, content, job, tmp_path):
    folder, party = job.runs("bank")[0], job.home("bank") / "party.yaml"
    if content == "forged":
        content = b"".join(FolderKey(bytes(32)).encrypted(b"{}", place=name))
    (folder / name).write_bytes(content)
    line = said("decrypt", folder, "--party", party, "--to", tmp_path / "plain")
    assert name in line
    assert not (tmp_path / "plain").exists()


def test_decrypt_leaves_out_what_a_kill_left(job, tmp_path):
    folder, party = job.runs("bank")[0], job.home("bank") / "party.yaml"
    (folder / ".model.safetensors.partial").write_bytes(MAGIC)
    arguments = ["decrypt", folder, "--party", party, "--to", tmp_path / "plain", "--json"]
    assert CliRunner().invoke(app, [str(argument) for argument in arguments]).exit_code == 0
    assert not list((tmp_path / "plain").glob(".*"))


@pytest.fixture(scope="module")
def twice(trained, tmp_path_factory):
    """Make the same job, with a second run of each party."""
    root = tmp_path_factory.mktemp("twice")
    for name in PARTIES:
        shutil.copytree(trained.home(name), root / name)
    job = OnDisk(root, PARTIES)
    both(lambda name: run_process(*files_of(job, name), watcher=Watching()))
    return job


def read_whole(folder, key):
    """Read each file of a run folder as the product does; read files that no command reads as `decrypt` does."""
    run = RunFolder.open(folder, key=key)
    run.check(trained=True)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in PLAIN:
            if path.suffix in (".json", ".safetensors"):
                check_sealed(path, origin=run.origin)
            read_own(path, origin=run.origin)


@pytest.mark.parametrize("party", PARTIES)
def test_no_file_of_another_run_or_party_no_part_of_one_and_no_other_name_is_taken(twice, party, tmp_path):
    """Someone who has the disk, but not the key, moves files between two runs of a party, cuts them short and renames them."""
    own, other = twice.runs(party)
    partner = twice.runs(next(name for name in PARTIES if name != party))[0]
    key = load_party(twice.home(party) / "party.yaml").run_key
    work = tmp_path / own.name
    shutil.copytree(own, work)
    read_whole(work, key)
    files = [path.relative_to(own) for path in sorted(own.rglob("*")) if path.is_file() and path.name not in PLAIN]
    assert len(files) > 8
    for place in files:
        whole = (work / place).read_bytes()
        beside = files[(files.index(place) + 1) % len(files)]
        tries = {
            "another run's": (other / place).read_bytes() if (other / place).exists() else None,
            "the partner's": (partner / place).read_bytes() if (partner / place).exists() else None,
            "another one's of this run": (work / beside).read_bytes(),
            **{f"cut to {size}": whole[:size] for size in (0, len(MAGIC), len(whole) // 2, len(whole) - 16, len(whole) - 1)},
            "longer": whole + whole[-16:],
        }
        for what, content in tries.items():
            if content is None:
                continue
            (work / place).write_bytes(content)
            with pytest.raises(DamagedFile) as caught:
                read_whole(work, key)
            assert place.name in str(caught.value), (what, place)
            assert len(str(caught.value).splitlines()) == 1
        (work / place).write_bytes(whole)
    read_whole(work, key)


def decided(job, folder):
    _, party = files_of(job, "bank")
    decision = Decision(promote=True, metric="auc", before=None, after=None, gain=None, reasons=[])
    return count_decision(decision, party, folder, old="another")


USES = {
    "decrypt": lambda job, folder: said("decrypt", folder.path, "--party", job.home("bank") / "party.yaml", "--to", "plain"),
    "start-from": lambda job, folder: run_to_start_from(*files_of(job, "bank"), folder.run_id),
    "compare --decide": decided,
    "export": lambda _, folder: half_of(folder),
}


@pytest.mark.parametrize("use", USES)
def test_another_contract_beside_encrypted_files_is_named_and_not_used(job, use):
    """This file is not encrypted. With another promotion.epsilon, for example, a decision would be sent without its noise."""
    contract, party = files_of(job, "bank")
    folder = RunFolder.latest(party.runs, contract, "bank", key=party.run_key)
    assert folder.contract() == contract
    changed = contract.model_copy(update={"promotion": contract.promotion.model_copy(update={"epsilon": 50.0})})
    (folder.path / "contract.json").write_text(changed.canonical_json())
    words = "contract.json is damaged: it is contract [0-9a-f]{8}; this run is of"
    if use == "decrypt":
        assert re.search(words, USES[use](job, folder))
        return
    with pytest.raises(DamagedFile, match=words):
        USES[use](job, folder)


@pytest.mark.parametrize("party", PARTIES)
def test_a_folder_with_another_run_s_origin_is_no_run(twice, party, tmp_path):
    """The origin has the proof of the same key but names another run, to which no file belongs."""
    own, other = twice.runs(party)
    key = load_party(twice.home(party) / "party.yaml").run_key
    work = tmp_path / own.name
    shutil.copytree(own, work)
    shutil.copy(other / "origin.json", work / "origin.json")
    with pytest.raises(DamagedFile, match="another file in this one's place"):
        RunFolder.open(work, key=key).check(trained=True)
