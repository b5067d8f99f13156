"""A file as a lock: between threads, and against the one that holds it."""

from __future__ import annotations

import threading

import pytest

import ampbridge as amp
from ampbridge.checkpoints import checkpoint, locking
from ampbridge.checkpoints.checkpoint import LOCK_FILE, Checkpoint
from ampbridge.checkpoints.locking import locked

pytestmark = pytest.mark.skipif(locking.sys.platform == "win32", reason="there are no locks")


def test_it_exists_while_it_is_held(tmp_path):
    with locked(tmp_path / "lock"):
        assert (tmp_path / "lock").exists()
    with pytest.raises(KeyError), locked(tmp_path / "lock"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_one_that_was_left_is_taken(tmp_path):
    (tmp_path / "lock").touch()
    with locked(tmp_path / "lock"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_removed_meanwhile_is_no_lock(tmp_path, monkeypatch):
    """Its holder removes it, while another that has opened it waits."""
    genuine, calls = locking._lock, []

    def removed_before(descriptor):
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / "lock").unlink()
        return genuine(descriptor)

    monkeypatch.setattr(locking, "_lock", removed_before)
    with locked(tmp_path / "lock"):
        assert (tmp_path / "lock").exists()
    assert len(calls) == 2


def test_one_thread_at_a_time(tmp_path):
    inside, most = [0], [0]

    def count():
        for _ in range(50):
            with locked(tmp_path / "lock"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (inside, most) == ([0], [1])
    assert list(tmp_path.iterdir()) == []


def saved_elsewhere(folder):
    """A save of another thread, and what it raised."""
    raised = []

    def save():
        try:
            checkpoint.write(folder, Checkpoint({"by": "another"}, {}))
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=save)
    thread.start()
    thread.join()
    return raised


def test_a_second_saver_says_so_when_it_has_waited_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(locking, "LONGEST_WAIT", 0.0)
    with locked(tmp_path / LOCK_FILE):
        (error,) = saved_elsewhere(tmp_path)
    assert isinstance(error, amp.WriteError)
    assert str(error) == (
        f"Cannot save to {str(tmp_path)!r}: Another process is writing it.\n"
        "Hint: step.save(path) on a disk with room, to a folder of its own."
    )
    assert saved_elsewhere(tmp_path) == []


def test_a_thread_does_not_wait_for_itself(tmp_path):
    """As a signal handler would that saves while a save is under way."""
    with (
        locked(tmp_path / LOCK_FILE),
        pytest.raises(amp.WriteError, match="It is being written by this thread"),
    ):
        checkpoint.write(tmp_path, Checkpoint({}, {}))
