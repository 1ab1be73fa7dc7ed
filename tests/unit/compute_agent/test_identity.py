"""nodes.json: what is kept, how, and what an unusable one comes to."""

import json
import logging
import os
import pathlib

import pytest

from compute_agent import identity

UUID = "7d9f9f2e-5a4a-4d15-8f9f-5a0b3bb0a001"
KEPT = identity.Identity("web1", {"n1": UUID})


def test_what_is_kept_is_read(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "not" / "yet"
    assert identity.IdentityFile(folder).read() is None
    identity.IdentityFile(folder).keep(KEPT)
    assert identity.IdentityFile(folder).read() == KEPT
    assert os.listdir(folder) == ["nodes.json"]
    assert (folder / "nodes.json").stat().st_mode & 0o777 == 0o600
    assert json.loads((folder / "nodes.json").read_text()) == {
        "host": "web1",
        "nodes": [{"name": "n1", "uuid": UUID}],
    }


def test_nothing_new_writes_nothing(tmp_path: pathlib.Path) -> None:
    made = identity.IdentityFile(tmp_path)
    made.keep(KEPT)
    inode = made.path.stat().st_ino
    made.keep(identity.Identity("web1", {"n1": UUID}))
    again = identity.IdentityFile(tmp_path)
    again.read()
    again.keep(KEPT)
    assert made.path.stat().st_ino == inode
    made.keep(identity.Identity("web2", {"n1": UUID}))
    assert made.path.stat().st_ino != inode


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe{", "not JSON"),
        (b'{"host": "web1"', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no list of nodes"),
        (b'{"host": "web1", "nodes": {}}', "no list of nodes"),
        (b'{"host": "web1", "nodes": [7]}', "not an object"),
        (b'{"host": "web1", "nodes": [{"name": "n1"}]}', "UUID"),
        (b'{"host": "a b", "nodes": []}', "character ' '"),
        (b'{"nodes": []}', "host: is not text"),
        (b'{"host": "web1", "nodes": [{"name": "", "uuid": "7"}]}', "name: is empty"),
    ],
)
def test_garbage_is_one_line_and_written_anew(
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
    reason: str,
) -> None:
    (tmp_path / "nodes.json").write_bytes(content)
    made = identity.IdentityFile(tmp_path)
    assert made.read() is None
    (record,) = caplog.records
    assert str(tmp_path / "nodes.json") in record.getMessage()
    assert reason in record.getMessage()
    assert "restore the file" in record.getMessage()
    assert "\n" not in record.getMessage()
    made.keep(KEPT)
    assert identity.IdentityFile(tmp_path).read() == KEPT


def test_a_file_that_says_more_is_understood(tmp_path: pathlib.Path) -> None:
    nodes = [{"name": "n1", "uuid": UUID.upper(), "colour": "red"}]
    content = {"host": "web1", "nodes": nodes, "rack": 7}
    (tmp_path / "nodes.json").write_text(json.dumps(content))
    assert identity.IdentityFile(tmp_path).read() == KEPT


def test_a_disk_that_fails_is_said_when_it_begins_and_ends(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "state"
    folder.write_text("in the way")
    made = identity.IdentityFile(folder)
    assert made.read() is None  # "not a directory" is said
    caplog.clear()
    for _ in range(3):
        made.keep(KEPT)
    (record,) = caplog.records
    assert str(folder) in record.getMessage()
    assert "goes on without it" in record.getMessage()
    folder.unlink()
    made.keep(KEPT)
    made.keep(KEPT)
    assert [r.getMessage() for r in caplog.records[1:]] == [
        f"{folder}/nodes.json is written again"
    ]
    assert identity.IdentityFile(folder).read() == KEPT


def test_a_crash_leaves_the_old_file_and_no_other(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = identity.IdentityFile(tmp_path)
    made.keep(KEPT)
    leftover = tmp_path / f".nodes.json.{os.getpid()}"
    leftover.write_text("half of")

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    made.keep(identity.Identity("web2", {}))
    assert identity.IdentityFile(tmp_path).read() == KEPT
    assert os.listdir(tmp_path) == ["nodes.json"]
