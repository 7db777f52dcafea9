"""Tokens of a file that changes, and a rate of requests."""

import os

import pytest

from tallystick.errors import ConfigError
from tallystick.serving import rate_limits
from tallystick.serving.problem_details import Problem
from tallystick.serving.rate_limits import Rate, Tokens

OLD, NEW = "an-old-token-of-some-length", "a-new-token-of-some-length"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"{OLD}\n")
    path.chmod(0o600)
    return path


def taken(tokens, token):
    try:
        tokens.check(f"Bearer {token}")
    except Problem as problem:
        return problem.status
    return 200


def changed(path, text):
    path.write_text(text)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))  # within one tick of a file system's clock


def test_a_file_that_changes_is_read_again_and_one_that_cannot_be_used_is_said_and_changes_nothing(path, monkeypatch):
    monkeypatch.setattr(rate_limits, "LOOK_S", 0.0)
    said = []
    tokens = Tokens(path, say=said.append)
    assert (taken(tokens, OLD), taken(tokens, NEW), said) == (200, 401, [])
    changed(path, f"{NEW}\n")
    assert (taken(tokens, OLD), taken(tokens, NEW)) == (401, 200)
    changed(path, "short\n")
    assert (taken(tokens, NEW), taken(tokens, "short")) == (200, 401)
    path.unlink()
    assert taken(tokens, NEW) == 200
    assert len(said) == 2
    assert all("the former tokens stay" in line and "short\n" not in line for line in said)


@pytest.mark.parametrize("text", ["", "\n\n", "short\n", f"{OLD}\nshort\n"])
def test_a_file_without_a_token_or_with_a_short_one_is_refused(path, text):
    path.write_text(text)
    with pytest.raises(ConfigError, match="must hold tokens of at least 16 characters"):
        Tokens(path, say=print)


def test_a_missing_file_is_refused_and_one_that_others_can_read_is_said(path):
    with pytest.raises(ConfigError, match="cannot be read"):
        Tokens(path.with_name("nowhere"), say=print)
    path.chmod(0o644)
    said = []
    Tokens(path, say=said.append)
    assert "serving.token_file" in said[0]
    assert "chmod 600" in said[0]


def test_so_many_requests_are_taken_in_a_second_and_as_many_at_once(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(rate_limits.time, "monotonic", lambda: now[0])
    rate = Rate(4)

    def taken_of(count):
        refused = []
        for _ in range(count):
            try:
                rate.check()
            except Problem as problem:
                refused.append((problem.status, int(problem.headers["Retry-After"]) >= 1))
        assert set(refused) <= {(429, True)}
        return count - len(refused)

    assert taken_of(10) == 4
    now[0] += 0.5
    assert taken_of(10) == 2
    now[0] += 60
    assert taken_of(10) == 4
    assert Rate(None).check() is None
