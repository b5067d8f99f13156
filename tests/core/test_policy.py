"""Policies: what they accept, what they say, and that they survive a round trip."""

import json
import pickle
from inspect import Parameter, signature

import pytest

from ampbridge import Policy, PolicyError
from ampbridge.policies.op_table import LIST_SETS, ops, source
from ampbridge.policies.policy import SPELLINGS, as_argument


def test_defaults_are_o1_float16_with_the_lists_of_cuda_autocast():
    policy = Policy()
    assert (policy.level, policy.dtype, policy.lists) == ("O1", "float16", "torch")
    assert (policy.compute_dtype, policy.variable_dtype, policy.needs_scaling) == (
        "float16",
        "float32",
        True,
    )


def test_all_but_level_and_dtype_are_named():
    """What is added between two of them moves no argument of anybody's."""
    kinds = [(name, each.kind) for name, each in signature(Policy).parameters.items()]
    assert kinds[:2] == [(n, Parameter.POSITIONAL_OR_KEYWORD) for n in ("level", "dtype")]
    assert {kind for _, kind in kinds[2:]} == {Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("policy", "scaling"),
    [("O0", False), ("O1", True), ("O1:bfloat16", False), ("O2", True), ("O2:bfloat16", False)],
)
def test_float16_alone_needs_scaling(policy, scaling):
    assert Policy.parse(policy).needs_scaling is scaling


@pytest.mark.parametrize(
    ("policy", "dtype"),
    [
        (Policy("O0"), "float32"),
        (Policy("O1"), "float32"),
        (Policy("O2"), "float32"),
        (Policy("O2", masters=None), "float16"),
        (Policy("O2", "bfloat16", masters=None), "bfloat16"),
    ],
    ids=repr,
)
def test_parameters_are_low_where_there_are_no_masters(policy, dtype):
    assert policy.variable_dtype == dtype


def test_o0_is_one_policy_however_it_is_spelled():
    assert {Policy("O0"), Policy("O0", "float16"), Policy.parse("no"), Policy.parse("32-true")} == {
        Policy("O0", "bfloat16")
    }
    assert Policy("O0").compute_dtype == "float32"


@pytest.mark.parametrize(
    ("op", "category"),
    [  # from the documentation of torch's CUDA autocast
        ("matmul", "allow"),
        ("linear", "allow"),
        ("conv2d", "allow"),
        ("scaled_dot_product_attention", "allow"),
        ("softmax", "deny"),
        ("layer_norm", "deny"),
        ("exp", "deny"),
        ("sum", "deny"),
        ("cross_entropy", "deny"),
        ("mean", "promote"),
        ("relu", "promote"),
        ("add", "promote"),
        ("batch_norm", "promote"),
    ],
)
def test_the_default_lists_say_what_cuda_autocast_does(op, category):
    assert Policy().category(op) == category


def test_unlisted_ops_follow_the_rule_of_their_list_set():
    assert Policy(lists="torch").category("sin") == "promote"
    assert Policy(lists="paddle").category("sin") == "promote"
    assert Policy(lists="tensorflow").category("sin") == "deny"  # Grappler: a float32 island
    assert Policy(lists="tensorflow").category("relu") == "promote"  # on its clear list


def test_paddles_o2_denies_only_the_extra_black_list():
    o2 = Policy("O2", lists="paddle")
    assert o2.category("softmax") == "promote"
    assert o2.category("embedding") == "deny"


def test_at_O2_ops_that_no_list_names_are_not_held_in_float32():
    """Grappler's lists end in "everything else float32", which is no O2."""
    o1, o2 = (Policy(level, lists="tensorflow") for level in ("O1", "O2"))
    assert (o1.category("lu"), o2.category("lu")) == ("deny", "promote")
    assert (o1.category("exp"), o2.category("exp")) == ("deny", "deny")


def test_allow_and_deny_move_an_op():
    policy = Policy(allow=["softmax"], deny=["linear"])
    assert policy.category("softmax") == "allow"
    assert policy.category("linear") == "deny"
    assert policy.category("matmul") == "allow"


def test_at_o0_every_op_is_float32():
    assert {Policy("O0").category(op) for op in ops()} == {"deny"}


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        ("softmax", "softmax"),
        ("dense", "linear"),
        ("@", "matmul"),
        ("paddle:reduce_sum", "sum"),
        ("paddle:softmax_with_cross_entropy", "cross_entropy"),
        ("paddle:_C_ops.matmul", "matmul"),
        ("tf:MatMul", "matmul"),
        ("tensorflow:Softmax", "softmax"),
        ("tf:tf.nn.softmax", "softmax"),
        ("keras:Dense", "linear"),
        ("torch:aten::mm", "mm"),
        ("torch:torch.nn.functional.layer_norm", "layer_norm"),
        ("torch:layer_norm", "layer_norm"),
        ("numpy:exp", "exp"),
    ],
)
def test_every_spelling_means_the_canonical_op(spelling, canonical):
    assert Policy(deny=[spelling]).deny == (canonical,)


