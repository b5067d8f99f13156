"""Policies as arguments of Paddle's functions: passed to them, and read back from its dispatcher."""

import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paddle_oracle import native_decisions

import ampbridge as amp
from ampbridge import Policy
from ampbridge.policies import op_table
from ampbridge.policies.native_lists import wanted_rules
from ampbridge.policies.paddle_names import moved_with, paddle_names


def test_float32_is_a_region_that_is_off():
    assert Policy("O0").to_native("paddle") == {"auto_cast": {"enable": False}, "decorate": None}


def test_o1_in_paddle_s_own_names():
    policy = Policy("O1", lists="paddle", allow=["add", "mean"], deny=["sum", "cross_entropy"])
    assert policy.to_native("paddle") == {
        "auto_cast": {
            "custom_white_list": {"elementwise_add", "reduce_mean", "mean"},
            "custom_black_list": {"reduce_sum", "softmax_with_cross_entropy"},
            "level": "O1",
            "dtype": "float16",
        },
        "decorate": None,
    }


@pytest.mark.parametrize("masters", ["float32", None])
def test_o2_is_a_decoration_too(masters):
    policy = Policy("O2", "bfloat16", lists="paddle", masters=masters)
    assert policy.to_native("paddle") == {
        "auto_cast": {
            "custom_white_list": None,
            "custom_black_list": None,
            "level": "O2",
            "dtype": "bfloat16",
        },
        "decorate": {"level": "O2", "dtype": "bfloat16", "master_weight": masters is not None},
    }


def test_paddle_s_dispatcher_does_as_the_policy_says():
    """bfloat16 on float32 inputs; asked of a program that is built and not run."""
    policy = Policy(
        "O1",
        "bfloat16",
        lists="paddle",
        allow=["softmax", "mean"],
        deny=["einsum", "conv1d", "conv2d"],
    )
    arguments = policy.to_native("paddle")["auto_cast"]
    found = native_decisions(lambda: paddle.amp.auto_cast(**arguments))
    usual = native_decisions(lambda: paddle.amp.auto_cast(dtype="bfloat16"))
    for call in ("softmax", "mean"):
        assert (usual[call], found[call]) == ("float32", "bfloat16")
    for call in ("einsum", "conv2d"):
        assert (usual[call], found[call]) == ("bfloat16", "float32")
    assert found["matmul"] == "bfloat16"
    assert found["sum"] == "float32"


def test_torch_s_lists_are_followed_as_far_as_lists_can():
    """Paddle takes norm and bmm where torch has them; mean stays on its black list."""
    policy = Policy("O1", "bfloat16")
    arguments = policy.to_native("paddle", drop=["lists"])["auto_cast"]
    found = native_decisions(lambda: paddle.amp.auto_cast(**arguments))
    assert found["bmm"] == "bfloat16"
    assert found["norm"] == "float32"
    assert found["mean"] == "float32"


@pytest.mark.filterwarnings("ignore")  # there is no GPU to decorate for
def test_the_functions_take_the_arguments():
    for policy in (Policy("O0"), Policy("O1", lists="paddle"), Policy("O2", lists="paddle")):
        native = policy.to_native("paddle")
        model = paddle.nn.Linear(2, 2)
        if native["decorate"] is not None:
            model = paddle.amp.decorate(model, **native["decorate"])
        with paddle.amp.auto_cast(**native["auto_cast"]):
            model(paddle.ones([1, 2]))


@pytest.mark.parametrize(
    "policy",
    [
        Policy("O0"),
        Policy("O1", lists="paddle"),
        Policy("O1", "bfloat16", lists="paddle", allow=["mean", "multiply", "outer"], deny=["sum"]),
        Policy("O2", lists="paddle", allow=["softmax"]),
        Policy("O2", "bfloat16", lists="paddle", masters=None),
    ],
)
def test_there_and_back(policy):
    assert Policy.from_native(policy.to_native("paddle")) == policy


