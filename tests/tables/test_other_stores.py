"""Tables at gs:// and abfs://, over HTTP to local servers of these protocols, where such are installed.

The one of Google's protocol serves one connection at a time, and Arrow may hold several: once in a while it waits for ever.
"""

import io
import re
import shutil
import socket
import subprocess
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from pyarrow.fs import AzureFileSystem, GcsFileSystem
from tiny import within

from tallystick.config.table import TableConfig
from tallystick.errors import DataError
from tallystick.network.addresses import free_port
from tallystick.reading import validate
from tallystick.tables.table import read_table

pytestmark = pytest.mark.long
ROWS = pl.DataFrame({"id": ["007", "008", "010"], "x": [1.5, 2.5, None], "n": [1, 2, 3]})
# Azurite's well-known account, which is the same everywhere.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def parquet(frame):
    content = io.BytesIO()
    frame.write_parquet(content)
    return content.getvalue()


def fill(files):
    tables = {"one.parquet": parquet(ROWS), "one.csv": ROWS.write_csv().encode()}
    tables |= {f"parts/part-{number}.parquet": parquet(ROWS[number : number + 1]) for number in range(3)}
    for key, content in tables.items():
        with files.open_output_stream(f"rows/{key}") as stream:
            stream.write(content)


@contextmanager
def running(command, *arguments, port, folder, install):
    """Start a server in a separate process, and wait until it listens; skip if it is not installed."""
    if (found := shutil.which(command)) is None:
        pytest.skip(f"no local server of this protocol ({install})")
    with subprocess.Popen([found, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            assert within(60, lambda: _listens(port))
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def gs(tmp_path_factory):
    """Return how a party file reaches a server of Google's protocol with a bucket ``rows``."""
    port, folder = free_port(), tmp_path_factory.mktemp("google")
    arguments = ["start", "--in-memory", "--host", "127.0.0.1", "--port", str(port), "--default-bucket", "rows"]
    with running(
        "gcp-storage-emulator", *arguments, port=port, folder=folder, install="pip install gcp-storage-emulator"
    ) as host:
        fill(GcsFileSystem(anonymous=True, scheme="http", endpoint_override=host, retry_time_limit=timedelta(seconds=20)))
        yield {"endpoint": f"http://{host}", "anonymous": True}


@pytest.fixture(scope="module")
def abfs(tmp_path_factory):
    """Return how a party file reaches a server of Azure's protocol with a container ``rows``."""
    port, folder = free_port(), tmp_path_factory.mktemp("azure")
    arguments = ["--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with running("azurite-blob", *arguments, port=port, folder=folder, install="npm install azurite") as host:
        schemes = {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
        files = AzureFileSystem(
            ACCOUNT, account_key=ACCOUNT_KEY, blob_storage_authority=host, dfs_storage_authority=host, **schemes
        )
        files.create_dir("rows")
        fill(files)
        (folder / "key").write_text(ACCOUNT_KEY)
        yield {"endpoint": f"http://{host}", "account": ACCOUNT, "secret_key": {"file": str(folder / "key")}}


def _listens(port):
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(params=["gs", "abfs"])
def store(request):
    return request.param, request.getfixturevalue(request.param)


def read(address, store, *, text=()):
    config = validate(TableConfig, {"path": address, "store": store}, source="table", context={"folder": Path("/")})
    return read_table(config, text=text).collect()


@pytest.mark.parametrize("path", ["one.parquet", "one.csv", "parts", "parts/", "parts/part-*.parquet"])
def test_a_table_in_a_store_is_the_table_in_a_file(store, path):
    scheme, reached = store
    assert read(f"{scheme}://rows/{path}", reached, text=("id",)).equals(ROWS)


@pytest.mark.parametrize("address", ["rows/none.parquet", "rows/none/", "nowhere/one.csv"])
def test_what_is_not_there_is_named_by_its_address(store, address):
    scheme, reached = store
    with pytest.raises(DataError, match=re.escape(f"{scheme}://{address}: ")) as caught:
        read(f"{scheme}://{address}", reached)
    assert len(str(caught.value).splitlines()) == 1


def test_a_wrong_key_ends_in_one_line_that_does_not_hold_it(abfs, tmp_path):
    (tmp_path / "key").write_text("aHVudGVyMg==")
    with pytest.raises(DataError, match=r"abfs://rows/one\.csv: cannot be read: ") as caught:
        read("abfs://rows/one.csv", abfs | {"secret_key": {"file": str(tmp_path / "key")}})
    assert "aHVudGVyMg" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
