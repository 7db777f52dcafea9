"""Locate the secrets that a party file names. The file says where each one is, never what it is.

A secret is read when it is used, and only its user has a copy. So it is in no config object, log, repr or error.
"""

import os
import select
import subprocess
import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from tallystick.errors import ConfigError
from tallystick.reading import FilePath, Model, Problems, Text, Unshown
from tallystick.storage import refuse_pipe

MAX_SECRET_BYTES = 64 << 10
COMMAND_S = 60.0
_FORMS = "{file: PATH}, {env: NAME} or {command: [program, argument]}"
LITERAL = f"the party file must not contain a secret; say where it is: {_FORMS}"


class Secret(Model):
    """Place of a secret: a file's content, an environment variable, or the output of a key store's command."""

    file: FilePath | None = Field(default=None, description="file that holds it")
    env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = Field(
        default=None, description="name of the environment's variable that holds it"
    )
    command: Annotated[tuple[Text, ...], Field(min_length=1)] | None = Field(
        default=None, description="program with its arguments that prints it, such as [pass, show, tallystick]; no shell runs it"
    )

    @model_validator(mode="before")
    @classmethod
    def _is_no_literal(cls, value: Any) -> Any:
        if not isinstance(value, dict | Secret):
            raise Unshown(LITERAL)
        return value

    @model_validator(mode="after")
    def _one_form(self) -> "Secret":
        if sum(form is not None for form in (self.file, self.env, self.command)) != 1:
            Problems.raise_any([f"file, env, command: exactly one must be given: {_FORMS}"])
        return self

    def read(self, key: str) -> str:
        """Read the secret, without the line break at its end.

        Args:
            key: the secret's key in the party file, for messages, such as "table.password".

        Raises ConfigError, without any part of the secret, if it cannot be read, is empty, or is not text of at most 64 KiB.
        """
        if self.file is not None:
            refuse_pipe(self.file)
            try:
                with self.file.open("rb") as file:
                    content, source = file.read(MAX_SECRET_BYTES + 1), str(self.file)
            except OSError as error:
                raise ConfigError(f"{key}: {self.file} cannot be read: {error.strerror}") from None
        elif self.env is not None:
            value = os.environ.get(self.env)
            if value is None:
                raise ConfigError(f"{key}: the environment has no variable {self.env}; set it where tallystick is started")
            content, source = value.encode("utf-8", "surrogateescape"), f"the variable {self.env}"
        else:
            assert self.command is not None, "one form is given"
            content, source = _of_command(self.command, key), f"what {self.command[0]} prints"
        if len(content) > MAX_SECRET_BYTES:
            raise ConfigError(f"{key}: {source} gives more than {MAX_SECRET_BYTES >> 10} KiB; a secret is shorter")
        try:
            text = content.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise ConfigError(f"{key}: {source} is not UTF-8 text") from None
        if not text or "\0" in text:
            raise ConfigError(f"{key}: {source} is empty" if not text else f"{key}: {source} holds a null character")
        return text


def _of_command(command: tuple[str, ...], key: str) -> bytes:
    """Return the command's output, cut if it is too long. Its standard error is dropped, because a log may contain that."""
    until = time.monotonic() + COMMAND_S
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError as error:
        raise ConfigError(f"{key}: {command[0]} cannot be run: {error.strerror}") from None
    with process:
        try:
            # Read a process's output until it closes the output, or prints too much; raises TimeoutError
            assert process.stdout is not None
            content, handle = b"", process.stdout.fileno()
            while len(content) <= MAX_SECRET_BYTES:
                if not select.select([handle], [], [], max(until - time.monotonic(), 0.0))[0]:
                    raise TimeoutError
                piece = os.read(handle, MAX_SECRET_BYTES)
                if not piece:
                    break
                content += piece
            if len(content) > MAX_SECRET_BYTES:
                return content
            code = process.wait(max(until - time.monotonic(), 0.0))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise ConfigError(f"{key}: {command[0]} did not end within {COMMAND_S:g} s; it must not ask for anything") from None
        finally:
            process.kill()
    if code:
        raise ConfigError(f"{key}: {command[0]} ended with exit code {code}; run it by hand to see why")
    return content


SecretInFile = Annotated[
    Secret,
    BeforeValidator(
        lambda value: {"file": value} if isinstance(value, str | Path) else value, json_schema_input_type=Secret | str
    ),
]
"""A secret whose plain value is the path of its file."""
