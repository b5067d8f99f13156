"""Configuration files: what they stand for, where it stands, and hostile ones."""

import pytest

from ampbridge.errors import SourceError
from ampbridge_port.reader import formats
from ampbridge_port.reader import settings as documents

DEEPSPEED = """{
  "fp16": {
    "enabled": "auto",
    "loss_scale": 0, "hysteresis": [1, {"a": [2]}, "x]"]
  },
  "empty": {},
  "bf16": {"enabled": "auto"},
  "zero_optimization": {"stage": 3},
  "gradient_clipping": "auto"
}"""


def test_flags_that_are_filled_in_elsewhere_are_ways_to_read_the_file():
    reading = formats.read(documents.parsed(DEEPSPEED, "ds.json"), "ds.json")
    levels = {a.conditions: a.settings["policy.level"] for a in reading.alternatives}
    assert levels == {
        ("fp16.enabled", "not bf16.enabled"): "O2",
        ("not fp16.enabled", "bf16.enabled"): "O2",
        ("not fp16.enabled", "not bf16.enabled"): "O0",
    }
    assert reading.framework == "deepspeed"


def test_places_in_json():
    root = documents.parsed(DEEPSPEED, "ds.json")
    fp16 = root.table("fp16")
    assert (fp16.place.line, fp16.place.column) == (2, 10)
    assert (fp16.place_of("enabled").line, fp16.place_of("enabled").column) == (3, 15)
    assert fp16.place_of("enabled").text == '"auto"'
    assert fp16.place_of("hysteresis").line == 4
    assert root.place_of("gradient_clipping").line == 9
    assert root.table("zero_optimization").get("stage") == 3


YAML = """\
# größe
base: &base
  scale: 1_000
  ratio: .5
  on: yes
  odd: 1e3
trainer:
  <<: *base
  scale: 12
  list: [1, 'zwei', {drei: 3}]
  tagged: !!python/name:os.system
  task: !Task {key: ~}
"""


def test_values_and_places_in_yaml():
    trainer = documents.parsed(YAML, "a.yml").table("trainer")
    assert trainer.get("scale") == 12
    assert trainer.get("ratio") == 0.5
    assert trainer.get("on") is True
    assert trainer.get("odd") == "1e3"  # as PyYAML, and so these projects, read it
    assert trainer.get("list")[:2] == [1, "zwei"]
    assert trainer.get("list")[2].get("drei") == 3
    assert trainer.get("tagged") == ""
    assert trainer.table("task").get("key", "usual") is None
    place = trainer.place_of("list")
    assert (place.file, place.line, place.column) == ("a.yml", 10, 8)
    assert place.text == "[1, 'zwei', {drei: 3}]"


@pytest.mark.parametrize(
    "file, text, says",
    [
        ("a.json", '{"fp16": ', "is no JSON"),
        ("a.json", '{"a": 1, "b": {"fp16": {}, "fp16": {}}}', "'fp16' appears twice"),
        ("a.json", "[1, 2]", "holds no table but [1, 2]"),
        ("a.json", "[" * 100_000, "is no JSON"),
        ("a.json", '{"a":' * 500 + "1" + "}" * 500, "more than 100 tables"),
        ("a.json", "9" * 5000, "is no JSON"),
        ("a.json", "", "is no JSON"),
        ("a.yml", "", "holds no table"),
        ("a.yml", "- 1\n- 2", "holds no table"),
        ("a.yml", "just text", "holds no table"),
        ("a.yml", "a: [1", "is no YAML"),
        ("a.yml", "a: b: c", "is no YAML"),
        ("a.yml", "a: *missing", "is no YAML"),
        ("a.yml", "\x00\x01\x02", "is no YAML"),
        ("a.yml", "a: 1\n---\nb: 2\n", "is no YAML"),
        ("a.yml", "[" * 100_000, "more than 100"),
        ("a.yml", "- " * 100_000, "more than 100"),
        ("a.yml", "{a: " * 60_000, "more than 100"),
        ("a.yml", "&a {b: *a}", "refers to itself"),
        ("a.yml", "a: &a\n  <<: *a\n", "refers to itself"),
        ("a.yml", "a" * (2**18 + 1), "at most 262144 are read"),
    ],
)
def test_hostile_files_are_refused(file, text, says):
    with pytest.raises(SourceError) as caught:
        formats.read(documents.parsed(text, file), file)
    assert file in str(caught.value)
    assert says in str(caught.value)
    assert str(caught.value).count(file) == 1
    assert "\nHint: " in str(caught.value)
    assert len(str(caught.value)) < 500


