"""What the core says to a backend about models: when, with what, and about which layers."""

import signal
import sys
from contextlib import nullcontext

import numpy as np
import pytest

import ampbridge as amp
from ampbridge import Policy
from ampbridge.adapters.backend import Decoration, Layer, Magnitude
from ampbridge.training.decorate import kept_layers, note_trained


@pytest.fixture
def model(toy):
    return toy.Model()


@pytest.fixture
def optimizer(toy, model):
    return toy.Optimizer(model)


def loss_fn(model):
    return np.float32(1.0)


def test_the_same_objects_come_back(model, optimizer):
    assert amp.decorate(model) is model
    assert amp.decorate(model, optimizer) == (model, optimizer)
    assert amp.undecorate(model) is model
    assert amp.undecorate(model, optimizer) == (model, optimizer)


def test_a_model_may_have_no_weak_references():
    """As a tree of arrays has none."""
    model = type("Tree", (), {"__slots__": ("weights",)})()
    note_trained(model)


def test_of_a_list_each_optimizer_is_decorated(toy, model, monkeypatch):
    told = []
    genuine = toy.Backend.decorate

    def decorate(self, model, optimizer, decoration):
        told.append(optimizer)
        if len(told) == 4:
            raise amp.UnsupportedError("not this one")
        genuine(self, model, optimizer, decoration)

    monkeypatch.setattr(toy.Backend, "decorate", decorate)
    optimizers = [toy.Optimizer(model), toy.Optimizer(model)]
    assert amp.decorate(model, optimizers, "O1") == (model, optimizers)
    assert told == optimizers
    monkeypatch.setattr(toy.Backend, "served", lambda self, model: optimizers)
    with pytest.raises(amp.UnsupportedError):
        amp.decorate(model, optimizers, "O2")
    first, second = (
        told[4:-2],
        told[-2:],
    )  # what was there has come back: to ``serve``, to ``decorate``
    assert (told[:4], first, second) == (optimizers * 2, [None], optimizers)
    assert model.decorations[-1] == Decoration(Policy("O1"), [])
    assert amp.undecorate(model, optimizers) == (model, optimizers)
    assert model.decorations[-1] is None
    assert amp.decorate(model, [], "O1") == (model, [])
    assert told[-1] is None


def test_the_backend_is_told_everything(model, optimizer):
    policy = Policy("O2", keep=["head"])
    amp.decorate(model, optimizer, policy, save_dtype="float32", master_grad=True)
    head = model.parts["head"]
    assert model.decorations[-1] == Decoration(policy, [head], True, "float32", True)


def test_a_new_decoration_takes_the_place_of_the_old_one(model):
    amp.decorate(model, policy="O2")
    amp.decorate(model, policy="O1")
    levels = [d and d.policy.level for d in model.decorations]
    assert levels == [None, "O2", None, "O1"]


def test_a_refused_decoration_leaves_the_old_one(model, toy, monkeypatch):
    amp.decorate(model, policy="O1")
    genuine = toy.Backend.decorate

    def decorate(self, model, optimizer, decoration):
        if decoration.policy.level == "O2":
            raise amp.UnsupportedError("no O2 here")
        genuine(self, model, optimizer, decoration)

    monkeypatch.setattr(toy.Backend, "decorate", decorate)
    with pytest.raises(amp.UnsupportedError):
        amp.decorate(model, policy="O2")
    assert model.decorations[-1] == Decoration(Policy("O1"), [])


