"""What a framework's own precision objects can be told; the frameworks' tests make the real ones."""

import pytest

import ampbridge as amp
from ampbridge import Policy
from ampbridge.adapters import registry

CANNOT = [
    # torch.autocast has a dtype, and CUDA's lists
    ("torch", Policy("O2"), "level='O2'"),
    ("torch", Policy(lists="paddle"), "lists='paddle'"),
    ("torch", Policy(lists="tensorflow"), "lists='tensorflow'"),
    ("torch", Policy(deny=["matmul"]), "deny=['matmul']"),
    ("torch", Policy(allow=["softmax"], deny=["matmul"]), "allow=['softmax'], deny=['matmul']"),
    ("torch", Policy(lists="safe", keep=["head"]), "lists='safe', keep=['head']"),
    ("torch", Policy(output_dtype="float16"), "output_dtype='float16'"),
    ("torch", Policy(execution="simulated"), "execution='simulated'"),
    ("torch", Policy(float32="ieee"), "float32='ieee'"),
    ("paddle", Policy("O2", lists="paddle", slots="bfloat16"), "slots='bfloat16'"),
    ("torch", Policy("O0", keep=["head"]), "keep=['head']"),
    # Paddle's custom lists take no op off its own, and know no op that is made of several
    ("paddle", Policy(lists="torch"), "lists='torch'"),
    (
        "paddle",
        Policy(lists="paddle", deny=["einsum", "mse_loss"]),
        None,
    ),  # denied already: of mean
    ("paddle", Policy(lists="paddle", allow=["mse_loss"]), "allow=['mse_loss']"),
    ("paddle", Policy(lists="paddle", deny=["conv2d"]), "deny=['conv2d']"),  # and conv1d
    ("paddle", Policy(lists="paddle", deny=["conv2d", "conv1d"]), None),
    ("paddle", Policy("O2", lists="paddle", keep=["Linear"]), "keep=['Linear']"),
    # Keras casts by layers
    ("tensorflow", Policy(lists="tensorflow"), "level='O1'"),
    ("tensorflow", Policy("O2"), "lists='torch'"),
    ("tensorflow", Policy("O2", lists="tensorflow", deny=["exp"]), "deny=['exp']"),
]


@pytest.mark.parametrize("framework, policy, shown", [c for c in CANNOT if c[2]])
def test_what_it_cannot_express_is_listed(framework, policy, shown):
    with pytest.raises(amp.UnsupportedError) as error:
        policy.to_native(framework)
    first, hint = str(error.value).splitlines()
    assert first == f"What {framework} has for a policy cannot follow {shown}."
    assert hint.startswith(f"Hint: policy.to_native('{framework}', drop=[")


class Words:
    """A backend that hands back the policy that reaches it."""

    def native_policy(self, policy):
        return policy


@pytest.fixture
def words(monkeypatch):
    monkeypatch.setattr(registry, "backend", lambda name: Words())


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize("framework, policy", [c[:2] for c in CANNOT if not c[2]])
def test_what_it_can_express_arrives(framework, policy):
    assert policy.to_native(framework) == policy


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize(
    "framework, policy",
    [
        ("torch", Policy("O0")),
        ("torch", Policy("O1", "bfloat16")),
        ("torch", Policy(lists="native")),
        ("torch", Policy(deny=["softmax"])),  # CUDA denies it anyway
        ("paddle", Policy("O0", lists="torch")),
        ("paddle", Policy("O2", lists="paddle", allow=["softmax"], deny=["einsum"])),
        ("paddle", Policy("O2", lists="paddle", masters=None)),
        ("paddle", Policy(lists="native")),
        ("tensorflow", Policy("O0")),
        ("tensorflow", Policy("O2", "bfloat16", lists="tensorflow")),
        ("tensorflow", Policy("O2", lists="native", execution="native")),
    ],
)
def test_policies_of_the_framework_itself(framework, policy):
    assert policy.to_native(framework) == policy


@pytest.mark.usefixtures("words")
def test_what_may_be_lost_can_be_named():
    policy = Policy("O2", "bfloat16", lists="paddle", deny=["matmul"], keep=["head"])
    given = policy.to_native("torch", drop=["level", "lists", "deny", "keep"])
    assert given == Policy("O1", "bfloat16", lists="native")


@pytest.mark.usefixtures("words")
def test_a_hint_that_is_followed_suffices():
    policy = Policy("O1", lists="safe", keep=["head"], output_dtype="float16")
    with pytest.raises(amp.UnsupportedError) as error:
        policy.to_native("tensorflow", drop=["keep"])
    assert "drop=['keep', 'level', 'lists', 'output_dtype']" in str(error.value)
    given = policy.to_native("tensorflow", drop=["keep", "level", "lists", "output_dtype"])
    assert given == Policy("O2", lists="native")


@pytest.mark.usefixtures("words")
def test_of_lists_paddle_follows_what_it_can():
    policy = Policy(lists="torch", deny=["matmul"])
    assert policy.to_native("paddle", drop=["lists", "deny"]).lists == "torch"


@pytest.mark.parametrize("drop", ["keep", ["keeps"]])
def test_only_fields_can_be_dropped(drop):
    with pytest.raises(amp.ArgumentError, match="allowed are names of a policy's fields"):
        Policy().to_native("torch", drop=drop)


@pytest.mark.parametrize("framework", ["numpy", "pytorch"])
def test_a_framework_without_words_for_it(framework):
    with pytest.raises(amp.ArgumentError, match=r"allowed are 'torch', 'paddle' or 'tensorflow'"):
        Policy().to_native(framework)


def test_by_default_a_backend_has_no_words_for_it(toy):
    with pytest.raises(amp.UnsupportedError, match="toyframework has no precision objects"):
        registry.backend("toyframework").native_policy(Policy())
    with pytest.raises(
        amp.ArgumentTypeError, match="ToyModel of toyframework is not a precision object"
    ):
        Policy.from_native(toy.Model())
