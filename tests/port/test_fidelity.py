"""The fidelity report: expectations by hand, from the frameworks' published lists and defaults."""

import json

import pytest

import ampbridge as amp
from ampbridge.training.recipe import Recipe, Scaling
from ampbridge_port import fidelity_report as module
from ampbridge_port.fidelity_report import OpRow, fidelity
from ampbridge_port.writers import Loss

PADDLE = Recipe(
    amp.Policy("O1", lists="paddle", allow=["add"], deny=["sum", "cross_entropy"]),
    Scaling.like("paddle", init_scale=1024.0, growth_interval=500),
    accumulate=10,
)


@pytest.fixture
def target_loses(monkeypatch):
    """Have every target lose what is named."""

    def lose(*losses):
        monkeypatch.setattr(module, "losses", lambda recipe, target, native: losses)

    lose()
    return lose


def ops(report):
    return {row.op: (row.recipe, row.by_default, row.code) for row in report.ops}


def settings(report):
    return {row.key: (row.kind, row.value) for row in report.rows}


# -- settings


def test_what_the_target_does_not_lose_is_kept(target_loses):
    target_loses(
        Loss("step.accumulate", "lost", "no accumulation"),
        Loss("policy.lists", "changes", "other lists"),
        Loss("policy.lists", "changes", "and other names"),
    )
    report = fidelity(PADDLE, "torch")
    assert settings(report) == {
        "policy.level": ("kept", "O1"),
        "policy.dtype": ("kept", "float16"),
        "policy.allow": ("kept", "add"),
        "policy.deny": ("kept", "cross_entropy, sum"),
        "scaler.init_scale": ("kept", "1024.0"),
        "scaler.growth_interval": ("kept", "500"),
        "policy.lists": ("changes", "paddle"),
        "step.accumulate": ("lost", "10"),
    }
    assert [row.message for row in report.of("changes")] == ["other lists", "and other names"]
    assert not report.can_be_expressed
    assert report.tables()[0].title == (
        "Fidelity (torch, native code): 6 kept exactly, 2 changed, 1 that cannot be expressed"
    )


def test_what_is_lost_need_not_be_written_in_the_recipe(target_loses):
    target_loses(Loss("scaler.max_scale", "lost", "no ceiling"))
    report = fidelity(Recipe("O1"), "torch")
    assert settings(report)["scaler.max_scale"] == ("lost", "16777216.0")


@pytest.mark.parametrize(
    "target, init_scale, growth_interval",
    [
        # keras.optimizers.LossScaleOptimizer, paddle.amp.GradScaler, torch.amp.GradScaler
        ("tensorflow", 2.0**15, 2000),
        ("paddle", 2.0**16, 2000),
        ("torch", 2.0**16, 2000),
    ],
)
def test_defaults_that_differ_are_named(target_loses, target, init_scale, growth_interval):
    messages = {row.key: row.message for row in fidelity(PADDLE, target).rows}
    assert messages["scaler.init_scale"] == f"written out: {init_scale} by default there"
    assert messages["scaler.growth_interval"] == f"written out: {growth_interval} by default there"


def test_a_default_that_the_target_has_otherwise_is_a_row_too(target_loses):
    """Fleet's rule has 1000 steps and a factor of 0.8; the recipe names neither."""
    report = fidelity(Recipe("O1", Scaling.like("paddle_fleet")), "torch")
    assert settings(report)["scaler.backoff_factor"] == ("kept", "0.8")
    assert settings(report)["scaler.growth_interval"] == ("kept", "1000")
    assert settings(report)["scaler.backoff_interval"] == ("kept", "2")


def test_no_scaling_is_a_setting(target_loses):
    report = fidelity(Recipe("O1", None), "torch")
    assert settings(report)["scaler.enabled"] == ("kept", "false")
    assert "scaler.init_scale" not in settings(report)


@pytest.mark.parametrize("target", ["toml", "ampbridge"])
def test_ampbridge_and_toml_keep_everything(target):
    report = fidelity(PADDLE, target)
    assert {row.kind for row in report.rows} == {"kept"}
    assert report.ops == ()
    assert report.can_be_expressed