OWN = [
    ("torch:my_library::my_op", "torch:my_library::my_op"),
    ("torch:aten::_grouped_mm", "torch:_grouped_mm"),
    ("tensorflow:Betainc", "tf:Betainc"),
    ("paddle:_C_ops.i0e", "paddle:i0e"),
    ("numpy:nancumsum", "numpy:nancumsum"),
    ("package.layers:fused_norm", "package.layers:fused_norm"),
    ("package.layers:Flash.apply", "package.layers:Flash.apply"),
]


@pytest.mark.parametrize(("spelling", "kept"), OWN)
def test_ops_that_the_table_lacks_keep_their_framework_s_name(spelling, kept):
    denied = Policy(deny=[spelling])
    assert denied.deny == (kept,)
    assert (denied.category(spelling), Policy().category(spelling)) == ("deny", "promote")
    assert Policy(lists="tensorflow").category(spelling) == "deny"  # as all that it does not list
    assert Policy("O2", allow=[spelling]).category(kept) == "allow"
    with pytest.raises(PolicyError, match="is in both allow and deny"):
        Policy(allow=[kept], deny=[spelling])


def test_own_rules_are_those_of_one_framework():
    policy = Policy(
        allow=["torch:my_library::my_op", "softmax"], deny=["tf:Betainc", "package.layers:f", "exp"]
    )
    assert policy.own_rules("torch") == {"my_library::my_op": "allow"}
    assert policy.own_rules("tf") == {"Betainc": "deny"}
    assert policy.own_rules("paddle") == {}
    assert policy.replace(level="O0").own_rules("torch") == {"my_library::my_op": "deny"}


def test_shared_spellings_deny_before_allow_and_fall_back_to_their_owner():
    # TensorFlow runs both linear and matmul as MatMul.
    assert Policy().native_rules("tensorflow")["MatMul"] == "allow"
    assert Policy(deny=["linear"]).native_rules("tensorflow")["MatMul"] == "deny"
    both = Policy(deny=["linear"], allow=["mm"]).native_rules("tensorflow")
    assert both["MatMul"] == "deny"


def test_policies_are_values():
    one = Policy("O1", deny=["softmax", "exp"])
    other = Policy("O1", deny=("exp", "softmax", "exp"))
    assert one == other
    assert hash(one) == hash(other)
    assert {one: 1}[other] == 1
    with pytest.raises(AttributeError):
        one.level = "O2"


EXAMPLES = [
    Policy(),
    Policy("O0"),
    Policy(allow=["torch:my_library::my_op"], deny=["tf:Betainc", "package.layers:fused_norm"]),
    Policy("O1", "bfloat16", lists="paddle", allow=["softmax"], deny=["add"]),
    Policy("O2", "bfloat16", keep=["head", "LayerNorm"], masters=None, slots="bfloat16"),
    Policy("O1", lists="native", output_dtype="float16", execution="simulated"),
    Policy("O0", float32="tf32"),
]


@pytest.mark.parametrize("policy", EXAMPLES, ids=repr)
def test_round_trips(policy):
    assert Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    assert eval(repr(policy)) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_the_examples_cover_every_field_with_a_value_that_is_not_its_default():
    default = Policy().to_dict()
    changed = {k for policy in EXAMPLES for k, v in policy.to_dict().items() if v != default[k]}
    assert changed == set(default)


@pytest.mark.parametrize("policy", [Policy(), Policy("O2", "bfloat16"), Policy("O0")], ids=str)
def test_the_short_form_parses_back(policy):
    assert Policy.parse(str(policy)) == policy


def test_what_the_short_form_would_not_say_is_printed_as_code():
    policy = Policy("O2", "bfloat16", masters="stochastic", slots="bfloat16")
    code = "Policy('O2', 'bfloat16', masters='stochastic', slots='bfloat16')"
    assert (f"{policy}", as_argument(policy)) == (code, f"amp.{code}")
    assert as_argument(Policy("O2", "bfloat16")) == "'O2:bfloat16'"
    assert str(Policy("O0", float32="ieee")) == "Policy('O0', float32='ieee')"


def test_parse_takes_each_frameworks_spelling():
    assert Policy.parse("mixed_bfloat16") == Policy("O1", "bfloat16")
    assert Policy.parse("16-mixed") == Policy("O1", "float16")
    assert Policy.parse(Policy("O2")) == Policy("O2")
    for text, (level, dtype) in SPELLINGS.items():
        assert Policy.parse(text).level == level
        assert Policy.parse(text).dtype == dtype


def test_replace_changes_the_named_fields_alone():
    policy = Policy("O1", "bfloat16", deny=["exp"]).replace(dtype="float16", deny=["sum"])
    assert policy == Policy("O1", "float16", deny=["sum"])


@pytest.mark.parametrize("name", LIST_SETS)
def test_each_list_set_names_its_source(name):
    assert len(source(name)) > 20


@pytest.mark.parametrize("lists", ["torch", "paddle", "tensorflow", "safe"])
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_list_sets_are_disjoint_and_canonical(lists, level, dtype):
    rules = Policy(level, dtype, lists=lists).op_list
    assert not rules.allow & rules.deny
    assert not rules.promote & (rules.allow | rules.deny)
    assert rules.allow | rules.deny | rules.promote <= set(ops())
