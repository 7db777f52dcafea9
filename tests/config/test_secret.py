"""Secrets: where they may come from, what is refused, and that no message, repr or dump holds one."""

import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from tallystick.config.party import parse_party
from tallystick.config.secret import MAX_SECRET_BYTES, Secret
from tallystick.errors import ConfigError
from tallystick.job.side_checks import identity_of, proxy_of
from tallystick.network.certificates import tls_context, write_test_certificates
from tallystick.reading import validate

WORD = "correct horse"
URL = "postgresql://me@h/db"


def secret(folder: Path, **form: Any) -> Secret:
    return validate(Secret, form, source="secret", context={"folder": folder})


def party(folder: Path, **more: Any) -> Any:
    values = {"party": "bank", "table": {"path": "t.csv"}, "keys": {"id": "id"}} | more
    return parse_party(values, folder=folder, source="party.yaml")


def said(work: Any, *arguments: Any, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        work(*arguments, **more)
    return str(caught.value)


def test_each_form_gives_the_secret_without_its_line_break(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "word").write_text(f"{WORD}\r\n")
    monkeypatch.setenv("WORD", WORD)
    printed = [sys.executable, "-c", f"print({WORD!r})"]
    forms = ({"file": "word"}, {"env": "WORD"}, {"command": printed})
    assert [secret(tmp_path, **form).read("x") for form in forms] == [WORD] * 3


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"file": "nowhere"}, "x: {folder}/nowhere cannot be read: No such file or directory"),
        ({"file": "empty"}, "x: {folder}/empty is empty"),
        ({"file": "bytes"}, "x: {folder}/bytes is not UTF-8 text"),
        ({"file": "long"}, f"x: {{folder}}/long gives more than {MAX_SECRET_BYTES >> 10} KiB"),
        ({"env": "NO_SUCH_NAME"}, "x: the environment has no variable NO_SUCH_NAME; set it where tallystick is started"),
        ({"command": ["/no/such/program"]}, "x: /no/such/program cannot be run: No such file or directory"),
        ({"command": ["false"]}, "x: false ended with exit code 1; run it by hand to see why"),
        ({"command": ["true"]}, "x: what true prints is empty"),
    ],
)
def test_one_that_cannot_be_had_is_named_in_one_line(tmp_path: Path, form: Any, words: str) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"caf\xe9")
    (tmp_path / "long").write_text("x" * (MAX_SECRET_BYTES + 1))
    assert said(secret(tmp_path, **form).read, "x").startswith(words.format(folder=tmp_path))


@pytest.mark.parametrize("command", [["sleep", "60"], ["sh", "-c", "exec >&-; exec sleep 60"], ["sh", "-c", "sleep 2 & echo x"]])
def test_a_command_that_waits_is_ended_also_where_it_prints_nothing_more_or_leaves_another_behind(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.config.secret.COMMAND_S", 0.2)
    waits = secret(tmp_path, command=command)
    assert said(waits.read, "x") == f"x: {command[0]} did not end within 0.2 s; it must not ask for anything"


def test_a_command_that_prints_for_ever_is_ended_before_it_fills_the_memory(tmp_path: Path) -> None:
    assert said(secret(tmp_path, command=["yes"]).read, "x") == "x: what yes prints gives more than 64 KiB; a secret is shorter"


def test_what_a_command_says_on_standard_error_reaches_no_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tells = secret(tmp_path, command=["sh", "-c", "echo hunter2 >&2; exit 3"])
    assert said(tells.read, "x") == "x: sh ended with exit code 3; run it by hand to see why"
    assert "hunter2" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"table": {"query": "q", "database": "postgresql://me:hunter2@h/db"}},
            "table.database: holds a password; the party file",
        ),
        ({"table": {"query": "q", "database": f"{URL}?password=hunter2"}}, "table.database: holds a password"),
        (
            {"table": {"query": "q", "database": URL, "password": "hunter2"}},
            "table.password: the party file must not contain a secret",
        ),
        (
            {"table": {"query": "q", "database": URL, "password": {"value": "hunter2"}}},
            "table.password.value: is not a known key",
        ),
        (
            {"table": {"query": "q", "database": URL, "password": ["hunter2"]}},
            "table.password: the party file must not contain a secret",
        ),
        ({"table": {"query": "q", "database": URL, "password": {}}}, "table.password.file, env, command: exactly one"),
        ({"table": {"query": "q", "database": URL, "password": {"env": "A", "file": "b"}}}, "exactly one must be given"),
        ({"table": {"query": "q", "database": URL, "password": {"command": "hunter2"}}}, "table.password.command"),
        (
            {"table": {"query": "q", "database": "duckdb:x", "password": {"env": "A"}}},
            "password: only works with a postgresql://",
        ),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(tmp_path: Path, more: Any, words: str) -> None:
    line = said(party, tmp_path, **more)
    assert words in line
    assert "hunter2" not in line.replace('command = "hunter2"', "")


def test_a_party_file_knows_where_it_is_and_not_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROXY", f"carol:{WORD}")
    (tmp_path / "proxy.txt").write_text(f"carol:{WORD}\n")
    for credentials in ("proxy.txt", {"file": "proxy.txt"}, {"env": "PROXY"}):
        own = party(tmp_path, proxy={"address": "proxy:3128", "credentials": credentials})
        proxy = proxy_of(own)
        assert proxy is not None
        assert proxy.credentials == f"carol:{WORD}"
        assert WORD not in f"{own!r} {own} {own.model_dump_json()} {proxy!r}"


def test_a_private_key_may_be_encrypted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_test_certificates(tmp_path, ["bank"])
    key = serialization.load_pem_private_key((tmp_path / "bank.key").read_bytes(), password=None)
    locked = serialization.BestAvailableEncryption(WORD.encode())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    (tmp_path / "locked.key").write_bytes(key.private_bytes(*form, locked))
    tls = {"ca": "ca.pem", "certificate": "bank.pem", "key": "locked.key"}
    assert "is encrypted; say in tls.key_password where its password is" in said(identity_of, party(tmp_path, tls=tls))
    own = party(tmp_path, tls=tls | {"key_password": {"env": "KEY"}})
    monkeypatch.setenv("KEY", "wrong")
    assert "or not encrypted with what tls.key_password gives" in said(identity_of, own)
    monkeypatch.setenv("KEY", WORD)
    identity = identity_of(own)
    assert WORD not in f"{identity!r} {identity}"
    assert tls_context(identity, listens=True)
    plain = party(tmp_path, tls=tls | {"key": "bank.key", "key_password": {"env": "KEY"}})
    assert "is not encrypted; leave out tls.key_password" in said(identity_of, plain)
