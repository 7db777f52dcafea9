"""Define the party file with a party's private settings: table (config/table.py), columns, certificates, addresses, limits."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tallystick.compute.ray_cluster import RayEngine
from tallystick.config.compute import ComputeConfig
from tallystick.config.secret import Secret, SecretInFile
from tallystick.config.serving import ServingOptions
from tallystick.config.table import TableConfig
from tallystick.config.tuning import TuningPermission
from tallystick.encryption import FolderKey
from tallystick.errors import ConfigError
from tallystick.reading import (
    Address,
    Count,
    FilePath,
    Model,
    Name,
    Positive,
    Problems,
    Share,
    Text,
    each_once,
    read_yaml,
    refuse_password,
    shown,
    validate,
)

_CLOCKS = ("", "HM", "HMS", "T", "IMp", "IMSp")
"""Formats that give the time of a day. An hour without minutes, or of twelve hours without AM or PM, is not a time."""


def _date_format(words: str) -> str:
    plain = words.replace("%%", "")
    parts = set(re.findall("%[-_0]?:*([A-Za-z])", plain))
    clock = {"p" if part == "P" else part for part in parts} - set("YymbBdjaAnt")
    is_day = "j" in parts or (not parts.isdisjoint("mbB") and ("d" in parts or not clock))
    if not is_day or parts.isdisjoint("Yy") or not parts.isdisjoint("zZ"):
        raise ValueError(
            "must have a year (%Y, or %y of two digits) and a month (%m, or %b or %B by name), with a %d unless it is a month "
            'alone, or a year and a %j, such as "%d.%m.%Y", "%d/%m/%Y %H:%M" or "%m/%Y", and no zone'
        )
    has_fraction = re.search(r"%\.?[369]?f", plain) and "f" not in parts  # %f alone counts billionths
    if clock not in [set(each) for each in _CLOCKS] or (has_fraction and clock.isdisjoint("ST")):
        raise ValueError(
            "must write the time of a day as %H:%M, %H:%M:%S or %I:%M %p, a fraction of the second as %S%.f, and a day only by "
            "%Y, %y, %m, %b, %B, %d, %j, %a and %A"
        )
    return words


def _auto_is_none(value: Any) -> Any:
    if isinstance(value, str) and value != "auto":
        raise ValueError("must be auto or a mapping with numeric and categorical")
    return None if value == "auto" else value


Cost = Annotated[float, Field(strict=True, ge=0, le=1e9)]


class TensorBoardConfig(Model):
    """Folder in which TensorBoard finds a run's curves and figures."""

    folder: FilePath = Field(description="folder that gets a folder of events for each run")


class MlflowConfig(Model):
    """Server to which MLflow writes a run's curves and figures."""

    tracking: Annotated[
        str,
        Field(min_length=1),
        AfterValidator(
            partial(
                refuse_password,
                instead="give it as MLFLOW_TRACKING_PASSWORD or MLFLOW_TRACKING_TOKEN in the environment",
            )
        ),
    ] = Field(
        description="tracking server of MLflow, such as https://mlflow.example; its credentials come from MLflow's own variables"
    )
    experiment: Text = Field(default="tallystick", description="experiment that gets a run; made if it is missing")


class LoggersConfig(Model):
    """Receivers of a run's own curves, metrics and leak figures, in addition to the report."""

    tensorboard: TensorBoardConfig | None = Field(default=None, description="TensorBoard")
    mlflow: MlflowConfig | None = Field(default=None, description="MLflow")


class EncryptionConfig(Model):
    """Key that this party's run folders are encrypted with."""

    key: Secret | None = Field(
        default=None, description="64 hexadecimal digits, such as `openssl rand -hex 32` prints; null encrypts nothing"
    )
    clear: tuple[Text, ...] = Field(
        default=(),
        description="names of run folders that may be unencrypted although there is a key, such as older runs; "
        "`serving` is the secret of serving",
    )


_NOTHING_GIVEN: Any = {}


class FeatureColumns(Model):
    """The columns that the bottom model reads."""

    numeric: tuple[Text, ...] = Field(default=(), description="columns read as numbers")
    categorical: tuple[Text, ...] = Field(default=(), description="columns read as categories")


