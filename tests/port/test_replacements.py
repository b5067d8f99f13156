"""Each AMP call of torch and Paddle in the words of ampbridge: what is written means the same."""

import ast
import inspect
from functools import partial

import pytest

import ampbridge
from ampbridge import GradScaler, Policy
from ampbridge.policies.paddle_names import paddle_list
from ampbridge_port.reader.dialects import DIALECTS
from ampbridge_port.reader.dialects.calls import Argument, Call, NotKnown
from ampbridge_port.reading import Place
from ampbridge_port.rewriters import REPLACEMENTS
from ampbridge_port.rewriters.expressions import NoReplacement

SIGNATURES = {name: each[0] for dialect in DIALECTS for name, each in dialect.calls.items()}


def value(place, node):
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise NotKnown(place) from None


def call(name, source):
    """``source``, a call, as the reader of a file would have found it."""

    def place(node):
        return Place("script.py", 1, 0, ast.get_source_segment(source, node))

    def argument(node):
        return Argument(place(node), partial(value, place(node), node))

    node = ast.parse(source, mode="eval").body
    names = SIGNATURES[name].split()
    given = dict(zip(names, node.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg in names}
    extra = {kw.arg: argument(kw.value) for kw in node.keywords if kw.arg and kw.arg not in names}
    unpacked = next((place(kw.value) for kw in node.keywords if kw.arg is None), None)
    arguments = {name: argument(value) for name, value in given.items()}
    return Call(name, Place("script.py", 1, 0, source), arguments, extra, unpacked)


def replaced(name, source):
    return REPLACEMENTS[name](call(name, source))


def cases(text):
    """The parts of each line, but for indented ones, which go on with the line before."""
    lines = text.strip().replace("\n    ", " ").splitlines()
    return [[part.strip() for part in line.split(" | ")] for line in lines]


REGIONS = """
torch.autocast | torch.autocast('cuda') | Policy("O1")
torch.autocast | autocast('cuda', torch.bfloat16) | Policy("O1", "bfloat16")
torch.autocast | autocast(device_type='cpu') | Policy("O1", "bfloat16")
torch.autocast | autocast('cuda', enabled=False) | Policy("O0")
torch.cuda.amp.autocast | autocast() | Policy("O1")
torch.cuda.amp.autocast | autocast(use_amp) | Policy("O1")
torch.cuda.amp.autocast | autocast(not use_amp) | Policy("O0")
torch.cpu.amp.autocast | autocast() | Policy("O1", "bfloat16")
torch.autocast | autocast(cpu, dtype=half) | Policy("O1")
torch.autocast | autocast(cpu) | Policy("O1", "bfloat16")
torch.autocast | autocast('cuda', torch.float32) | Policy("O0")
paddle.amp.auto_cast | auto_cast() | Policy("O1", lists="paddle")
paddle.amp.autocast | autocast('cuda', 'bfloat16') | Policy("O1", "bfloat16", lists="paddle")
paddle.cuda.amp.autocast | autocast(not use_amp) | Policy("O0")
paddle.amp.auto_cast | auto_cast(level='o2') | Policy("O2", lists="paddle")
paddle.amp.auto_cast | auto_cast(True, None, None, o2) | Policy("O2", lists="paddle")
paddle.amp.auto_cast | auto_cast(enable=not use_amp, level=o2) | Policy("O0", lists="paddle")
paddle.amp.auto_cast | auto_cast(enable=not use_amp or True) | Policy("O1", lists="paddle")
paddle.amp.auto_cast
    | auto_cast(custom_white_list={'elementwise_add', 'batch_norm'}, custom_black_list=black)
    | Policy("O1", lists="paddle", allow=["add", "batch_norm"], deny=["sum"])
"""


@pytest.mark.parametrize(("name", "source", "expected"), cases(REGIONS))
def test_regions_have_the_policy_that_was_meant(name, source, expected, monkeypatch):
    seen = []
    monkeypatch.setattr(
        ampbridge, "autocast", lambda policy, backend: seen.append((policy, backend))
    )
    half = type("dtype", (), {"__str__": lambda self: "torch.float16"})()
    names = {"use_amp": True, "cpu": "cpu", "o2": "O2", "half": half, "black": ["reduce_sum"]}
    eval(replaced(name, source), {"ampbridge": ampbridge, "paddle_list": paddle_list}, names)
    ((policy, backend),) = seen
    assert backend == name.partition(".")[0]
    policy, expected = Policy.parse(policy), eval(expected)
    assert policy == expected if expected.level != "O0" else policy.level == "O0"


SCALERS = """
torch.amp.GradScaler | GradScaler('cuda') | GradScaler.like("torch")
torch.amp.GradScaler | GradScaler('cuda', 8.0) | GradScaler.like("torch", init_scale=8.0)
torch.cuda.amp.GradScaler | GradScaler(growth_interval=n, enabled=n > 9)
    | GradScaler.like("torch", growth_interval=5, enabled=False)
paddle.amp.GradScaler | GradScaler() | GradScaler.like("paddle")
paddle.amp.GradScaler | GradScaler(1024) | GradScaler.like("paddle")
paddle.amp.GradScaler | GradScaler(init_scale=8.0, growth_interval=n, enabled=True)
    | GradScaler.like("paddle", init_scale=8.0, growth_interval=5)
paddle.amp.GradScaler
    | GradScaler(True, 1024, decr_every_n_nan_or_inf=2, use_dynamic_loss_scaling=False)
    | GradScaler.like("paddle", init_scale=1024.0, backoff_interval=2, dynamic=False)
paddle.amp.AmpScaler | AmpScaler(incr_every_n_steps=n)
    | GradScaler.like("paddle", init_scale=2.0**15, growth_interval=5)
"""


@pytest.mark.parametrize(("name", "source", "expected"), cases(SCALERS))
def test_scalers_follow_the_rule_of_those_they_replace(name, source, expected):
    scaler = eval(replaced(name, source), {"ampbridge": ampbridge, "n": 5})
    assert scaler.state_dict() == eval(expected).state_dict()


WRITTEN = """
paddle.amp.decorate | decorate(models=model, level='O2')
    | ampbridge.decorate(model, ampbridge.Policy("O2", lists="paddle"))
paddle.amp.decorate | decorate(model, opt) | (model, opt)
paddle.amp.decorate | decorate(model, opt, level=level, save_dtype='float32')
    | ampbridge.decorate(model, opt, ampbridge.Policy("O2" if level == "O2" else "O0", lists="paddle"),
    save_dtype='float32')
paddle.amp.decorate
    | decorate(model, level='O2', dtype='bfloat16', excluded_layers=[nn.LayerNorm, nn.Conv2D])
    | ampbridge.decorate(model, ampbridge.Policy("O2", "bfloat16", lists="paddle",
    keep=["LayerNorm", "Conv2D"]))
paddle.amp.decorate | decorate(model, opt, 'O2', 'float16', False, master_grad=True)
    | ampbridge.decorate(model, opt, ampbridge.Policy("O2", lists="paddle", masters=None),
    master_grad=True)
torch.amp.GradScaler.unscale_ | self.scaler.unscale_(opt) | self.scaler.unscale(opt)
torch.amp.GradScaler.unscale_ | f(x).s.unscale_(optimizer=opt) | f(x).s.unscale(opt)
torch.amp.GradScaler.is_enabled | scaler.is_enabled() | scaler.enabled
torch.amp.GradScaler.step | scaler.step(opt) | None
torch.amp.GradScaler.update | scaler.update() | None
torch.amp.GradScaler.update | scaler.update(2.0) | None
paddle.amp.GradScaler.get_incr_ratio | s.get_incr_ratio() | s.config.growth_factor
"""


@pytest.mark.parametrize(("name", "source", "written"), cases(WRITTEN))
def test_decorating_and_methods(name, source, written):
    assert str(replaced(name, source)) == written
    if written.startswith("ampbridge"):
        call = ast.parse(written, mode="eval").body
        parameters = inspect.signature(ampbridge.decorate).parameters
        assert {keyword.arg for keyword in call.keywords} <= set(parameters)


REFUSED = """
torch.amp.GradScaler.step | scaler.step(opt, closure=f)
torch.amp.GradScaler.set_growth_factor | scaler.set_growth_factor(2.0)
torch.amp.GradScaler | GradScaler(**options)
paddle.amp.auto_cast | auto_cast(level='OD')
paddle.amp.auto_cast | auto_cast(use_promote=False)
paddle.amp.decorate | decorate([a, b], level='O2')
paddle.amp.decorate | decorate(model, level='O2', excluded_layers=[model.head])
"""


@pytest.mark.parametrize(("name", "source"), cases(REFUSED))
def test_what_has_no_replacement_says_what_to_do(name, source):
    with pytest.raises(NoReplacement) as caught:
        replaced(name, source)
    assert caught.value.message
    assert caught.value.hint


def test_every_scalers_method_is_seen_to():
    """No method of a native scaler that ours lacks is left standing in a rewritten script."""
    for name, replacement in REPLACEMENTS.items():
        owner, _, method = name.rpartition(".")
        if owner.endswith("GradScaler") and getattr(replacement, "__name__", "") == "unchanged":
            assert hasattr(GradScaler, method), name
