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


def read(text):
    return formats.read(documents.parsed(text, "a.yml"), "a.yml")


@pytest.mark.parametrize(
    "text, settings",
    [
        # accelerate/state.py casts the parameters under FSDP; accelerator.py does no fp16 on a CPU
        ("distributed_type: FSDP\nmixed_precision: bf16", {"policy.level": "O2"}),
        ("distributed_type: NO\nmixed_precision: no", {"policy.level": "O0"}),
        ("distributed_type: NO\nmixed_precision: fp16\nuse_cpu: true", {"policy.level": "O0"}),
        (
            "trainer: {plugins: {class_path: lightning.pytorch.plugins.precision.MixedPrecision, "
            "init_args: {precision: 16-mixed, device: cuda, scaler: {class_path: "
            "torch.cuda.amp.GradScaler, init_args: {init_scale: 1024, growth_interval: 10}}}}}",
            {"policy.level": "O1", "scaler.init_scale": 1024.0, "scaler.growth_interval": 10},
        ),
        ("Global: {}\nArchitecture: {}", {"policy.level": "O0"}),
        (
            "architecture: A\namp_level: O2\nmaster_grad: true",
            {"policy.level": "O2", "decorate.master_grad": True, "scaler.init_scale": 1024.0},
        ),
        (
            "iters: 1\nmodel: {}\noptimizer: {grad_clip_cfg: {name: ClipGradByNorm, clip_norm: 1}}",
            {"policy.level": "O1", "step.clip_each_norm": 1.0},
        ),
        (
            "iters: 1\nmodel: {}\n"
            "optimizer: {grad_clip_cfg: {name: ClipGradByValue, max: 0.1, min: -0.1}}",
            {"step.clip_value": 0.1},
        ),
    ],
)
def test_what_a_file_stands_for(text, settings):
    """What the corpus has not; the first of several ways to use the file."""
    assert settings.items() <= read(text).alternatives[0].settings.items()


@pytest.mark.parametrize(
    "text, says",
    [
        ("distributed_type: FSDP\nmixed_precision: bf16", "of normalizations too"),
        ("amp: true\narchitecture: PPYOLOE\nLearningRate: {}", "overwrites amp"),
        (
            "iters: 1\nmodel: {}\noptimizer: {grad_clip_cfg: {name: ClipGradByValue, max: 0.1, min: 0}}",
            "from 0.0 to 0.1",
        ),
    ],
)
def test_what_is_told_of_a_file(text, says):
    assert any(says in found.message for found in read(text).findings)


@pytest.mark.parametrize(
    "text, unknown, hint",
    [
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}",
            {"policy.level"},
            "ampbridge port ds.json",
        ),
        ("distributed_type: DEEPSPEED\nmixed_precision: bf16", {"step.accumulate"}, "--set"),
        ("trainer: {precision: '${precision}'}", {"policy.level", "policy.dtype"}, "--set"),
    ],
)
def test_what_another_file_says_is_unknown(text, unknown, hint):
    reading = read(text)
    assert set(reading.alternatives[0].unknown) == unknown
    assert any(hint in found.hint for found in reading.findings)


@pytest.mark.parametrize(
    "text, framework",
    [
        ("optimizer: {learning_rate: 0.1}\namp: {use_amp: true, level: O1}", None),
        ("optimizer: {type: Adam}\namp: {enabled: true, opt_level: O1}", "deepspeed"),
        ("AMP: {ENABLE: true, INIT_LOSS_SCALING: 1024.0}\nTRAIN: {EPOCHS: 3}", None),
    ],
)
def test_a_section_amp_of_a_program_of_one_s_own_is_no_project_s(text, framework):
    """Read as DeepSpeed's it would be float32, as PaddleClas' a fixed scale of 1.0."""
    assert read(text).framework == framework
