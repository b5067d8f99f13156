"""What float32 means: a setting of the process, under interrupts and threads."""

import signal
from contextlib import suppress

import pytest
from interrupts import bytecodes, ctrl_c, interrupt, without_locks

import ampbridge as amp
from ampbridge.adapters.process_setting import Float32Setting

IEEE, TF32 = (amp.Policy("O0", float32=each) for each in ("ieee", "tf32"))


@pytest.fixture
def flags():
    """Two flags of a framework, as the user has set them."""
    return {"products": "tf32", "convolutions": "ieee"}


@pytest.fixture
def setting(flags):
    def write(precision):
        for name in flags:
            flags[name] = precision

    return Float32Setting("toy", flags.copy, write, flags.update, lambda: "")


def test_an_interrupt_at_any_bytecode_leaves_what_was_there(setting, flags):
    before, handler = dict(flags), signal.getsignal(signal.SIGINT)

    def nested():
        with setting.during(IEEE), setting.during(TF32):
            assert set(flags.values()) == {"tf32"}

    with without_locks():
        points = bytecodes(nested)
        for at in points:
            interrupt(nested, at, ctrl_c)
            assert flags == before, at
            assert signal.getsignal(signal.SIGINT) is handler, at
            assert not setting._open, at
    assert len(points) > 50


def test_ctrl_c_waits_while_the_setting_is_read(setting, flags):
    """To read may take more than one call, and leave something else meanwhile."""
    before, read = dict(flags), setting._read

    def interrupted():
        present = read()
        flags.clear()
        signal.raise_signal(signal.SIGINT)
        flags.update(present)
        return present

    setting._read = interrupted
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), setting.during(IEEE):
            pass
    finally:
        signal.signal(signal.SIGINT, handler)
    assert flags == before


@pytest.mark.parametrize("first, decides", [(0, "ieee"), (1, "ieee"), (2, "tf32")])
def test_blocks_may_be_left_in_any_order(setting, flags, first, decides):
    before, blocks = dict(flags), [setting.during(each) for each in (IEEE, TF32, IEEE)]
    for block in blocks:
        block.__enter__()
    blocks.pop(first).__exit__(None, None, None)
    assert set(flags.values()) == {decides}
    for block in blocks:
        block.__exit__(None, None, None)
    assert flags == before


def test_a_block_that_was_cut_off_ends_with_its_frame(setting, flags):
    before = dict(flags)
    with suppress(ZeroDivisionError):
        block = setting.during(IEEE)
        block.__enter__()
        assert set(flags.values()) == {"ieee"}
        del block
        raise ZeroDivisionError
    assert flags == before
