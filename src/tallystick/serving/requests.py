"""Read a client's request: rows by key, with or without own columns, as JSON or as an Arrow stream.

Nothing in a request is trusted: an error names the row and the column, and never a value.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import polars as pl
import polars.selectors as cs

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.errors import DataError, FeatureError
from tallystick.scoring.scoring_messages import key_problem
from tallystick.scoring.stores.cells import columns_read, key_column, spelt_as, typed_column
from tallystick.serving.arrow_stream import read_stream
from tallystick.serving.problem_details import Problem
from tallystick.tables.column_formats import form_of
from tallystick.tables.encoder import Encoder
from tallystick.tables.features import Features
from tallystick.tables.keys import key_of
from tallystick.tables.lazy_table import Frame
from tallystick.tables.plain_keys import plain_key
from tallystick.tables.vectors import with_vectors

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"
FEW_ROWS = 64
"""Greatest number of rows for which a table is slower than reading row by row."""

Cell = str | int | float | bool | None | list[str | int | float | None]


class ScoreRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The accepted JSON: rows of columns, and optionally the run whose model should score them."""

    rows: list[dict[str, Cell]]
    run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class RequestedRows:
    """Rows to score: their normalised keys, and their own columns, parsed and as sent, if the client sent any."""

    keys: list[bytes]
    own: Features | None
    columns: pl.DataFrame | None = None


_DECODER = msgspec.json.Decoder(ScoreRequest)