@pytest.mark.skipif(not hasattr(signal, "raise_signal"), reason="needs raise_signal")
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("method", ["decorate", "undecorate"])
def test_ctrl_c_waits_for_the_end_of_a_decoration(
    model, optimizer, toy, monkeypatch, method, first
):
    """Low weights without their masters could not be taken back."""
    amp.decorate(model, optimizer, "O1")
    genuine = getattr(toy.Backend, method)

    def interrupt(self, *arguments):
        signal.raise_signal(signal.SIGINT)

    def interrupted(self, *arguments):
        for call in (interrupt, genuine) if first else (genuine, interrupt):
            call(self, *arguments)

    monkeypatch.setattr(toy.Backend, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        amp.decorate(model, optimizer, "O2")
    assert model.decorations[-1] == Decoration(Policy("O2"), [])
    with pytest.raises(KeyboardInterrupt), amp.undecorated(model, optimizer):
        pass
    assert model.decorations[-1] == Decoration(Policy("O2"), [])
    with pytest.raises(KeyboardInterrupt) if method == "undecorate" else nullcontext():
        amp.undecorate(model, optimizer)
    assert model.decorations[-1] is None


def test_O0_takes_a_decoration_back(model):
    amp.decorate(amp.decorate(model), policy="O0")
    assert model.decorations[-1] is None


def test_low_slots_need_an_optimizer_and_a_backend_that_keeps_them(model, optimizer):
    policy = Policy("O2", slots="bfloat16")
    for given, error, first, hint in (
        (
            None,
            amp.ArgumentError,
            "slots='bfloat16' says how an optimizer keeps its slots, and none was passed.",
            "Hint: model, optimizer = amp.decorate(model, optimizer, policy)",
        ),
        (
            optimizer,
            amp.UnsupportedError,
            f"{policy!r}: on toyframework slots are 'float32'.",
            "Hint: Policy('O2', 'float16')",
        ),
    ):
        with pytest.raises(error) as raised:
            amp.decorate(model, given, policy)
        assert str(raised.value).splitlines() == [first, hint]
    assert not any(model.decorations)


# -- kept layers


class ThreeLayers:
    """Stands in for a backend."""

    def layers(self, model):
        return [
            Layer("", "Net", "net", {}),
            Layer("decoder.0", "Linear", "first", {}),
            Layer("decoder.1", "LayerNorm", "norm", {}),
            Layer("head", "Linear", "head", {}),
        ]


@pytest.mark.parametrize(
    "keep, expected",
    [
        ([], []),
        (["head"], ["head"]),
        (["decoder.*"], ["first", "norm"]),
        (["*.1", "head"], ["norm", "head"]),
        (["decoder.[0]"], ["first"]),
        (["Linear"], ["first", "head"]),
        (["LayerNorm", "head"], ["norm", "head"]),
        (["Net"], ["net"]),
    ],
)
def test_layers_are_kept_by_name_pattern_and_class(keep, expected):
    assert kept_layers(ThreeLayers(), None, Policy(keep=keep)) == expected


@pytest.mark.parametrize("keep", ["linear", "", "decoder", "*.2", "ead"])
def test_an_entry_that_matches_no_layer_is_refused(keep):
    with pytest.raises(amp.PolicyError, match=r"matches no layer.*decoder\.0, decoder\.1, head"):
        kept_layers(ThreeLayers(), None, Policy(keep=["head", keep]))


@pytest.mark.parametrize("policy", ["O2", Policy("O2")])
def test_a_policy_in_the_optimizer_s_place_is_told(model, policy):
    with pytest.raises(
        amp.ArgumentTypeError, match=r"a policy\.\nHint: amp\.decorate\(model, policy="
    ):
        amp.decorate(model, policy)


def test_a_model_without_named_layers_has_none_to_keep(monkeypatch):
    layers = ThreeLayers().layers(None)
    monkeypatch.setattr(ThreeLayers, "layers", lambda self, model: layers[:1])
    with pytest.raises(amp.PolicyError, match=r"no named layers\.\nHint: amp\.Policy\('O0'\)"):
        kept_layers(ThreeLayers(), None, Policy(keep=["head"]))


# -- weights that float16 does not hold


def test_of_many_weights_beyond_float16_some_are_named_and_all_counted(model, toy, monkeypatch):
    beyond = [
        Magnitude(Layer(name, "ToyLayer", None, {}), "weight", 7e4) for name in ("", *"abcdef")
    ]
    monkeypatch.setattr(toy.Backend, "largest_magnitudes", lambda *_: beyond)
    expected = (
        r"(?s): weight \(70000\), a\.weight \(70000\), b\.\w+ \(70000\), c\.\w+ \(70000\), \.\.\. "
        r"\(7 in all\)\. .*Hint: policy='O2:bfloat16', which"
    )
    with pytest.warns(amp.AmpBridgeWarning, match=expected):
        amp.decorate(model)


def test_a_warning_that_is_an_error_leaves_the_old_decoration(model, toy, monkeypatch):
    amp.decorate(model, policy="O1")
    beyond = Magnitude(Layer("head", "ToyLayer", None, {}), "weight", 7e4)
    monkeypatch.setattr(toy.Backend, "largest_magnitudes", lambda *_: [beyond])
    with pytest.raises(amp.AmpBridgeWarning, match=r"head\.weight"):
        amp.decorate(model, policy="O2")
    assert model.decorations[-1] == Decoration(Policy("O1"), [])


# -- who decorates


def test_a_step_decorates_for_its_policy(model, optimizer):
    step = amp.train_step(loss_fn, model, optimizer, policy="O2")
    assert model.decorations == [None]
    step()
    step()
    assert model.decorations == [None, Decoration(Policy("O2"), [], True)]


def test_below_O2_a_step_s_decoration_holds_in_its_regions_alone(model, optimizer):
    amp.train_step(loss_fn, model, optimizer, policy="O1")()
    assert model.decorations == [None, Decoration(Policy("O1"), [], False)]


def test_a_step_at_O0_leaves_the_model_alone(model, optimizer):
    amp.train_step(loss_fn, model, optimizer, policy="O0")()
    assert model.decorations == [None]


def test_a_step_goes_on_with_the_user_s_decoration(model, optimizer):
    amp.decorate(model, optimizer, "O2", save_dtype="float32")
    amp.train_step(loss_fn, model, optimizer, policy="O2")()
    assert model.decorations == [None, Decoration(Policy("O2"), [], True, "float32")]


def test_the_user_s_decoration_is_kept_when_the_step_s_optimizer_joins(
    model, optimizer, monkeypatch
):
    """Where a decoration concerns the optimizer, it may have been made without it."""
    amp.decorate(model, None, "O2", save_dtype="float32", master_grad=True)
    backend = amp.backend("toyframework")
    joined = []

    def decoration(model, optimizer):
        return model.decorations[-1] if optimizer in (None, *joined) else None

    def decorate(model, optimizer, decoration):
        model.decorations.append(decoration)
        joined.append(optimizer)

    monkeypatch.setattr(backend, "decoration", decoration)
    monkeypatch.setattr(backend, "decorate", decorate)
    step = amp.train_step(loss_fn, model, optimizer, policy="O2")
    step(), step()
    wanted = Decoration(Policy("O2"), [], True, "float32", True)
    assert model.decorations == [None, wanted, None, wanted]


def test_a_step_knows_of_its_layers_when_it_is_made(model, optimizer):
    with pytest.raises(amp.PolicyError, match="matches no layer"):
        amp.train_step(loss_fn, model, optimizer, policy=Policy("O1", keep=["tail"]))


def test_a_schedule_redecorates_where_the_policy_changes(model, optimizer):
    head = model.parts["head"]
    kept = Policy("O1", keep=["head"])
    schedule = amp.Schedule([(0, "O0"), (1, kept), (3, "O2"), (4, "O0")])
    step = amp.train_step(loss_fn, model, optimizer, policy=schedule)
    seen = []
    for _ in range(6):
        step()
        seen.append(model.decorations[-1])
    one = Decoration(kept, [head], False)
    assert seen == [None, one, one, Decoration(Policy("O2"), [], True), None, None]
    assert model.decorations == [None, one, None, seen[3], None]


def test_value_and_grad_decorates_below_O2(model):
    amp.value_and_grad(loss_fn, model, policy=Policy("O1", keep=["head"]))
    assert model.decorations[-1].kept == [model.parts["head"]]
    assert model.decorations[-1].standalone is False


def test_value_and_grad_goes_on_with_the_user_s_decoration(model, optimizer):
    amp.decorate(model, optimizer, "O2")
    before = list(model.decorations)
    amp.value_and_grad(loss_fn, model, policy="O2")
    assert model.decorations == before


@pytest.mark.parametrize("made_by", ["nobody", "decorate", "train_step", "another choice"])
def test_masters_of_a_region_are_told_of_once_unless_a_model_was_decorated_for_them(
    made_by, toy, model, optimizer, monkeypatch
):
    """As of a loop by hand that forgets to decorate. A region has no ``keep``; its model may."""
    decorating = sys.modules["ampbridge.training.decorate"]  # not the function
    monkeypatch.setattr(decorating, "_choices", {("float32", "float32")})
    decorating._tell_of_a_region_alone.cache_clear()
    chosen = Policy("O2", "bfloat16", masters=None)
    if made_by == "decorate":
        amp.decorate(model, optimizer, chosen.replace(keep=["head"]))
    elif made_by == "train_step":
        amp.train_step(loss_fn, model, optimizer, policy=chosen)
    elif made_by == "another choice":
        amp.decorate(model, optimizer, "O2:bfloat16")
    told = made_by in ("nobody", "another choice")
    words = r"A region of Policy\(.*masters=None\), and no model .*\nHint: .* amp.decorate"
    told_of = pytest.warns(amp.AmpBridgeWarning, match=words) if told else nullcontext()
    with told_of, amp.autocast(chosen, "toyframework"):
        pass
    with amp.autocast(chosen, "toyframework"), amp.autocast("O2:bfloat16", "toyframework"):
        pass


def test_a_model_in_16_bits_is_told_of_when_it_is_decorated(toy, monkeypatch):
    monkeypatch.setattr(toy.Backend, "low_parameters", lambda backend, own, _=None: own)
    with pytest.warns(amp.AmpBridgeWarning, match="Parameters of the model are in 16"):
        amp.decorate(toy.Model(), policy="O2")
