"""Locate a party's rows: files here or in an object store, or a query that a database runs."""

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, SecretStr, ValidationInfo, model_validator

from tallystick.config.secret import LITERAL, Secret
from tallystick.reading import Model, Problems, Text, Unshown, refuse_password, resolved, shown, validate

STORE_SCHEMES = ("s3", "gs", "abfs")
TABLE_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")


def address_scheme(place: object) -> str | None:
    """Return the scheme of an object store's address, such as s3. Return None for a path and for anything else."""
    match = re.match(r"([a-z][a-z0-9+.-]*)://", place, flags=re.IGNORECASE) if isinstance(place, str) else None
    return match[1].lower() if match is not None else None


def _place(value: Any, info: ValidationInfo) -> Any:
    """Return an address unchanged, and a path relative to the party file's folder."""
    if not isinstance(value, str | Path):
        raise ValueError("must be a path, or an address such as s3://bucket/folder")
    if (scheme := address_scheme(value)) is None:
        return resolved(Path(value), info)
    refuse_password(str(value), instead=f"{LITERAL}, under table.store")
    if scheme not in STORE_SCHEMES:
        schemes = ", ".join(f"{each}://" for each in STORE_SCHEMES)
        raise Unshown(f"is a {scheme}:// address; tables are read from files and from {schemes}; copy it to one of these")
    if "\0" in str(value) or not str(value).partition("://")[2].strip("/"):
        raise ValueError(f"must name a bucket and what is in it, such as {scheme}://bucket/folder")
    return f"{scheme}://{str(value).partition('://')[2]}"


def _database(secret: SecretStr) -> SecretStr:
    url = refuse_password(secret.get_secret_value(), instead=f"{LITERAL}, under table.password")
    if not re.match(r"((duckdb|sqlite):.|postgres(ql)?://.|adbc:[a-z][a-z0-9_]*$)", url, re.DOTALL):
        raise ValueError('must be "duckdb:FILE", "sqlite:FILE", "postgresql://user@host/database" or "adbc:DRIVER"')
    if url in ("adbc:sqlite", "adbc:postgresql"):
        raise ValueError(
            f'must be "{"sqlite:FILE" if url == "adbc:sqlite" else "postgresql://user@host/database"}" for this driver'
        )
    return secret


def _options(options: dict[str, str]) -> dict[str, str]:
    """Refuse an option whose name says that its value is a secret, or whose value begins with a user's name and password."""
    named = r"passw|passphrase|pwd|secret|token|credential|private_key|api.?key|cookie|authorization"
    for name, value in options.items():
        if re.search(named, name, re.IGNORECASE):
            raise Unshown(f"holds {shown(name)}; {LITERAL}, under secret_options")
        if re.match(r"[^:/?@\s]+:[^/@\s][^@\s]*@", value):  # as Snowflake's and MySQL's addresses: user:password@account
            raise Unshown(f"holds a password; {LITERAL}, under secret_options")
    return options


DriverOptions = Annotated[
    dict[Text, Annotated[str, AfterValidator(partial(refuse_password, instead=f"{LITERAL}, under secret_options"))]],
    AfterValidator(_options),
]


def driver_option_problems(database: str, options: Mapping[str, str], secret_options: Mapping[str, Secret]) -> list[str]:
    """List the problems of a driver's options."""
    problems = [
        f"{use}: only works with an adbc: database"
        for use, given in (("options", options), ("secret_options", secret_options))
        if given and not database.startswith("adbc:")
    ]
    if both := sorted({*options} & {*secret_options}):
        problems.append(f"options, secret_options: {', '.join(both)} occurs in both; give each once")
    return problems


def _codec(name: str) -> str:
    try:
        "".encode(name)
    except (LookupError, UnicodeError):
        raise ValueError("must be the name of a text encoding, such as utf-8, windows-1252 or iso-8859-15") from None
    return name


class StoreConfig(Model):
    """Connection to an object store, if its usual environment variables do not give it."""

    endpoint: Annotated[str, Field(pattern=r"^https?://[^@]+$")] | None = Field(
        default=None, description="server of the store's protocol, such as https://minio.example:9000; null means the cloud's own"
    )
    region: Text | None = Field(default=None, description="region of an s3:// bucket")
    account: Text | None = Field(default=None, description="account of an abfs://container/path that does not name it")
    access_key: Secret | None = Field(default=None, description="id of the key for s3://")
    secret_key: Secret | None = Field(default=None, description="secret of the key for s3://, the account's key for abfs://")
    session_token: Secret | None = Field(default=None, description="token of a temporary key for s3://")
    anonymous: bool = Field(default=False, description="read without a key what everybody may read (s3://, gs://)")

    def secret(self, name: str) -> str | None:
        """Read one of the secrets. Raises ConfigError if it cannot be read."""
        place: Secret | None = getattr(self, name)
        return place.read(f"table.store.{name}") if place is not None else None


