"""Files that grow by lines: added lines are read again, also after a kill; in an encrypted file every change or move is
detected.
"""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.encryption import FolderKey
from tallystick.errors import DamagedFile, StorageError
from tallystick.run_folder.line_file import LineFile, read_lines
from tallystick.storage import Origin

KEY = FolderKey(bytes(range(32)))


def origin(folder, key=KEY):
    return Origin(folder=folder, run="00" * 8, party="bank", contract="c" * 64, key=key)


def grown(path, lines, *, key=KEY):
    """Add these lines to the file, and return what it had before."""
    before = []
    file = LineFile(path, origin=origin(path.parent, key), each=before.append)
    for line in lines:
        file.append(line)
    file.close()
    return before


def plain(path, *, key=KEY):
    return list(read_lines(path, origin=origin(path.parent, key)))


@pytest.mark.parametrize("key", [None, KEY])
@given(
    parts=st.lists(st.lists(st.text().map(lambda text: repr(text).encode()), max_size=4), max_size=4), tail=st.binary(max_size=9)
)
def test_what_was_added_comes_back_across_restarts_and_a_part_of_a_line_is_cut_off(tmp_path_factory, key, parts, tail):
    path, so_far = tmp_path_factory.mktemp("lines") / "some.jsonl", []
    for lines in parts:
        assert grown(path, lines, key=key) == so_far
        so_far += lines
        with path.open("ab") as file:
            file.write(tail.replace(b"\n", b""))
        assert plain(path, key=key) == so_far


def test_encrypted_lines_show_nothing_and_none_can_be_changed_moved_left_out_or_put_in(tmp_path):
    path = tmp_path / "some.jsonl"
    grown(path, [b"customer one", b"customer two", b"customer three"])
    one, two, three = path.read_bytes().splitlines(keepends=True)
    assert b"customer" not in path.read_bytes()
    assert path.stat().st_mode & 0o077 == 0
    for lines in ([two, one, three], [one, three], [one, one, two], [b'{"rows":[]}\n', two], [one, two[:-5] + b"AAA=\n"]):
        path.write_bytes(b"".join(lines))
        with pytest.raises(DamagedFile, match=r"line [12]: "):
            plain(path)
        with pytest.raises(DamagedFile, match=r"line [12]: "):
            grown(path, [])
    path.write_bytes(one + two + three)
    path.rename(tmp_path / "other.jsonl")
    with pytest.raises(DamagedFile, match=r"line 1: it was changed after it was written, or is another file"):
        plain(tmp_path / "other.jsonl")


def test_a_line_that_the_disk_takes_in_part_is_taken_back(tmp_path, monkeypatch):
    path, write = tmp_path / "some.jsonl", os.write
    file = LineFile(path, origin=origin(tmp_path, None), each=lambda _: None)
    file.append(b"first")
    monkeypatch.setattr(os, "write", lambda handle, content: write(handle, content[:3]))
    with pytest.raises(StorageError, match="free some space"):
        file.append(b"second")
    monkeypatch.setattr(os, "write", write)
    file.append(b"third")
    file.close()
    assert plain(path, key=None) == [b"first", b"third"]
