"""Look up rows in Redis, where a prefix and the normalised key lead to a JSON object of columns. Shapes: B keys."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import polars as pl

from tallystick.config.serving import Redis
from tallystick.errors import ConfigError, FeatureError, StoreError
from tallystick.scoring.stores.cells import columns_read, frame_of
from tallystick.scoring.stores.store import StoredRows
from tallystick.tables.encoder import Encoder

CALL_S = 1.0


class RedisStore:
    """A store that asks a Redis server, one call for all keys.

    Args:
        config: address of the server.
        encoder: encoder of the columns; None if there are no columns.
        schema: types of the table on which the encoder was fitted.

    Raises ConfigError if the client library is not installed, or the address is invalid.
    """

    blocks = True

    def __init__(self, config: Redis, encoder: Encoder | None, schema: Mapping[str, pl.DataType]) -> None:
        try:
            import redis
        except ImportError:
            raise ConfigError("serving.store: Redis' client is not installed; run: pip install 'tallystick[redis]'") from None
        self._errors, self._prefix = redis.RedisError, config.prefix.encode()
        self._encoder, self._schema, self._columns = encoder, schema, columns_read(encoder)
        password = config.password.read("serving.store.password") if config.password is not None else None
        try:
            self._client = redis.Redis.from_url(
                config.url, password=password, socket_timeout=CALL_S, socket_connect_timeout=CALL_S
            )
        except ValueError:
            raise ConfigError('serving.store.url: must be "redis://host:port/database", rediss:// or unix://') from None

    def find(self, keys: Sequence[bytes]) -> StoredRows:
        """Look up keys. Raises StoreError."""
        if not keys:
            return self._found([])
        try:
            return self._found(self._client.mget([self._prefix + key for key in keys]))
        except self._errors as error:
            raise StoreError(f"serving.store: Redis does not answer ({type(error).__name__}); check that it is running") from None

    def _found(self, texts: Sequence[bytes | str | None]) -> StoredRows:
        is_found_B = np.array([text is not None for text in texts], dtype=np.bool_)
        if self._encoder is None:
            return StoredRows(is_found_B=is_found_B, features_E=None)
        try:
            rows = [msgspec.json.decode(text, type=dict[str, object]) for text in texts if text is not None]
            frame = frame_of(rows, self._columns, self._schema)
            return StoredRows(is_found_B=is_found_B, features_E=self._encoder.encode(frame).unpacked())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise StoreError("serving.store: a value in Redis is not a JSON object of columns") from None
        except FeatureError as error:
            raise StoreError(f"serving.store: a row in Redis does not fit the trained columns: {error}") from None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
