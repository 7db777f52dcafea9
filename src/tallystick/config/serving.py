"""Declare online scores: the ways of asking that the contract allows, and each side's own settings."""

import re
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from tallystick.config.secret import LITERAL, Secret
from tallystick.config.table import DriverOptions, driver_option_problems
from tallystick.reading import Address, Count, FilePath, Model, Problems, Text, Unshown, WholeShare, refuse_password, resolved

LabelPartyAsks = Literal["key", "position", "window", "ahead"]
FeaturePartyAsks = Literal["embedding", "agreed-batch"]
Way = LabelPartyAsks | FeaturePartyAsks

WAYS: dict[Way, str] = {
    "key": "the row's key crosses, and the feature party finds the row by it",
    "position": "the row's place in an alignment that is made when the sides meet",
    "window": "the same, among a window of other rows, which the label party draws once",
    "ahead": "all aligned rows are embedded when the sides meet, or on shares scored by `predict`; a request sends nothing",
    "embedding": "the feature party asks: it sends the row's embedding alone and gets the score",
    "agreed-batch": "the feature party asks: it sends embeddings of a batch that both sides know, and gets all scores",
}

MOST_ALIGNMENTS = 24
"""Limit of new alignments in which a side takes part per day while it serves. Each reveals to a partner which ids of a list are
common.
"""


class ServingConfig(Model):
    """Serving, as far as the sides allow it. A contract without this section allows none."""

    ways: tuple[Way, ...] = Field(
        min_length=1,
        description="allowed ways of asking; the party that asks has the clients, so all must be ways of the label party or "
        "all of the feature party: " + "; ".join(f"{way}: {what}" for way, what in WAYS.items()),
    )
    window: int = Field(default=32, strict=True, ge=2, le=1024, description="least rows of a window, or of an agreed batch")
    questions_a_day: Count | None = Field(
        default=None, description="limit of rows that one party may ask of another per day (UTC); null sets no limit"
    )
    questions_a_day_per_row: Count | None = Field(
        default=None, description="limit of requests for one row per day (UTC); null sets no limit"
    )

    @property
    def feature_party_asks(self) -> bool:
        """Tell whether the feature party has the clients, and asks the label party for scores."""
        return self.ways[0] in get_args(FeaturePartyAsks)