# -- lines to add by hand


EVERYTHING = [
    Recipe(
        amp.Policy(
            level,
            dtype,
            lists=lists,
            allow=["add", "fused_linear"],
            deny=["sum", "erfinv", "conv2d"],
            keep=["head"],
            master_weights=level == "O1",
            execution=execution,
        ),
        Scaling.like("deepspeed") if scaled else None,
        accumulate=4,
        on_overflow="drop_microbatch" if scaled else "drop_step",
        save_dtype="float16",
    )
    for level in ("O1", "O2")
    for dtype in ("float16", "bfloat16")
    for lists in ("paddle", "torch", "tensorflow")
    for execution in ("auto", "simulated")
    for scaled in (True, False)
] + [
    Recipe(
        schedule=amp.Schedule(
            [(0, "O0"), (9, amp.Policy("O2", master_weights=False, output_dtype="float16"))]
        ),
        save_dtype="float16",
    ),
    Recipe(amp.Policy("O1", lists="native")),
]


@pytest.mark.parametrize("target", ["paddle", "tensorflow", "torch"])
@pytest.mark.parametrize("native", [True, False])
def test_each_loss_has_a_line_to_add(target, native):
    for recipe in EVERYTHING:
        for row in fidelity(recipe, target, native=native).rows:
            assert bool(row.by_hand) == (row.kind != "kept"), row
            assert "{low}" not in row.by_hand
            code, _, _ = row.by_hand.partition("  # ")
            if code and not code.startswith("--"):
                compile(code + ("\n    pass" if code.endswith(":") else ""), "<line>", "exec")
                assert len(row.by_hand) <= 120


def test_the_lines_stand_in_a_table_of_their_own():
    table = fidelity(PADDLE, "tensorflow").tables()[1]
    assert table.header == ("setting", "line to add")
    assert (
        "policy.level",
        'x = keras.ops.cast(x, "float32")  # before denied functions in your layers',
    ) in (table.rows)
    assert len(fidelity(PADDLE, "toml").tables()) == 1


@pytest.mark.parametrize(
    ("target", "words"),
    {
        "tensorflow": ("global_clipnorm", "clipnorm", "clipvalue"),
        "torch": ("clip_grad_norm_ of all", "clip_grad_norm_ of each", "clip_grad_value_"),
        "paddle": ("ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue"),
    }.items(),
)
def test_what_clips_in_the_code_is_named(target_loses, target, words):
    for setting, word in zip(("clip_norm", "clip_each_norm", "clip_value"), words, strict=True):
        recipe = PADDLE.replace(**{setting: 0.5})
        (row,) = (r for r in fidelity(recipe, target).rows if r.key == f"step.{setting}")
        assert (row.kind, row.value) == ("kept", "0.5")
        assert row.message.startswith(word)


# -- ops


def test_paddle_s_lists_on_torch(target_loses):
    """The code casts for functions that torch itself would run otherwise."""
    found = ops(fidelity(PADDLE, "torch"))
    assert found["mean"] == ("float32", "its inputs'", "float32")
    assert found["conv3d"] == ("its inputs'", "float16", "its inputs'")
    assert found["log1p"] == ("its inputs'", "float32", "its inputs'")
    assert found["add"] == ("float16", "its inputs'", "float16")
    assert not {"matmul", "linear", "conv2d", "softmax", "sum", "cross_entropy"} & found.keys()


def test_what_has_no_name_of_its_own_in_torch_changes(target_loses):
    """A mode of functions sees functions: fused_linear is aten's alone, conv2d is also depthwise."""
    report = fidelity(Recipe(amp.Policy(lists="paddle")), "torch")
    assert [row.op for row in report.ops if not row.is_kept] == ["fused_linear", "depthwise_conv2d"]


def test_torch_s_lists_on_paddle(target_loses):
    """Custom lists move an op to a list, and from one to the other; none moves it from both."""
    found = ops(fidelity(Recipe("O1"), "paddle"))
    assert found["bmm"] == ("float16", "its inputs'", "float16")
    assert found["norm"] == ("float32", "its inputs'", "float32")
    assert found["mean"] == ("its inputs'", "float32", "float32")
    assert found["embedding"] == ("its inputs'", "float32", "float32")
    assert "softmax" not in found


