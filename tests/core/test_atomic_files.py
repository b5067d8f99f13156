"""Files that are written whole or not at all: interrupted, without room, beside dead and living writers."""

from __future__ import annotations

import ast
import os
import platform
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from full_disks import files_up_to

import ampbridge as amp
from ampbridge import cli
from ampbridge.checkpoints import atomic_files
from ampbridge_port import rewrite

posix = pytest.mark.skipif(os.name != "posix", reason="modes, pipes and limits of POSIX")

HOST = re.sub(r"\W", "", platform.node())
TOKEN = "0123456789abcdef"

SCRIPT = "import torch\nscaler = torch.amp.GradScaler('cuda')\n"


class Interrupted(BaseException):
    pass


def dead_process():
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_the_parts_come_one_after_the_other(tmp_path):
    atomic_files.write(tmp_path / "a", b"one ", memoryview(b"two"), b"")
    assert (tmp_path / "a").read_bytes() == b"one two"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("before", [None, b"old"])
@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
@pytest.mark.parametrize("failure", [Interrupted, OSError])
def test_what_fails_leaves_what_was_there(tmp_path, monkeypatch, before, call, failure):
    place = tmp_path / "a"
    if before is not None:
        place.write_bytes(before)

    def failing(*arguments, **named):
        raise failure

    with monkeypatch.context() as patch, pytest.raises(failure):
        patch.setattr(os, call, failing)
        atomic_files.write(place, b"new")
    assert (place.read_bytes() if place.exists() else None) == before
    assert os.listdir(tmp_path) == ([] if before is None else ["a"])


@posix
def test_bytes_are_flushed_before_the_rename_and_the_folder_after_it(tmp_path, monkeypatch):
    """So that a machine that loses its power has the old file or the new one."""
    done = []

    def flush(descriptor):
        done.append(stat.S_IFMT(os.fstat(descriptor).st_mode))
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            assert os.fstat(descriptor).st_size == 3

    def replace(source, target, genuine=os.replace):
        done.append("renamed")
        genuine(source, target)

    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(os, "replace", replace)
    atomic_files.write(tmp_path / "a", b"new")
    assert done == [stat.S_IFREG, "renamed", stat.S_IFDIR]


@posix
def test_without_room_the_bytes_that_are_needed_are_told(tmp_path):
    place = tmp_path / "a"
    place.write_bytes(b"old")
    with files_up_to(4096), pytest.raises(OSError, match=r"and 100,001 bytes are needed: .*/a'"):
        atomic_files.write(place, b"x" * 100_000, b"y")
    assert place.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@posix
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_the_umask_gives_a_new_file_its_mode_and_an_old_one_keeps_its_own(tmp_path, mask):
    (tmp_path / "old").write_bytes(b"")
    (tmp_path / "old").chmod(0o751)
    before = os.umask(mask)
    try:
        for name in ("new", "old"):
            atomic_files.write(tmp_path / name, b"text")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "old")]
    assert modes == [0o666 & ~mask, 0o751]


@posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root alone may")
def test_a_file_keeps_its_owner(tmp_path):
    place = tmp_path / "a"
    place.write_bytes(b"old")
    os.chown(place, 1234, 1235)
    atomic_files.write(place, b"new")
    assert (place.stat().st_uid, place.stat().st_gid) == (1234, 1235)


@posix
def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path, monkeypatch):
    place = tmp_path / "a"
    place.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda file, mode: False)  # root may write everything
    with pytest.raises(PermissionError):
        atomic_files.write(place, b"new")
    assert place.read_bytes() == b"old"