class TableConfig(Model):
    """Location of the rows: files, or a query that a database runs."""

    path: Annotated[Path | str, BeforeValidator(_place)] | None = Field(
        default=None,
        description="CSV (.csv, .csv.gz), TSV (.tsv, .tsv.gz) or Parquet (.parquet): a file, a folder of them, a pattern "
        "such as parts/*.csv, or the folder of a Delta table; here or at s3://, gs:// or abfs://",
    )
    store: StoreConfig = Field(default_factory=StoreConfig, description="how an object store is reached")
    version: Annotated[int, Field(strict=True, ge=0, le=1 << 53)] | None = Field(
        default=None, description="version of a Delta table; null is the latest"
    )
    separator: Annotated[str, Field(pattern=r"^[\t !#-~]$")] | None = Field(
        default=None, description='separator of a CSV\'s cells, such as ";"; null detects comma, semicolon, tab and bar'
    )
    encoding: Annotated[str, AfterValidator(_codec)] | None = Field(
        default=None, description="encoding of a CSV, such as windows-1252; null is UTF-8, or UTF-16 with its mark"
    )
    decimal: Literal[",", "."] | None = Field(
        default=None, description="decimal sign of a CSV; null detects it if the numbers can be read in one way only"
    )
    missing: tuple[str, ...] | None = Field(
        default=None,
        description="words that mean a missing cell, in addition to an empty one; null means, in a CSV, NA, NaN, nan, null and "
        "NULL, and in columns of numbers or dates also common marks such as ?, - and n/a",
    )
    missing_in: dict[Text, tuple[str, ...]] = Field(
        default_factory=dict,
        description="such words of single columns, in which no other words count: [] keeps NA in a column of countries as a "
        "value, and EG and UG in a column of floors",
    )
    max_rows: Annotated[int, Field(strict=True, ge=1, le=1_000_000_000_000)] | None = Field(
        default=None, description="limit of rows; null: as many as fit into this machine's memory at 100 bytes each"
    )
    query: Text | None = Field(default=None, description="SQL that DuckDB or a database runs; instead of path")
    database: Annotated[SecretStr, AfterValidator(_database)] | None = Field(
        default=None,
        description="duckdb:FILE, sqlite:FILE, postgresql://user@host/database, or adbc:DRIVER for an installed ADBC driver "
        "such as adbc:snowflake; if left out, the query reads files",
    )
    options: DriverOptions = Field(
        default_factory=dict, description="options of an adbc: driver, by the driver's names, such as uri"
    )
    secret_options: dict[Text, Secret] = Field(
        default_factory=dict, description="options of an adbc: driver whose values are secrets, such as password"
    )
    password: Secret | None = Field(
        default=None, description="password of the PostgreSQL server, if PGPASSWORD or ~/.pgpass has none"
    )
    _folder: Path = PrivateAttr(default=Path())

    def model_post_init(self, context: Any) -> None:
        """Remember the party file's folder, to which a query's paths are relative."""
        self._folder = Path((context or {}).get("folder", "."))

    @property
    def folder(self) -> Path:
        """Return the folder to which a query's paths are relative."""
        return self._folder

    def at(self, place: Path | str, *, option: str) -> "TableConfig":
        """Return another place that is read with the same settings, as a command's option names it. Raises ConfigError."""
        settings = {
            name: getattr(self, name) for name in ("separator", "encoding", "decimal", "missing", "missing_in", "max_rows")
        }
        if address_scheme(place) is not None:
            settings["store"] = self.store
        return validate(TableConfig, settings | {"path": str(place)}, source=option, context={"folder": Path()})

    @model_validator(mode="after")
    def _one_source(self) -> "TableConfig":
        problems = []
        if (self.path is None) == (self.query is None):
            problems.append("path, query: exactly one of the two must be given")
        if self.path is not None:
            # A name without a dot is a folder, and so is an address that ends in a slash
            name = self.path.name if isinstance(self.path, Path) else self.path.rpartition("/")[2]
            is_folder = "." not in name
            with suppress(OSError):  # a name too long for any file
                is_folder |= isinstance(self.path, Path) and self.path.is_dir()
            if not is_folder and not name.lower().endswith(TABLE_SUFFIXES):
                endings = ", ".join(TABLE_SUFFIXES)
                problems.append(f"path = {shown(str(self.path))}: must end in {endings}, or be a folder of such files")
        if self.store.model_fields_set and address_scheme(self.path) is None:
            problems.append("store: only works with a path at s3://, gs:// or abfs://")
        for use in ("separator", "encoding", "decimal", "missing", "missing_in", "version"):
            if getattr(self, use) not in (None, {}) and self.path is None:
                problems.append(f"{use}: only works with path")
        if self.database is not None and self.query is None:
            problems.append("database: only works with query")
        database = self.database.get_secret_value() if self.database is not None else ""
        if self.password is not None and not database.startswith("postgres"):
            problems.append("password: only works with a postgresql:// database")
        problems += driver_option_problems(database, self.options, self.secret_options)
        Problems.raise_any(problems)
        return self