def test_paddle_s_custom_lists_on_paddle(target_loses):
    report = fidelity(PADDLE, "paddle")
    assert ops(report) == {"add": ("float16", "its inputs'", "float16")}
    assert report.ops[0].is_kept
    assert report.tables()[1].title.startswith(
        "Ops: 0 run in a different dtype than in the recipe; 1 run as in the recipe, "
        "unlike paddle's own lists"
    )


def test_what_shares_a_name_in_paddle_moves_too(target_loses):
    recipe = Recipe(amp.Policy(lists="paddle", deny=["conv2d"]))
    assert ops(fidelity(recipe, "paddle")) == {
        "conv2d": ("float32", "float16", "float32"),
        "conv1d": ("float16", "float16", "float32"),
    }


def test_keras_follows_the_lists_by_layers():
    found = ops(fidelity(PADDLE, "tensorflow"))
    assert found["softmax"] == ("float32", "its inputs'", "float32")  # keras.layers.Softmax
    assert found["log_softmax"] == ("float32", "its inputs'", "float32")  # an activation
    assert found["sum"] == ("float32", "float32", "its inputs'")  # a function
    assert "layer_norm" not in found
    assert "matmul" not in found or found["matmul"][0] == "float16"


def test_tensorflow_s_graph_optimizer_has_tensorflow_s_lists(target_loses):
    assert fidelity(Recipe(amp.Policy(lists="tensorflow")), "tensorflow").ops == ()
    assert fidelity(Recipe(amp.Policy("O1", "bfloat16", lists="tensorflow")), "tensorflow").ops


def test_with_ampbridge_no_op_changes(target_loses):
    report = fidelity(PADDLE, "torch", native=False)
    assert report.ops == ()
    assert report.remarks == (
        "torch: low precision is run by native kernels on GPUs; on CPUs simulated where those are slow.",
        "Op by op: ampbridge explain O1:float16 torch",
    )


def test_of_scripts_with_ampbridge_every_backend_is_told():
    remarks = fidelity(PADDLE, "ampbridge").remarks
    assert [remark.partition(":")[0] for remark in remarks[:-1]] == [
        "torch",
        "tensorflow",
        "paddle",
        "numpy",
    ]
    simulated = Recipe(amp.Policy(execution="simulated"))
    assert "paddle: simulated, as the recipe says, or refused with a hint." in (
        fidelity(simulated, "ampbridge").remarks
    )
    assert fidelity(Recipe("O0"), "ampbridge").remarks == ()


def test_float32_and_what_the_framework_decides_have_no_lists(target_loses):
    for policy in ("O0", amp.Policy(lists="native")):
        assert fidelity(Recipe(policy), "paddle").ops == ()


def test_each_policy_of_a_schedule_has_its_own_ops(target_loses):
    schedule = amp.Schedule([(0, "O0"), (10, "O1"), (20, "O2:bfloat16")])
    report = fidelity(Recipe(schedule=schedule), "paddle")
    assert {row.policy for row in report.ops} == {"O1:float16", "O2:bfloat16"}
    assert OpRow("O2:bfloat16", "bmm", "bfloat16", "its inputs'", "bfloat16") in report.ops
    assert report.tables()[1].header[0] == "policy"


# -- as data, and wrong calls


def test_the_report_is_plain_data(target_loses):
    data = json.loads(json.dumps(fidelity(PADDLE, "paddle").to_dict()))
    assert data["can_be_expressed"] is True
    assert data["ops"] == [
        {
            "policy": "O1:float16",
            "op": "add",
            "recipe": "float16",
            "by_default": "its inputs'",
            "code": "float16",
        }
    ]


def test_a_target_that_is_none():
    with pytest.raises(amp.AmpBridgeError, match=r"tensorflwo(?s:.*)Hint: .*'tensorflow'"):
        fidelity(PADDLE, "tensorflwo")
