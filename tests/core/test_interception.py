"""Attribute replacements: there while a region is open, gone afterwards, seen by nobody else."""

import threading
from contextvars import copy_context
from types import ModuleType, SimpleNamespace

import pytest

from ampbridge.adapters.interception import INHERITED, Interception, Site, looked_up_in


def original():
    return "original"


@pytest.fixture
def module():
    return SimpleNamespace(op=original)


@pytest.fixture
def patch(module):
    """``module.op`` says which state is active, while a region is open."""

    def replacement():
        state = interception.active.get()
        return original() if state is None else state

    interception = Interception("test", lambda: [Site(module, "op", original, replacement)])
    return interception


def test_the_innermost_region_is_active(module, patch):
    with patch.region("outer"):
        with patch.region("inner"):
            assert module.op() == "inner"
        with patch.region(None):
            assert module.op() == "original"
        with patch.paused("paused"):
            assert module.op() == "paused"
        assert module.op() == "outer"


def test_the_original_object_is_back_afterwards(module, patch):
    with patch.region("a"), patch.region("b"):
        assert module.op is not original
    assert module.op is original
    assert patch.active.get() is None


def test_what_was_inherited_is_inherited_again():
    class Parent:
        op = "original"

    class Child(Parent):
        pass

    site = Site(Child, "op", INHERITED, "replaced")
    with Interception("test", lambda: [site]).region("a"):
        assert (Parent.op, Child.op) == ("original", "replaced")
    assert Child.op == "original"
    assert "op" not in vars(Child)


def test_an_exception_restores_everything(module, patch):
    with pytest.raises(KeyError), patch.region("outer"):
        with pytest.raises(ValueError), patch.region("inner"):
            raise ValueError
        assert module.op() == "outer"
        raise KeyError
    assert module.op is original
    assert patch.active.get() is None


def test_other_threads_pass_straight_through(module, patch):
    seen = []
    with patch.region("mine"):
        thread = threading.Thread(target=lambda: seen.append(module.op()))
        thread.start()
        thread.join()
    assert seen == ["original"]


def test_threads_keep_their_regions_apart_and_the_last_one_restores(module, patch):
    inside, seen = threading.Barrier(8), {}

    def work(name):
        with patch.region(name):
            inside.wait()  # all eight are open at once
            seen[name] = {module.op() for _ in range(200)}
            inside.wait()

    threads = [threading.Thread(target=work, args=(f"state {i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {f"state {i}": {f"state {i}"} for i in range(8)}
    assert module.op is original


def test_a_replacement_on_top_of_ours_is_left_alone(module, patch):
    def theirs():
        return "theirs"

    with patch.region("mine"):
        module.op = theirs
    assert module.op is theirs


def test_a_name_that_is_missing_leaves_nothing_half_replaced(module):
    def find_sites():
        raise LookupError("moved")

    interception = Interception("test", find_sites)
    for _ in range(2):
        with pytest.raises(LookupError), interception.region("mine"):
            pass
    assert module.op is original
    assert interception.active.get() is None


def test_a_region_that_is_gone_without_being_closed_takes_its_replacements_with_it(module, patch):
    region = patch.region("mine")
    region.__enter__()
    assert module.op() == "mine"
    del region
    assert module.op is original
    assert patch.active.get() is None


def test_a_region_that_is_gone_leaves_the_others_as_they_are(module, patch):
    with patch.region("outer"):
        inner = patch.region("inner")
        inner.__enter__()
        del inner
        assert module.op() == "outer"
    assert module.op is original


def test_regions_may_be_closed_in_another_order(module, patch):
    a, b = patch.region("a"), patch.region("b")
    a.__enter__(), b.__enter__()
    a.__exit__()
    assert module.op() == "b"
    b.__exit__()
    assert module.op is original
    assert patch.active.get() is None


def test_a_task_that_outlives_its_region_is_outside_of_it(module, patch):
    with patch.region("mine"):
        inherited = copy_context()
    with patch.region("other"):
        assert inherited.run(module.op) == "original"


@pytest.fixture
def looked_up():
    """A real module of two ops, and an interception of what is looked up in it."""
    module = ModuleType("looked_up")
    module.op, module.other = original, "other"

    def replacement():
        state = interception.active.get()
        return original() if state is None else state

    site = looked_up_in(module, {"op": (original, replacement)})
    interception = Interception("test", lambda: [site])
    return module, interception


def is_untouched(module):
    return type(module) is ModuleType and vars(module)["op"] is module.op is original


def test_what_is_looked_up_in_a_module_is_replaced_and_comes_back(looked_up):
    module, patch = looked_up
    with patch.region("mine"):
        assert (module.op(), module.other) == ("mine", "other")
        thread = threading.Thread(target=lambda: seen.append(module.op()))
        seen = []
        thread.start()
        thread.join()
        assert seen == ["original"]
    assert is_untouched(module)
    with pytest.raises(AttributeError, match="missing"), patch.region("mine"):
        getattr(module, "missing")  # noqa: B009
    assert is_untouched(module)


def test_a_lookup_of_a_region_that_is_gone_finds_the_original(looked_up):
    module, patch = looked_up
    region = patch.region("mine")
    region.__enter__()
    assert module.op() == "mine"
    del region
    assert is_untouched(module)


@pytest.mark.parametrize("while_open", [True, False])
def test_somebody_else_s_attribute_of_such_a_module_is_left_alone(looked_up, while_open):
    module, patch = looked_up
    if not while_open:
        module.op = "theirs"
    with patch.region("mine"):
        if while_open:
            module.op = "theirs"
        assert module.op == "theirs"
    assert type(module) is ModuleType
    assert module.op == "theirs"


def test_somebody_else_who_takes_an_attribute_back_leaves_the_original(looked_up, monkeypatch):
    module, patch = looked_up
    with patch.region("mine"):
        ours = module.op
        monkeypatch.setattr(module, "op", lambda: f"theirs, then {ours()}")
        assert module.op() == "theirs, then mine"
        monkeypatch.undo()
        assert module.op() == "mine"
    assert is_untouched(module)
