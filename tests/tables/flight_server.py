"""A Flight SQL server on loopback that prepares statements, binds their parameters and runs them in DuckDB."""

import threading

import duckdb
import polars as pl
import pyarrow as pa
from pyarrow import flight

TOKEN = "Bearer a-token-of-some-length"


def fields(content: bytes) -> dict[int, bytes]:
    """Return the fields of a protocol buffer whose values are all strings."""
    found = {}
    while content:
        number, length, content = content[0] >> 3, content[1], content[2:]
        if length > 127:
            length, content = length - 128 + (content[0] << 7), content[1:]
        found[number], content = content[:length], content[length:]
    return found


def field(number: int, value: bytes) -> bytes:
    """Write a field of a protocol buffer."""
    length = len(value)
    return bytes([number << 3 | 2]) + (bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])) + value


class PreparingServer(flight.FlightServerBase):
    """A server of one table ``rows``. A statement's handle is its SQL; a row of text is bound to it."""

    def __init__(self, table: pl.DataFrame, port: int = 0) -> None:
        super().__init__(f"grpc://127.0.0.1:{port}", middleware={"token": _Door()})
        self._database = duckdb.connect()
        self._database.register("rows", table.to_arrow(compat_level=pl.CompatLevel.oldest()))
        self._bound: dict[bytes, list[str]] = {}
        self._lock = threading.Lock()

    def do_action(self, _context, action):
        if action.type != "CreatePreparedStatement":
            return []
        query = fields(fields(action.body.to_pybytes())[2])[1]
        name = b"type.googleapis.com/arrow.flight.protocol.sql.ActionCreatePreparedStatementResult"
        return [flight.Result(pa.py_buffer(field(1, name) + field(2, field(1, query))))]

    def do_put(self, _context, descriptor, reader, _writer):
        handle = fields(fields(descriptor.command)[2])[1]
        self._bound[handle] = [column[0].as_py() for column in reader.read_all().columns]

    def get_flight_info(self, _context, descriptor):
        handle = fields(fields(descriptor.command)[2])[1]
        rows = self._run(handle)
        return flight.FlightInfo(rows.schema, descriptor, [flight.FlightEndpoint(handle, [])], rows.num_rows, -1)

    def do_get(self, _context, ticket):
        return flight.RecordBatchStream(self._run(ticket.ticket))

    def _run(self, handle):
        with self._lock:
            return self._database.sql(handle.decode(), params=self._bound[handle]).to_arrow_table()


class _Door(flight.ServerMiddlewareFactory):
    def start_call(self, _info, headers):
        if headers.get("authorization") != [TOKEN]:
            raise flight.FlightUnauthenticatedError("who are you?")
