"""Functions that are ops: their names, the rules of policies, where they are found and replaced."""

import sys
from types import ModuleType

import pytest

import ampbridge as amp
from ampbridge import Policy, PolicyError
from ampbridge.policies import function_ops

SOURCE = """
def norm(x): return ("norm", x)
def scale(x): return ("scale", x)
class Flash:
    @classmethod
    def apply(cls, x): return (cls.__name__, x)
    def forward(self, x): return ("forward", x)
class Faster(Flash): pass
NUMBER = 3
"""


@pytest.fixture
def package(monkeypatch):
    """A package that somebody else wrote, and another that has imported its names."""
    theirs, users = ModuleType("their.layers"), ModuleType("their")
    exec(SOURCE, theirs.__dict__)
    users.normalize = theirs.norm
    monkeypatch.setitem(sys.modules, "their", users)
    monkeypatch.setitem(sys.modules, "their.layers", theirs)
    monkeypatch.setattr(function_ops, "_known", {})
    function_ops._count_change()
    return theirs


@pytest.fixture
def adapter(monkeypatch):
    """Region in which the functions of ``adapter`` are told their rule."""
    rules = {}

    def follow(name, function):
        if name not in rules:
            return None
        return lambda *args: (rules[name], function(*args))

    monkeypatch.setattr(function_ops, "_adapters", [follow])
    return rules


def opened(adapter, policy):
    adapter.clear()
    adapter.update(function_ops.rules_of(policy))
    return function_ops.standing(adapter)


def test_a_registered_function_goes_by_its_module_and_name(adapter):
    @amp.register_op
    def norm(x):
        """Of x."""
        return x

    name = f"{__name__}:{norm.__qualname__}"
    assert (norm(1), norm.__name__, norm.__doc__) == (1, "norm", "Of x.")
    with opened(adapter, Policy(deny=[name])):
        assert norm(1) == ("deny", 1)
    with opened(adapter, Policy(allow=[name])):
        assert norm(1) == ("allow", 1)
    with opened(adapter, Policy()):
        assert norm(1) == 1
    with opened(adapter, Policy("O1", lists="tensorflow")):  # float32, as all that it does not list
        assert norm(1) == ("deny", 1)
    with opened(adapter, Policy("O0", deny=[name])):
        assert norm(1) == 1


def test_it_may_follow_the_rule_of_another_op(adapter, package):
    norm = amp.register_op(package.norm, name="layer_norm")
    with opened(adapter, Policy()):
        assert norm(1) == ("deny", ("norm", 1))
        assert package.norm(1) == ("deny", ("norm", 1))
    with opened(adapter, Policy(allow=["layer_norm"])):
        assert norm(1) == ("allow", ("norm", 1))
    with opened(adapter, Policy(allow=["their.layers:norm"])):
        assert norm(1) == ("allow", ("norm", 1))


def test_a_path_finds_it_under_every_name_that_a_module_has_for_it(adapter, package):
    original = package.norm
    with opened(adapter, Policy(deny=["their.layers:norm"])):
        assert package.norm(1) == sys.modules["their"].normalize(1) == ("deny", ("norm", 1))
        assert package.scale(1) == ("scale", 1)
    assert package.norm is original is sys.modules["their"].normalize


def test_modules_are_looked_through_again_only_if_one_may_have_another_name(
    adapter, package, monkeypatch
):
    """Twenty milliseconds of each step, in a process that has imported a framework."""
    looked_through = []

    class Modules(dict):
        def values(self):
            looked_through.append(len(self))
            return super().values()

    monkeypatch.setattr(sys, "modules", Modules(sys.modules))
    users, policy = sys.modules["their"], Policy("O1", deny=["their.layers:norm"])

    def seen():
        with opened(adapter, policy):
            return [
                name
                for name in dir(users)
                if not name.startswith("__")
                and getattr(users, name)("x") == ("deny", ("norm", "x"))
            ]

    assert [seen() for _ in range(10)] == 10 * [["normalize"]]
    assert len(looked_through) <= 3
    users.another = package.norm  # as a cell of a notebook does: nothing is imported
    assert seen() == ["another", "normalize"]
    users.normalize, users.another = package.norm, len
    del users.another
    assert [seen() for _ in range(10)] == 10 * [["normalize"]]
    assert len(looked_through) <= 8
    users.normalize, users.another = str, package.norm  # as many names as before
    assert seen() == ["another"]
    assert users.normalize is str