policies = st.builds(
    lambda level, dtype, ops, cut: Policy(
        level, dtype, lists="paddle", allow=ops[:cut], deny=ops[cut:]
    ),
    st.sampled_from(["O1", "O2"]),
    st.sampled_from(["float16", "bfloat16"]),
    st.lists(st.sampled_from(sorted(op_table.ops())), max_size=6, unique=True),
    st.integers(0, 6),
)


def has_no_words_for(policy):
    """An op that is none of Paddle's, or that it moves together with one that is to have another rule."""
    base = policy.replace(allow=(), deny=())
    return any(
        any(policy.category(other) != policy.category(op) for other in moved_with(op))
        if paddle_names(op)
        else policy.category(op) != base.category(op)
        for op in (*policy.allow, *policy.deny)
    )


@pytest.mark.filterwarnings("ignore:'sum' in custom_")  # is add_n, as it should be here
@given(policies)
def test_what_can_be_said_says_the_same(policy):
    """Rules, not names: Paddle's conv2d is read as conv1d too, which it is."""
    try:
        native = policy.to_native("paddle")
    except amp.UnsupportedError:
        assert has_no_words_for(policy)
        return
    known = wanted_rules("paddle", policy)
    again = Policy.from_native(native).op_list
    assert {op: again.category(op) for op in known} == known


def test_defaults_are_those_of_the_functions():
    assert Policy.from_native({"auto_cast": {}}) == Policy("O1", "float16", lists="paddle")
    o2 = {
        "auto_cast": {"level": "o2", "dtype": paddle.bfloat16},
        "decorate": {"level": "O2", "dtype": "bfloat16"},
    }
    assert Policy.from_native(o2) == Policy("O2", "bfloat16", lists="paddle")


def test_layers_that_are_excluded_by_class():
    native = {
        "auto_cast": {"level": "O2"},
        "decorate": {"level": "O2", "excluded_layers": [paddle.nn.Softmax, paddle.nn.GELU]},
    }
    assert Policy.from_native(native).keep == ("GELU", "Softmax")


def test_names_that_paddle_takes_no_notice_of():
    says = "'matmul' in custom_black_list has no effect"
    with pytest.warns(amp.AmpBridgeWarning, match=says) as caught:
        policy = Policy.from_native({"auto_cast": {"custom_black_list": {"matmul", "einsum"}}})
    assert policy == Policy(lists="paddle", deny=["einsum"])
    assert caught[0].filename == __file__


UNSUPPORTED = {
    "level='OD'": {"auto_cast": {"level": "OD"}},
    "use_promote=False": {"auto_cast": {"level": "O2", "use_promote": False}},
    "master_grad=True": {
        "auto_cast": {"level": "O2"},
        "decorate": {"level": "O2", "master_grad": True},
    },
    "differ in level or dtype": {
        "auto_cast": {"level": "O2"},
        "decorate": {"level": "O2", "dtype": "bfloat16"},
    },
    "excluded_layers=": {
        "auto_cast": {"level": "O2"},
        "decorate": {"level": "O2", "excluded_layers": "head"},
    },
    "and has no canonical op": {"auto_cast": {"custom_black_list": {"scale"}}},
}


@pytest.mark.parametrize("says", UNSUPPORTED)
def test_what_no_policy_says(says):
    with pytest.raises(amp.UnsupportedError, match=says):
        Policy.from_native(UNSUPPORTED[says])


@pytest.mark.parametrize(
    "native, says",
    [
        ({"level": "O1"}, "dict of its functions' arguments"),
        ({"auto_cast": {}, "scaler": {}}, "not 'scaler'"),
        ({"auto_cast": {"white_list": set()}}, "no argument 'white_list'"),
    ],
)
def test_what_are_no_arguments(native, says):
    with pytest.raises(amp.ArgumentTypeError, match=says):
        Policy.from_native(native)