def decoded(body: bytes) -> ScoreRequest:
    """Read JSON. Raises Problem."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if not isinstance(error, msgspec.ValidationError):
            reason = "it is malformed or nested too deeply"
        else:
            before, unknown, _ = str(error).partition("unknown field")
            reason = f"{before}a field that is not known" if unknown else str(error)
        raise Problem(status=400, detail=f"the body is not the expected JSON: {reason}; see /openapi.json") from None


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads requests by the columns of this party's own table.

    Args:
        contract, party: decide the keys.
        encoder: of the own columns; None if there are none.
        schema: the own table's types.
        most_rows: the most rows of a request.
        keys_only: why a request may only have key columns; empty if it may have others.
    """

    contract: Contract
    party: PartyFile
    encoder: Encoder | None
    schema: Mapping[str, pl.DataType]
    most_rows: int
    keys_only: str = ""

    @classmethod
    def of(cls, contract: Contract, party: PartyFile, encoder: Encoder | None, frame: Frame) -> "Reader":
        """Build the reader for a party's table."""
        if contract.shares_head:
            keys_only = "a score on shares belongs to the columns that the table had when it was opened, and a row has only one"
        elif contract.serving is None or not contract.serving.feature_party_asks:
            keys_only = ""
        elif (party.serving.way or contract.serving.ways[0]) == "agreed-batch":
            keys_only = "other columns than the table's would show which row of a batch is asked for"
        else:
            keys_only = "the ledger is charged for noise on the table's rows only" if contract.embedding_defenses().noisy else ""
        return cls(
            contract=contract,
            party=party,
            encoder=encoder,
            schema=dict(frame.schema)
            | (encoder.types | dict.fromkeys(encoder.vectors, pl.List(pl.Float64)) if encoder is not None else {}),
            most_rows=party.serving.max_rows,
            keys_only=keys_only,
        )

    @cached_property
    def key_columns(self) -> list[str]:
        """Return the columns of the key, by this party's names."""
        return [self.party.keys[key.name] for key in self.contract.alignment.keys]

    @cached_property
    def own_columns(self) -> list[str]:
        """Return the columns that the own part of the network reads. A vector is one column."""
        return columns_read(self.encoder)

    @property
    def columns(self) -> list[str]:
        """Return the columns that a request may have."""
        return self.key_columns if self.keys_only else [*self.key_columns, *self.own_columns]

    def json(self, request: ScoreRequest) -> RequestedRows:
        """Read the rows of a request. Raises Problem."""
        self._check_count(len(request.rows))
        names = request.rows[0].keys()
        for number, row in enumerate(request.rows):
            if row.keys() != names:
                raise Problem(status=422, detail=f"rows[{number}]: has other columns than rows[0]; give every row the same ones")
        self._check_names(names)
        columns = {name: [row[name] for row in request.rows] for name in names}
        keys, own = {name: columns[name] for name in self.key_columns}, None
        try:
            if self._brings_own(names):
                kinds = {name: self.schema.get(name, pl.String()) for name in self.own_columns}
                for name in self.encoder.vectors if self.encoder is not None else ():
                    if any(isinstance(cell, str) for cell in columns[name]):
                        kinds[name] = pl.String()  # such as [0.5, -1]
                own = pl.DataFrame([typed_column(name, columns[name], kind) for name, kind in kinds.items()])
            if (ids := self._plain_keys(keys)) is None:
                ids = self._keys_of([key_column(name, keys[name], self.schema.get(name, pl.String())) for name in keys])
        except FeatureError as error:
            raise Problem(status=422, detail=str(error)) from None
        return self._asked(ids, own)

    def arrow(self, body: bytes) -> RequestedRows:
        """Read an Arrow IPC stream. Raises Problem."""
        frame = read_stream(body, most_rows=self.most_rows, most_bytes=self.party.serving.max_body_kib << 10)
        self._check_count(frame.height)
        self._check_names(frame.columns)
        own = frame.select(cs.by_name(*self.own_columns)) if self._brings_own(frame.columns) else None
        for name in set(self.key_columns):
            # refuse a key column of another type than the table's; text is accepted for each, because keys are compared as text
            kind, kind_here = frame.schema[name], self.schema.get(name, pl.String())
            forms = {form_of(each, use="categorical") for each in (kind, kind_here)}
            if kind not in (pl.String, pl.Null) and len(forms) > 1 and forms != {"date", "moment"}:
                raise Problem(
                    status=422, detail=f"column {name!r}: has type {kind}, but {kind_here} here; send that type, or text"
                )
        keys = [spelt_as(frame.get_column(name), self.schema.get(name, pl.String())) for name in dict.fromkeys(self.key_columns)]
        return self._asked(self._keys_of(keys), own)

    def _check_count(self, rows: int) -> None:
        if not rows:
            raise Problem(status=422, detail="rows: is empty; ask for at least one row")
        if rows > self.most_rows:
            raise Problem(
                status=413, detail=f"rows: are {rows}, but at most {self.most_rows} are accepted at once; send several requests"
            )

    def _check_names(self, names: Iterable[str]) -> None:
        present, keys, own = set(names), set(self.key_columns), set(self.own_columns)
        if missing := sorted(keys - present):
            raise Problem(status=422, detail=f"column {missing[0]!r} is missing; every row needs its key")
        brought = present - keys
        if brought and self.keys_only:
            raise Problem(status=422, detail=f"there is another column than the key; send only the key: {self.keys_only}")
        if brought - own:
            known_names = ", ".join(sorted(self.columns))
            raise Problem(status=422, detail=f"there is a column that is not known here; known are {known_names}")
        if brought and (missing := sorted(own - present)):
            raise Problem(
                status=422,
                detail=f"column {missing[0]!r} is missing; give all own columns (null where one is not known), or the key alone "
                "to have them looked up",
            )

    def _brings_own(self, names: Collection[str]) -> bool:
        return self.encoder is not None and len(names) > len(set(self.key_columns))

    def _asked(self, keys: list[bytes], frame: pl.DataFrame | None) -> RequestedRows:
        for number, key in enumerate(keys):
            if problem := key_problem(key):
                raise Problem(status=422, detail=f"rows[{number}]: {problem}; send the key as the table has it")
        if self.encoder is None or frame is None:
            return RequestedRows(keys=keys, own=None)
        try:
            numbers = with_vectors(frame, list(self.encoder.vectors), widths=self.encoder.vectors)
            assert isinstance(numbers, pl.DataFrame)
            return RequestedRows(keys=keys, own=self.encoder.encode(numbers).unpacked(), columns=numbers)
        except DataError as error:
            raise Problem(status=422, detail=f"the own columns cannot be read: {str(error).partition(';')[0]}") from None

    def _plain_keys(self, columns: Mapping[str, Sequence[Cell]]) -> list[bytes] | None:
        """Return the keys of a few rows without building a table, which would take most of a request's time. Return None if a
        key needs a table.
        """
        if any(len(cells) > FEW_ROWS for cells in columns.values()):
            return None
        for name, cells in columns.items():
            kind = self.schema.get(name, pl.String())
            is_number = kind.is_numeric()
            if not is_number and not isinstance(kind, pl.String | pl.Categorical | pl.Enum):
                return None
            if is_number and not kind.is_integer() and any(type(cell) is str for cell in cells):
                return None  # 1.50 is 1.5
            if any(type(cell) is not str and not (is_number and type(cell) is int) for cell in cells):
                return None
        steps = [key.normalise for key in self.contract.alignment.keys]
        keys = [plain_key(cells, steps) for cells in zip(*(columns[name] for name in self.key_columns), strict=True)]
        present_keys = [key for key in keys if key is not None]
        return present_keys if len(present_keys) == len(keys) else None

    def _keys_of(self, columns: Sequence[pl.Series]) -> list[bytes]:
        """Return the keys of key columns, read as in any table. Raises Problem."""
        try:
            key = key_of(pl.DataFrame(columns), columns=self.party.keys, alignment=self.contract.alignment)
        except DataError as error:
            raise Problem(status=422, detail=str(error)) from None
        if key.null_count():
            raise Problem(
                status=422, detail=f"rows[{key.is_null().arg_max()}]: its key is null or empty; every row needs its key"
            )
        return [text.encode() for text in key.to_list()]