class SequenceConfig(Model):
    """A column whose cells list items, such as what a customer has clicked."""

    separator: Text | None = Field(default=None, description="between the items of a column of text; null for a column of lists")
    length: Annotated[int, Field(strict=True, ge=1, le=1000)] = Field(
        default=20, description="number of a row's last items that count; 1 to 1,000"
    )
    target: Text | None = Field(
        default=None,
        description="own column with the item that the row is about; items are then weighted by how well they fit it",
    )


class EncodingConfig(Model):
    """Encoding of columns into numbers and codes, fitted on this party's training rows."""

    numeric: Literal["auto", "standard", "log", "rank"] = Field(
        default="auto",
        description="what is done to a number before it is standardised on the training rows: standard: nothing; log: sign(x) "
        "log(1 + abs(x)), for counts and amounts with a long tail; rank: the normal score of its rank among the "
        "training rows (1,000 knots), for any shape and outliers; auto: rank if the skewness is above 1 or below "
        "-1, otherwise nothing",
    )
    min_count: Count | Literal["auto"] = Field(
        default="auto",
        description="training rows that a category needs for a code of its own; auto: one in 5,000, 4 to 10, and in a "
        "column that keeps getting new values one in 1,000, 4 to 20",
    )
    max_categories: Count = Field(default=1_000_000, description="limit of categories per column with a code of their own")
    screening: Literal["auto", "off"] = Field(
        default="auto",
        description="auto: if there are at least 40 encoded columns and most of them are useless, training closes these; "
        "off: it closes none",
    )


Statistic = Literal["mean", "median", "sum", "min", "max", "std", "count", "distinct", "first", "last"]
Statistics = Annotated[
    tuple[Statistic, ...],
    Field(min_length=1),
    BeforeValidator(
        lambda value: (value,) if isinstance(value, str) else value, json_schema_input_type=Statistic | tuple[Statistic, ...]
    ),
]


class RepeatsConfig(Model):
    """Rule for several rows with one key: the latest counts, and further columns summarise all of them."""

    latest: Text | None = Field(
        default=None, description="column that orders a key's rows: the latest counts; null takes the last in the table"
    )
    aggregate: dict[Text, Statistics] = Field(
        default_factory=dict,
        description="column to the summary of a key's values: mean, median, sum, min, max, std, count, distinct, first or "
        "last; a list of these gives columns COLUMN_mean and so on",
    )
    count: Text | None = Field(default=None, description="name of a further column: the key's number of rows")

    @property
    def words(self) -> str:
        """Say which row of a key counts, and which columns summarise all of them."""
        latest = f"the latest by {self.latest!r}" if self.latest is not None else "the last in the table"
        columns = [repr(column) for column in self.aggregate] + ([repr(self.count)] if self.count is not None else [])
        summed = f", and all of them in {', '.join(columns)}" if columns else ""
        return f"of a key's rows {latest} counts{summed} (repeats in the party file)"


class Tls(Model):
    """Certificates for mutual TLS, in PEM."""

    ca: FilePath = Field(description="certificate of the CA that signed the peers' certificates")
    certificate: FilePath = Field(description="this party's certificate")
    key: FilePath = Field(description="this party's private key")
    key_password: Secret | None = Field(default=None, description="password of the private key's file, if it is encrypted")


class Peer(Model):
    """A party that this one dials."""

    address: Address = Field(description="host:port on which the peer listens")


class HttpProxy(Model):
    """An HTTP proxy that peers are dialled through."""

    address: Address = Field(description="host:port of an HTTP proxy that peers are dialled through, by CONNECT")
    credentials: SecretInFile | None = Field(
        default=None, description="user:password for it, if it asks for one; a path names a file with it"
    )


ExactUse = Literal["gradients", "importance", "promotion", "scores", "share_metrics", "tuning", "weights"]
EXACT_USES: dict[ExactUse, str] = {
    "gradients": "a training without a defence that replaces labels",
    "importance": "evaluation.importance.feature_columns = both",
    "promotion": "which run is promoted, taken back, tried or named, unless promotion.epsilon decided it",
    "scores": "scores that a feature party gets, by a model that exact labels trained",
    "share_metrics": "evaluation.share_metrics",
    "tuning": "a search without a defence that replaces labels",
    "weights": "weights of rows, which shape gradients as they are where a defence replaces labels",
}
"""Disclosures that depend, or may depend, on labels and have no DP event."""