def test_aliases_of_aliases_cost_nothing():
    """Each line has nine times the values of the line before: 9 ** 60 in all, were they written out."""
    lines = ["a0: &a0 [lol]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 61)]
    text = "\n".join([*lines, "trainer: {precision: bf16-mixed, x: *a60}"])
    reading = formats.read(documents.parsed(text, "a.yml"), "a.yml")
    assert reading.alternatives[0].settings["policy.dtype"] == "bfloat16"


@pytest.mark.parametrize(
    "file, text, framework",
    [
        ("a.json", "{}", None),
        ("package.json", '{"name": "x", "version": "1.0"}', None),
        ("a.yml", "name: ci\non: push\njobs: {}\n", None),
        ("a.json", '{"fp16": {"enabled": true}}', "deepspeed"),
        ("a.yml", "fp16: {enabled: true}", "deepspeed"),
        ("a.yml", "fp16: true\noutput_dir: x\n", "accelerate"),
        ("a.yml", "compute_environment: LOCAL_MACHINE\nmixed_precision: bf16\n", "accelerate"),
        ("a.yml", "trainer: {precision: 16-mixed}", "lightning"),
        ("a.yml", "Global: {use_amp: true}", "paddle"),
        ("a.yml", "AMP: {level: O2}", "paddle"),
        ("a.yml", "architecture: YOLO\nTrainReader: {}\n", "paddle"),
        ("a.yml", "iters: 100\nmodel: {type: UNet}\n", "paddle"),
    ],
)
def test_which_file_is_whose(file, text, framework):
    reading = formats.read(documents.parsed(text, file), file)
    assert reading.framework == framework
    assert bool(reading.alternatives) == (framework is not None)


def settings(text, file="a.yml", way=0):
    return formats.read(documents.parsed(text, file), file).alternatives[way].settings


def test_accelerate_with_fsdp_on_a_cpu_and_with_no_that_is_not_quoted():
    """accelerate/state.py casts the parameters under FSDP; accelerator.py does no fp16 on a CPU."""
    sharded = formats.read(
        documents.parsed("distributed_type: FSDP\nmixed_precision: bf16\n", "a.yml"), "a.yml"
    )
    assert sharded.alternatives[0].settings["policy.level"] == "O2"
    assert "of normalizations too" in sharded.findings[0].message
    assert settings("distributed_type: NO\nmixed_precision: no\n")["policy.level"] == "O0"
    on_cpu = "distributed_type: NO\nmixed_precision: fp16\nuse_cpu: true\n"
    assert settings(on_cpu)["policy.level"] == "O0"


def test_accelerate_under_deepspeed():
    text = """
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, gradient_accumulation_steps: 4, gradient_clipping: 0.5}
mixed_precision: fp16
"""
    found = settings(text)
    assert found["policy.level"] == "O2"
    assert found["scaler.backoff_interval"] == 2
    assert (found["step.accumulate"], found["step.clip_norm"]) == (4, 0.5)


def test_accelerate_that_leaves_it_to_a_deepspeed_file():
    text = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n"
    reading = formats.read(documents.parsed(text, "a.yml"), "a.yml")
    assert set(reading.alternatives[0].unknown) == {"policy.level"}
    assert "ampbridge port ds.json" in str(reading.findings[-1])


def test_accelerate_under_deepspeed_leaves_accumulation_to_the_script():
    reading = formats.read(
        documents.parsed("distributed_type: DEEPSPEED\nmixed_precision: bf16\n", "a.yml"), "a.yml"
    )
    assert set(reading.alternatives[0].unknown) == {"step.accumulate"}


def test_lightning_with_a_scaler_of_its_own():
    found = settings(
        """
trainer:
  plugins:
    class_path: lightning.pytorch.plugins.precision.MixedPrecision
    init_args:
      precision: 16-mixed
      device: cuda
      scaler: {class_path: torch.cuda.amp.GradScaler, init_args: {init_scale: 1024, growth_interval: 10}}
"""
    )
    assert found["policy.level"] == "O1"
    assert (found["scaler.init_scale"], found["scaler.growth_interval"]) == (1024.0, 10)


def test_values_of_omegaconf_cannot_be_known():
    reading = formats.read(
        documents.parsed("trainer: {precision: '${precision}'}", "a.yml"), "a.yml"
    )
    assert set(reading.alternatives[0].unknown) == {"policy.level", "policy.dtype"}
    assert [f.kind for f in reading.findings] == ["unknown", "unknown"]


# -- the Paddle projects: what paddle.amp makes of it is the business of its dialect


def test_paddle_ocr():
    found = settings(
        """
Global:
  use_amp: true
  scale_loss: 1024.0
  use_dynamic_loss_scaling: true
  amp_level: O1
  amp_custom_black_list: [reduce_sum]
Architecture: {}
Optimizer: {clip_norm_global: 5.0}
"""
    )
    assert found["policy.level"] == "O1"
    assert found["policy.deny"] == ["sum"]
    assert found["scaler.init_scale"] == 1024.0
    assert found.get("scaler.dynamic", True) is True
    assert found["step.clip_norm"] == 5.0


def test_paddle_ocr_by_its_defaults():
    """tools/train.py: O2 with masters, a fixed scale of 1.0."""
    reading = formats.read(
        documents.parsed("Global: {use_amp: true}\nArchitecture: {}\n", "a.yml"), "a.yml"
    )
    found = reading.alternatives[0].settings
    assert found["policy.level"] == "O2"
    assert reading.findings == ()  # it decorates the model as well
    assert (found["scaler.init_scale"], found["scaler.dynamic"]) == (1.0, False)
    off = settings("Global: {}\nArchitecture: {}\n")
    assert off["policy.level"] == "O0"


def test_paddle_clas():
    found = settings(
        "AMP: {scale_loss: 65536, use_dynamic_loss_scaling: True}\nGlobal: {update_freq: 4}"
    )
    assert found["policy.level"] == "O1"
    assert found["scaler.init_scale"] == 65536.0
    assert found["step.accumulate"] == 4
    pure = settings("AMP: {level: O2, use_amp: True}")
    assert (pure["policy.level"], pure["decorate.save_dtype"]) == ("O2", "float32")
    assert settings("AMP: {use_amp: False, level: O2}")["policy.level"] == "O0"


def test_paddle_detection():
    text = """
amp: true
architecture: PPYOLOE
custom_black_list: [reduce_mean]
init_loss_scaling: 32752
OptimizerBuilder: {clip_grad_by_norm: 35.}
LearningRate: {schedulers: [!PiecewiseDecay {gamma: 0.1}]}
"""
    reading = formats.read(documents.parsed(text, "a.yml"), "a.yml")
    assert [a.conditions for a in reading.alternatives] == [
        ("train.py --amp",),
        ("train.py without --amp",),
    ]
    amp, off = (a.settings for a in reading.alternatives)
    assert amp["policy.deny"] == ["mean"]
    assert amp["scaler.init_scale"] == 32752.0
    assert amp["step.clip_norm"] == off["step.clip_norm"] == 35.0
    assert off["policy.level"] == "O0"
    assert any(f.kind == "ignored" and "overwrites amp" in f.message for f in reading.findings)


def test_paddle_detection_o2_with_master_grad():
    text = "architecture: A\namp_level: O2\nmaster_grad: true\n"
    found = settings(text)
    assert (found["policy.level"], found["decorate.master_grad"]) == ("O2", True)
    assert found["scaler.init_scale"] == 1024.0


def test_paddle_seg():
    text = """
_base_: base.yml
iters: 80000
optimizer: {type: SGD, grad_clip_cfg: {name: ClipGradByGlobalNorm, clip_norm: 1.0}}
"""
    reading = formats.read(documents.parsed(text, "a.yml"), "a.yml")
    o1, o2, off = (a.settings for a in reading.alternatives)
    assert (o1["policy.level"], o2["policy.level"], off["policy.level"]) == ("O1", "O2", "O0")
    assert "add" in o1["policy.allow"]
    assert "batch_norm" in o1["policy.allow"]
    assert o1["policy.deny"] == ["interpolate_bilinear"]
    assert o1["scaler.init_scale"] == 1024.0
    assert o2["decorate.save_dtype"] == "float32"
    assert o1["step.clip_norm"] == 1.0
    each = "iters: 1\nmodel: {}\noptimizer: {grad_clip_cfg: {name: ClipGradByNorm, clip_norm: 1}}"
    assert (
        formats.read(documents.parsed(each, "a.yml"), "a.yml")
        .alternatives[0]
        .settings["step.clip_each_norm"]
        == 1.0
    )
    value = each.replace("ClipGradByNorm, clip_norm: 1", "ClipGradByValue, max: 0.1, min: -0.1")
    assert (
        formats.read(documents.parsed(value, "a.yml"), "a.yml")
        .alternatives[0]
        .settings["step.clip_value"]
        == 0.1
    )
    one_sided = value.replace("min: -0.1", "min: 0")
    assert any(
        "from 0.0 to 0.1" in f.message
        for f in formats.read(documents.parsed(one_sided, "a.yml"), "a.yml").findings
    )


def test_a_section_amp_of_a_program_of_one_s_own_is_no_project_s():
    """Read as DeepSpeed's it would be float32, as PaddleClas' a fixed scale of 1.0."""
    own = "optimizer: {learning_rate: 0.1}\namp: {use_amp: true, level: O1}\n"
    assert formats.read(documents.parsed(own, "config.yml"), "config.yml").framework is None
    theirs = "optimizer: {type: Adam}\namp: {enabled: true, opt_level: O1}\n"
    assert (
        formats.read(documents.parsed(theirs, "config.yml"), "config.yml").framework == "deepspeed"
    )
    own = "AMP: {ENABLE: true, INIT_LOSS_SCALING: 1024.0}\nTRAIN: {EPOCHS: 3}\n"
    assert formats.read(documents.parsed(own, "config.yml"), "config.yml").framework is None