def test_another_path_of_a_registered_function_is_the_same_op(adapter, package):
    package.norm = amp.register_op(package.norm)
    sys.modules["their"].normalize = package.norm
    with opened(adapter, Policy(deny=["their:normalize"])):
        assert package.norm(1) == ("deny", ("norm", 1))


def test_methods_are_found_in_their_class(adapter, package):
    policy = Policy(deny=["their.layers:Flash.apply", "their.layers:Flash.forward"])
    with opened(adapter, policy):
        assert package.Flash.apply(1) == ("deny", ("Flash", 1))
        assert package.Faster.apply(1) == ("deny", ("Faster", 1))
        assert package.Flash().forward(1) == ("deny", ("forward", 1))
    assert package.Flash.apply(1) == ("Flash", 1)
    assert package.Flash().forward(1) == ("forward", 1)


def test_a_method_is_found_by_its_name_in_a_module(adapter, package):
    """As packages have it: ``flash = Flash.apply``. Each access makes an object of its own."""
    alias = sys.modules["their"].flash = package.Flash.apply
    sys.modules["their"].faster = package.Faster.apply
    with opened(adapter, Policy(deny=["their.layers:Flash.apply"])):
        assert sys.modules["their"].flash(1) == ("deny", ("Flash", 1))
        assert package.Flash.apply(1) == ("deny", ("Flash", 1))
        assert sys.modules["their"].faster(1) == ("Faster", 1)  # another class's
    assert sys.modules["their"].flash is alias


def test_nested_regions_put_back_what_they_replaced(adapter, package):
    original = package.norm
    with opened(adapter, Policy(deny=["their.layers:norm"])):
        with opened(adapter, Policy(allow=["their.layers:norm", "their.layers:scale"])):
            assert package.norm(1) == ("allow", ("norm", 1))
        assert package.norm is not original
    assert package.norm is original


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "their.nothing:norm",
            "Unknown op 'their.nothing:norm': there is no module 'their.nothing'",
        ),
        (
            "their.layers:norn",
            "module 'their.layers' has no 'norn'.\nHint: did you mean 'their.layers:norm'",
        ),
        ("their.layers:Flash.aply", "module 'their.layers' has no 'Flash.aply'.\n"),
        ("their.layers:NUMBER", "module 'their.layers' has no 'NUMBER'.\n"),
    ],
)
def test_what_does_not_exist(package, name, message):
    with pytest.raises(PolicyError) as caught:
        function_ops.rules_of(Policy(deny=[name]))
    assert message in str(caught.value)
    assert str(caught.value).splitlines()[-1].startswith("Hint: ")


@pytest.mark.parametrize("given", [3, "softmax", ModuleType])
def test_what_is_no_function(given):
    with pytest.raises(amp.ArgumentTypeError, match="register_op takes a function, not"):
        amp.register_op(given)


def test_a_lambda_needs_a_name():
    with pytest.raises(amp.ArgumentError, match="A lambda has no name that a policy could list"):
        amp.register_op(lambda x: x)
    assert amp.register_op(lambda x: x, name="my_package:my_op")(1) == 1


def test_an_unknown_name():
    with pytest.raises(PolicyError, match="Unknown op 'layer_norn'"):
        amp.register_op(name="layer_norn")(lambda x: x)


def test_a_function_in_a_list_is_told_its_name(package):
    with pytest.raises(amp.ArgumentTypeError) as caught:
        Policy(deny=[test_a_lambda_needs_a_name])
    assert (
        str(caught.value).splitlines()[-1]
        == f"Hint: deny=['{__name__}:test_a_lambda_needs_a_name']"
    )


def test_nothing_is_replaced_where_no_policy_lists_a_function(monkeypatch, package):
    monkeypatch.setattr(function_ops, "sys", None)  # whose modules it would look through
    with function_ops.standing(dict(function_ops.rules_of(Policy(deny=["softmax"])))):
        pass