class PrivacyConfig(Model):
    """A party's privacy budget: its ledger and its cap."""

    ledger: FilePath = Field(
        default=Path("privacy-ledger.sqlite"), validate_default=True, description="file of this party's privacy ledger"
    )
    identity: Text | None = Field(
        default=None,
        description="identity of that ledger, as `tallystick ledger --create` gave it; any other one is refused, and so is a cap "
        "without it",
    )
    dataset: Name = Field(
        default="labels",
        description="name of the rows that the budget protects: their labels have this name in the ledger, their linking keys "
        "the name with -keys appended, noisy embeddings -embeddings, scores on shares -scores; another name begins at 0, so "
        "keep it for the same rows",
    )
    cap: Positive | None = Field(
        default=None,
        description="limit of epsilon, ever, for each of labels, linking keys and embeddings; null means no cap",
    )
    scores_per_row: Count | None = Field(
        default=None,
        description="limit of a row's scores that heads on shares may open, over all runs, predictions and label parties "
        "(feature party only; a model opens one, or one per class); null means no limit",
    )
    delta: Share = Field(default=0.0, description="chance that the cap may fail; above 0 to allow Gaussian noise")
    allow: tuple[ExactUse, ...] = Field(
        default=(),
        description="uses of exact labels that are allowed under a cap, although no cap can count them: "
        + "; ".join(f"{name}: {what}" for name, what in EXACT_USES.items()),
    )


class ErrorCosts(Model):
    """Costs of the errors in one of several labels."""

    false_positive: Cost = Field(default=1.0, description="as above")
    false_negative: Cost = Field(default=1.0, description="as above")

    @model_validator(mode="after")
    def _some_cost(self) -> "ErrorCosts":
        if self.false_positive == self.false_negative == 0:
            Problems.raise_any(["false_positive, false_negative: are both 0; give at least one a value above 0"])
        return self


class ReportOptions(Model):
    """Parts of the label party's report, which only this party sees."""

    subgroups: tuple[Text, ...] = Field(
        default=(), description="own columns whose groups of test rows are measured separately; they need not be features"
    )
    smallest_group: int = Field(
        default=100, strict=True, ge=20, le=1_000_000_000, description="least rows of a group; smaller groups are not shown"
    )
    cost_false_positive: Cost = Field(default=1.0, description="cost of flagging a negative (two classes)")
    cost_false_negative: Cost = Field(default=1.0, description="cost of missing a positive, in the same unit")
    costs: dict[Text, ErrorCosts] = Field(default_factory=dict, description="costs of single labels of several")

    @model_validator(mode="after")
    def _some_cost(self) -> "ReportOptions":
        if self.cost_false_positive == self.cost_false_negative == 0:
            Problems.raise_any(["cost_false_positive, cost_false_negative: are both 0; give at least one a value above 0"])
        return self

    def costs_of(self, label: str) -> ErrorCosts:
        """Return the costs of a label's errors. A single label has no name."""
        usual = ErrorCosts(false_positive=self.cost_false_positive, false_negative=self.cost_false_negative)
        return self.costs.get(label, usual)