def _server(*schemes: str) -> AfterValidator:
    """Check the address of a server: its scheme, and that it contains no password."""

    def check(url: str) -> str:
        if not url.startswith(tuple(f"{scheme}://" for scheme in schemes)):
            raise Unshown(f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        return refuse_password(url, instead=f"{LITERAL}, under serving.store.password")

    return AfterValidator(check)


class Postgres(Model):
    """Rows that PostgreSQL looks up."""

    method: Literal["postgres"] = Field(description="postgres: by a query")
    database: Annotated[str, _server("postgres", "postgresql")] = Field(description="postgresql://user@host/database")
    password: Secret | None = Field(default=None, description="password of the user, if PGPASSWORD or ~/.pgpass has none")
    query: Text = Field(
        description="SQL that finds rows: $1 is an array of keys as text, spelt as the contract normalises them, and the "
        'column "key" of the answer has each row\'s key'
    )


class Redis(Model):
    """Rows that Redis holds: under a prefix and the normalised key a JSON object of columns."""

    method: Literal["redis"] = Field(description="redis: by key")
    url: Annotated[str, _server("redis", "rediss", "unix")] = Field(
        description="redis://user@host:port/database, rediss:// for TLS or unix:// for a socket"
    )
    password: Secret | None = Field(default=None, description="password of the user, if the server needs one")
    prefix: str = Field(default="", description="text before the key")


def _adbc_database(database: str, info: ValidationInfo) -> str:
    """Return the database. A SQLite file is relative to the party file's folder."""
    if not re.match(r"(sqlite:.|adbc:[a-z][a-z0-9_]*$)", database, re.DOTALL) or database in ("adbc:sqlite", "adbc:postgresql"):
        raise Unshown('must be "sqlite:FILE", or "adbc:DRIVER" of another database than SQLite and PostgreSQL')
    kind, _, place = database.partition(":")
    return f"sqlite:{resolved(Path(place).expanduser(), info)}" if kind == "sqlite" else database


class Adbc(Model):
    """Rows that a database behind an ADBC driver looks up."""

    method: Literal["adbc"] = Field(description="adbc: by a query")
    database: Annotated[str, AfterValidator(_adbc_database)] = Field(description="sqlite:FILE or adbc:DRIVER")
    options: DriverOptions = Field(default_factory=dict, description="as table.options")
    secret_options: dict[Text, Secret] = Field(default_factory=dict, description="as table.secret_options")
    query: Text = Field(description="the same, with one parameter, such as ?, for the text of a JSON array of keys")

    @model_validator(mode="after")
    def _checks(self) -> "Adbc":
        problems = driver_option_problems(self.database, self.options, self.secret_options)
        Problems.raise_any(problems)
        return self


Store = Annotated[Postgres | Adbc | Redis, Field(discriminator="method")]


class HttpTls(Model):
    """The certificate that clients of the scores see, in PEM."""

    certificate: FilePath = Field(description="certificate of this server, with its chain")
    key: FilePath = Field(description="its private key")
    client_ca: FilePath | None = Field(
        default=None, description="certificate of the CA that signs clients' certificates; every client must then show one"
    )


class AnswersConfig(Model):
    """Limits of the journal of answers that `tallystick monitor` reads."""

    days: Count = Field(default=90, description="days after which a day's file is removed")
    mib_a_day: int = Field(default=64, strict=True, ge=1, le=1 << 20, description="largest size of a day's file, in MiB")
    requests: Annotated[float, Field(strict=True, gt=0, le=1)] = Field(
        default=1.0, description="share of requests that are kept, drawn at random; 64 MiB hold some 300,000"
    )
    columns: WholeShare = Field(
        default=0.05, description="share of the kept requests whose own columns are kept too, as the network takes them"
    )


class ShadowOptions(Model):
    """Scoring of a candidate (`tallystick runs ... shadow`) next to the run in use."""

    share: WholeShare = Field(
        default=0.1,
        description="share of the requests that a candidate scores, too, after their answers",
    )
    threshold: float | None = Field(
        default=None,
        strict=True,
        ge=-1e9,
        le=1e9,
        description="score that separates the two decisions; null means 0.5 for a binary target and none for a regression",
    )


class ServingOptions(Model):
    """Serving as this party does it."""

    listen: Address | None = Field(
        default=None, description="host:port for clients that ask for scores (of the party that has the clients only)"
    )
    token_file: FilePath | None = Field(
        default=None, description="file of bearer tokens, one a line; clients must send one of them"
    )
    tls: HttpTls | None = Field(default=None, description="HTTPS for clients; without it only a loopback address is listened on")
    way: Way | None = Field(default=None, description="how to ask; null takes the first way of the contract")
    store: Store | None = Field(
        default=None, description="where rows are looked up by key; null is the party file's table, held in memory"
    )
    refresh_s: float = Field(
        default=30.0, strict=True, ge=0.1, le=86_400, description="seconds between looks at whether the table has changed"
    )
    deadline_ms: float = Field(
        default=200.0,
        strict=True,
        ge=1,
        le=60_000,
        description="milliseconds in which a request has its answer",
    )
    max_rows: int = Field(default=1024, strict=True, ge=1, le=100_000, description="limit of rows per request")
    max_body_kib: int = Field(default=1024, strict=True, ge=1, le=1 << 20, description="largest body of a request, in KiB")
    requests_per_second: Count | None = Field(
        default=None, description="requests accepted per second, on average; null sets no limit"
    )
    max_waiting: Count = Field(default=4096, description="rows that may wait for a partner; more are refused with Retry-After")
    gather_ms: int = Field(
        default=0,
        strict=True,
        ge=0,
        le=100,
        description="milliseconds that a row waits for others of its batch; 0 asks at once; from some hundred requests per "
        "second on, 5 save processor time (party with the clients only)",
    )
    journal: bool = Field(
        default=True, strict=True, description="keep a journal of requests, under `serving` next to the run folders"
    )
    answers: AnswersConfig | None = Field(
        default=None,
        description="keep answers, for `tallystick monitor --served`, in the run folder; null keeps none "
        "(party with the clients only)",
    )

    shadow: ShadowOptions = Field(
        default_factory=ShadowOptions,
        description="score with a candidate next to the run in use; its scores are counted but answer no request (label party "
        "only)",
    )

    @model_validator(mode="after")
    def _checks(self) -> "ServingOptions":
        problems = []
        host, _, port = (self.listen or "").rpartition(":")
        if self.listen is not None and self.token_file is None and (self.tls is None or self.tls.client_ca is None):
            problems.append(
                "token_file: is missing; anyone who reaches listen could get scores: name a file of tokens or a tls.client_ca"
            )
        if self.listen is not None and self.tls is None and host not in ("127.0.0.1", "[::1]", "localhost"):
            problems.append(
                f'tls: is missing; tokens and scores would cross the network in the clear: listen on "127.0.0.1:{port}" or give '
                "a certificate"
            )
        if self.gather_ms > self.deadline_ms / 2:
            problems.append(
                f"gather_ms: is {self.gather_ms}; must leave half of deadline_ms = {self.deadline_ms:g} to the partner's answer"
            )
        Problems.raise_any(problems)
        return self