def test_what_dead_processes_left_is_removed_and_nothing_else(tmp_path):
    dead, living = dead_process(), os.getpid()
    removed = f".ampbridge-{HOST}-{dead}-{TOKEN}.partial"
    kept = [
        f".ampbridge-{HOST}-{living}-{TOKEN}.partial",
        f".ampbridge-{HOST}x-{dead}-{TOKEN}.partial",  # another machine's
        f".ampbridge-{HOST}-{dead}-{TOKEN}.partial.txt",
        f"{TOKEN}.partial",
        "movie.mkv.partial",
    ]
    for name in (removed, *kept):
        (tmp_path / name).touch()
    (tmp_path / f".ampbridge-{HOST}-{dead}-{TOKEN[::-1]}.partial").mkdir()
    kept.append(f".ampbridge-{HOST}-{dead}-{TOKEN[::-1]}.partial")
    atomic_files.write(tmp_path / "a", b"")
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "a"])


@posix
def test_a_killed_writer_s_file_is_removed_by_the_next_one(tmp_path):
    code = (
        "import os, signal, sys; from ampbridge.checkpoints import atomic_files; "
        "os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL); "
        "atomic_files.write(sys.argv[1], b'new')"
    )
    (tmp_path / "a").write_bytes(b"old")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=False)
    (left,) = set(os.listdir(tmp_path)) - {"a"}
    assert atomic_files.is_temporary(left)
    assert (tmp_path / "a").read_bytes() == b"old"
    atomic_files.write(tmp_path / "b", b"")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@posix
def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "there" / "a")
    atomic_files.write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "a").read_bytes() == b"new"


@posix
def test_a_device_stays_one(tmp_path):
    atomic_files.write("/dev/null", b"text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    if os.path.exists("/dev/full"):
        with pytest.raises(OSError, match="and 4 bytes are needed"):
            atomic_files.write("/dev/full", b"text")


@posix
def test_a_pipe_and_a_device_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for special in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(OSError, match="a pipe or a device, not a file"):
            atomic_files.read(special)


@pytest.mark.parametrize("command", [["port"], ["compare"]])
@pytest.mark.parametrize("name", ["x.py", "x.json", "x.yaml", "x.toml"])
def test_a_huge_file_is_not_read_into_memory(tmp_path, capsys, command, name):
    place = tmp_path / name
    place.touch()
    os.truncate(place, 8 * 2**30)  # no byte of it is stored
    assert cli.main([*command, str(place)]) == 1
    assert "It has 8,589,934,592 bytes, more than 67,108,864" in capsys.readouterr().err


# -- what is written by it


@posix
@pytest.mark.parametrize("kind", ["a rewritten script", "a recipe"])
def test_a_full_disk_leaves_the_user_s_file(tmp_path, kind):
    place = tmp_path / "a.py"
    place.write_text(SCRIPT + "x = 1\n" * 500)
    before = place.read_bytes()
    save, error = {
        "a rewritten script": (rewrite(place).save, amp.SourceError),
        "a recipe": (lambda: amp.Recipe().save(place), amp.RecipeError),
    }[kind]
    with files_up_to(16), pytest.raises(error, match="bytes are needed"):
        save()
    assert place.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.py"]
    save()
    assert place.read_bytes() != before


@posix
def test_a_recipe_is_not_read_from_a_device():
    with pytest.raises(amp.RecipeError, match="a pipe or a device"):
        amp.Recipe.load("/dev/zero")


SOURCES = [
    path
    for part in ("ampbridge", "backends", "tools")
    for path in (Path(__file__).parents[2] / part).rglob("*.py")
]


def writes(node):
    """Whether a node of a syntax tree opens a file to write to it, or writes one."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("write_text", "write_bytes")
    named = getattr(node, "func", None)
    if not isinstance(node, ast.Call) or getattr(named, "id", getattr(named, "attr", "")) != "open":
        return False
    words = [*node.args, *(each.value for each in node.keywords)]
    modes = [word.value for word in words if isinstance(word, ast.Constant)]
    return any(set(str(mode)) & set("wax+") and set(str(mode)) <= set("wax+bt") for mode in modes)


def test_nothing_else_writes_files():
    found = {
        path.name
        for path in SOURCES
        if path.parent.name != "testing"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if writes(node)
    }
    in_folders_of_their_own = {
        "processes.py",
        "runs.py",
    }  # of compare, removed with what is in them
    assert found == {"atomic_files.py", "locking.py"} | in_folders_of_their_own
