"""Ctrl-C while something takes effect: it waits for the end."""

import signal
import threading

import pytest

from ampbridge.adapters.interrupts import Whole, hold_interrupts

pytestmark = pytest.mark.skipif(not hasattr(signal, "raise_signal"), reason="needs raise_signal")


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_it_ends_a_block_at_once_where_nothing_is_held():
    done = []
    with pytest.raises(KeyboardInterrupt), Whole():
        interrupt()
        done.append(1)
    assert done == []


def test_it_comes_at_the_end_of_what_is_whole():
    before, done = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt):
        with Whole():
            hold_interrupts()
            interrupt()
            done.append(1)
        done.append(2)
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_one_does_not_wait():
    before, done = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), Whole():
        hold_interrupts()
        interrupt()
        done.append(1)
        interrupt()
        done.append(2)
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_block_within_another_hands_it_on():
    done = []
    with pytest.raises(KeyboardInterrupt), Whole():
        hold_interrupts()
        with Whole():
            hold_interrupts()
            interrupt()
        done.append(1)
    assert done == [1]


def test_a_handler_of_the_user_s_is_told():
    told = []
    before = signal.signal(signal.SIGINT, lambda *_: told.append(len(told)))
    try:
        with Whole():
            hold_interrupts()
            interrupt()
            assert told == []
        assert told == [0]
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_is_ignored_stays_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Whole():
            hold_interrupts()
            interrupt()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_hold_nothing():
    seen = []

    def work():
        with Whole():
            hold_interrupts()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