class PartyFile(Model):
    """One party's private side of a job. See docs/reference/configuration.md for every key."""

    party: Name = Field(description="this party's name in the contract")
    table: TableConfig | None = Field(default=None, description="the rows (label and feature parties)")
    keys: dict[Text, Text] = Field(default_factory=dict, description="contract's key name to own column")
    units: dict[Text, Text] = Field(
        default_factory=dict, description="contract's key name to the unit of the own column (similarity only)"
    )
    repeats: RepeatsConfig | None = Field(
        default=None, description="which row counts if several have one key; null follows alignment.duplicates"
    )
    label: Text | Annotated[tuple[Text, ...], Field(min_length=2, max_length=16), AfterValidator(each_once)] | None = Field(
        default=None, description="label column (label party only), or those of a multilabel target"
    )
    weight: Text | None = Field(default=None, description="sample-weight column (label party only, not on a union)")
    time: Text | None = Field(default=None, description="time column (label party only, for split.method = time)")
    features: Annotated[
        FeatureColumns | None, BeforeValidator(_auto_is_none, json_schema_input_type=FeatureColumns | Literal["auto"] | None)
    ] = Field(default=None, description="auto (every other column by its type), or lists of numeric and categorical columns")
    sequences: dict[Text, SequenceConfig] = Field(
        default_factory=dict, description="columns whose cells list items, in addition to features: column to how it is read"
    )
    vectors: Annotated[tuple[Text, ...], AfterValidator(each_once)] = Field(
        default=(),
        description="columns whose cells hold equally many numbers, such as embeddings, in addition to features: lists, arrays, "
        "or text such as [0.5, -1]",
    )
    dates: dict[Text, Annotated[str, AfterValidator(_date_format)]] = Field(
        default_factory=dict, description='columns of text that are dates, and their format, such as "%d.%m.%Y"'
    )
    drop: tuple[Text, ...] = Field(default=(), description="columns that features: auto leaves out")
    encoding: EncodingConfig = Field(default_factory=EncodingConfig, description="how columns become numbers and codes")
    tls: Tls | None = Field(default=None, description="certificates for mutual TLS")
    listen: Address | None = Field(default=None, description="host:port to listen on (label party and helper)")
    peers: dict[Name, Peer] = Field(default_factory=dict, description="parties that this one dials")
    proxy: HttpProxy | None = Field(default=None, description="HTTP proxy to all peers; null dials them directly")
    runs: FilePath = Field(default=Path("runs"), validate_default=True, description="folder for run folders")
    loggers: LoggersConfig = Field(
        default_factory=LoggersConfig, description="loggers in addition to the report; none if left out"
    )
    encryption: EncryptionConfig = Field(default_factory=EncryptionConfig, description="encryption of run folders")
    # Validated like a given value, so that the default ledger is next to the party file as well, wherever the command is called.
    privacy: PrivacyConfig = Field(
        default=_NOTHING_GIVEN, validate_default=True, description="ledger and cap of private releases"
    )
    tuning: TuningPermission = Field(default_factory=TuningPermission, description="what this party lets `tallystick tune` try")
    report: ReportOptions = Field(default_factory=ReportOptions, description="further figures of the label party's report")
    overlap_groups: Text | None = Field(
        default=None,
        description="own column whose groups divide the count of common ids, if overlap.groups in the contract names this "
        "party; more than 20 values become the 20 largest groups and all others, numbers quartiles",
    )
    serving: ServingOptions = Field(
        default_factory=ServingOptions, description="how `tallystick serve` answers here, if the contract allows it"
    )
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:[0-9]+)?)$")] = Field(
        default="cpu",
        description="where to train: cpu, cuda or cuda:0; a union, rows without a partner's row and predictions use the CPU",
    )
    threads: Annotated[int, Field(strict=True, ge=1, le=1024)] | None = Field(
        default=None,
        description="threads for training, alignment and audits; null uses all cores, but one for "
        "training and audits if the batches are too small to share",
    )
    compute: ComputeConfig | None = Field(
        default=None, description="what runs independent tasks; null runs them in order in the command's own process"
    )
    training_workers: int = Field(
        default=1,
        strict=True,
        ge=1,
        le=64,
        description="processes that share the rows of each training batch, with `threads` threads each, on this machine or on "
        "the Ray cluster under compute; the other parties need not know of them; Linux only",
    )

    @model_validator(mode="after")
    def _columns_have_one_use(self) -> "PartyFile":
        problems = []
        used_columns = self.features.numeric + self.features.categorical if self.features else ()
        used_columns += (*self.sequences, *self.vectors)
        twice = sorted({column for column in used_columns if used_columns.count(column) > 1})
        problems += [f"features: column {shown(column)} is given twice" for column in twice]
        for name, sequence in self.sequences.items():
            if name in self.drop or name in self.keys.values():
                problems.append(f"sequences.{name}: is also {'under drop' if name in self.drop else 'a key column'}")
            if sequence.target is not None and sequence.target in (name, *self.labels, self.weight):
                use = {name: "the sequence itself", self.weight: "the weight"}.get(sequence.target, "the label")
                problems.append(
                    f"sequences.{name}.target = {shown(sequence.target)}: is {use}; name the column of the row's item"
                )
        problems += [
            f"vectors: column {shown(name)} is also {'under drop' if name in self.drop else 'a key column'}"
            for name in self.vectors
            if name in self.drop or name in self.keys.values()
        ]
        if self.vectors and self.serving.store is not None:
            problems.append("vectors: serving.store gives single cells; serve from the table, or leave the vectors out")
        problems += [
            f"repeats.aggregate.{column}: is the {use}, which comes from the latest row; leave it out"
            for column in (self.repeats.aggregate if self.repeats is not None else ())
            for use, taken in (
                ("label", self.labels),
                ("weight", (self.weight,)),
                ("time", (self.time,)),
                ("key", self.keys.values()),
            )
            if column in taken
        ]
        for use, column in (*(("label", name) for name in self.labels), ("weight", self.weight)):
            if column is not None and column in used_columns:
                problems.append(f"features: column {shown(column)} is the {use}; a feature would give it away")
            if column is not None and column in self.keys.values():
                problems.append(f"{use} = {shown(column)}: is also a key column")
        problems += [
            f"report.subgroups: column {shown(name)} is the label; name another column"
            for name in self.labels
            if name in self.report.subgroups
        ]
        problems += [
            f"{use} = {shown(column)}: is also the label"
            for use, column in (("weight", self.weight), ("time", self.time))
            if column in self.labels
        ]
        if self.overlap_groups in self.labels:
            problems.append(
                f"overlap_groups = {shown(self.overlap_groups)}: is the label, and exact sizes of its groups would cross; name "
                "another column"
            )
        if self.features is not None and self.drop:
            problems.append("drop: only works with features: auto; leave the columns out of features instead")
        Problems.raise_any(problems)
        return self

    @property
    def labels(self) -> tuple[str, ...]:
        """List the label columns: none, one, or those of a multilabel target."""
        return (self.label,) if isinstance(self.label, str) else self.label or ()

    def asks_for(self, column: str) -> bool:
        """Tell whether a job may need a column of the table. Other columns need not be readable."""
        if column in self.text_columns or column in self.sequences or column in self.vectors:
            return True
        repeats = (self.repeats.latest, *self.repeats.aggregate) if self.repeats is not None else ()
        if column in (*self.labels, self.weight, self.time, self.overlap_groups, *self.report.subgroups, *repeats):
            return True
        if column in (sequence.target for sequence in self.sequences.values()):
            return True
        return column in self.features.numeric if self.features is not None else column not in self.drop

    def table_at(self, place: Path | str | None, *, option: str = "--table") -> TableConfig:
        """Return the table that a command's option names, or the party file's. Raises ConfigError if neither is given."""
        if self.table is None:
            raise ConfigError("table: the party file names no table; add one")
        return self.table if place is None else self.table.at(place, option=option)

    @property
    def training_cluster(self) -> RayEngine | None:
        """Return the Ray cluster of its additional training workers; None if they are on this machine, or if there are none."""
        if self.training_workers == 1 or self.compute is None:
            return None
        return self.compute.cluster(workers=self.training_workers - 1, threads=self.threads or self.compute.threads)

    @property
    def run_key(self) -> FolderKey | None:
        """Return the key of its run folders, read once. Raises ConfigError if it cannot be read. None encrypts nothing."""
        if self.encryption.key is None:
            return None
        return replace(_key_at(self.encryption.key), clear=frozenset(self.encryption.clear))

    @property
    def text_columns(self) -> tuple[str, ...]:
        """List the columns that a CSV keeps as text: keys, categories, sequences with a separator, and their targets."""
        parted = {name: each.target for name, each in self.sequences.items() if each.separator is not None}
        categories = self.features.categorical if self.features is not None else ()
        targets = (target for target in parted.values() if target is not None)
        return (*self.keys.values(), *categories, *self.dates, *parted, *targets)


@lru_cache(maxsize=16)
def _key_at(place: Secret) -> FolderKey:
    """Read a folder's key once, because a command of a key store may ask the user."""
    return FolderKey.of(place.read("encryption.key"), name="encryption.key")


def load_party(path: Path | str) -> PartyFile:
    """Read and validate a party file. Its paths are relative to its folder. Raises ConfigError with one line per problem."""
    path = Path(path)
    values = read_yaml(path)
    if isinstance(values, dict) and "parties" in values and "party" not in values:
        raise ConfigError(f"{path.name}: is a contract (it has the key parties, and not party); give a party file")
    return validate(PartyFile, values, source=path.name, context={"folder": path.absolute().parent})


def parse_party(data: Mapping[str, Any], *, folder: Path, source: str = "party file") -> PartyFile:
    """Validate a party file given as plain values. Raises ConfigError with one line per problem."""
    return validate(PartyFile, data, source=source, context={"folder": folder})
