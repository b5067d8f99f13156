"""What ``Policy.auto`` favours, on devices that a toy framework pretends to have."""

import logging

import pytest

import ampbridge as amp
from ampbridge.adapters import registry
from ampbridge.adapters.roles.probing import Device
from ampbridge.policies import hardware

CPU = Device("cpu", "cpu", "A CPU")
AMX = Device("cpu", "cpu", "A CPU", bfloat16_instructions=("AMX", "AVX512-BF16"))
TPU = Device("tpu:0", "tpu", "A TPU")
NPU = Device("npu:0", "npu", "An NPU")
AMD = Device("cuda:0", "gpu", "An AMD GPU")


def gpu(major, minor, index=0):
    return Device(f"cuda:{index}", "gpu", f"GPU {index}", (major, minor))


@pytest.fixture
def machine(toy, monkeypatch):
    """Sets the devices of the one framework in use, and what fails on them."""
    monkeypatch.setattr(registry, "names_in_use", lambda: ["toyframework"])

    def have(*devices, failures=()):
        monkeypatch.setattr(toy.Backend, "hardware", devices)
        monkeypatch.setattr(toy.Backend, "failures", dict(failures))

    return have


@pytest.mark.parametrize(
    "device, policy, reason",
    [
        (gpu(6, 1), "O0", "compute capability 6.1 (bfloat16 is fast from 8.0, float16 from 7.0)"),
        (gpu(7, 0), "O1:float16", "compute capability 7.0"),
        (gpu(7, 5), "O1:float16", "compute capability 7.5"),
        (gpu(8, 0), "O1:bfloat16", "compute capability 8.0"),
        (gpu(8, 9), "O1:bfloat16", "compute capability 8.9"),
        (gpu(12, 0), "O1:bfloat16", "compute capability 12.0"),
        (AMX, "O1:bfloat16", "A CPU has AMX and AVX512-BF16"),
        (CPU, "O0", "A CPU has no AMX or AVX512-BF16 that toyframework could use"),
        (TPU, "O1:bfloat16", "A TPU multiplies bfloat16"),
        (NPU, "O1:bfloat16", "An NPU is an accelerator (npu)"),
        (AMD, "O0", "nothing is known of 16-bit products on An AMD GPU (gpu)"),
    ],
)
def test_what_a_device_favours(machine, device, policy, reason):
    machine(device)
    assert str(amp.Policy.auto()) == policy
    assert reason in hardware.recommend().reason


@pytest.mark.parametrize("device", [AMX, TPU], ids=["cpu", "tpu"])
def test_a_dtype_that_the_framework_fails_in_is_not_favoured(machine, device):
    machine(device, failures={"bfloat16": "no kernel"})
    found = hardware.recommend()
    assert found.policy == amp.Policy("O0")
    assert found.reason.endswith("; toyframework failed in bfloat16: no kernel")


def test_another_accelerator_has_a_second_best(machine):
    machine(NPU, failures={"bfloat16": "no kernel"})
    assert amp.Policy.auto() == amp.Policy("O1", "float16")


def test_a_gpu_has_a_second_best(machine):
    machine(gpu(9, 0), failures={"bfloat16": "no kernel"})
    assert amp.Policy.auto() == amp.Policy("O1", "float16")
    machine(gpu(9, 0), failures={"bfloat16": "no kernel", "float16": "none either"})
    found = hardware.recommend()
    assert found.policy == amp.Policy("O0")
    assert "failed in bfloat16: no kernel; toyframework failed in float16: none" in found.reason


def test_without_a_device_the_first_counts(machine):
    machine(gpu(7, 0), gpu(8, 0, index=1), CPU)
    assert amp.Policy.auto() == amp.Policy("O1", "float16")


@pytest.mark.parametrize("name", ["cpu", "cpu:0"])
def test_the_cpu_can_be_asked_for(machine, name):
    machine(gpu(9, 0), CPU)
    assert amp.Policy.auto(name) == amp.Policy("O0")


@pytest.mark.parametrize("name", ["cuda", "gpu", "cuda:0", "gpu:0"])
def test_cuda_and_gpu_are_one(machine, name):
    machine(CPU, gpu(7, 0), gpu(8, 0, index=1))
    assert amp.Policy.auto(name) == amp.Policy("O1", "float16")


@pytest.mark.parametrize("name", ["cuda:1", "gpu:1"])
def test_a_gpu_by_its_index(machine, name):
    machine(gpu(7, 0), gpu(8, 0, index=1), CPU)
    assert amp.Policy.auto(name) == amp.Policy("O1", "bfloat16")


def test_an_object_that_is_spelt_like_a_device(machine):
    class TorchDevice:
        def __str__(self):
            return "cuda:0"

    machine(CPU, gpu(8, 0))
    assert amp.Policy.auto(TorchDevice()) == amp.Policy("O1", "bfloat16")


def test_the_reason_is_logged(machine, caplog):
    machine(gpu(8, 0))
    with caplog.at_level(logging.INFO, "ampbridge"):
        amp.Policy.auto()
    assert "O1:bfloat16: GPU 0 has compute capability 8.0" in caplog.text


def test_two_frameworks_that_agree(machine, toy, monkeypatch):
    class Other(toy.Backend):
        name = "otherframework"

    amp.register_backend("otherframework", Other)
    monkeypatch.setattr(registry, "names_in_use", lambda: ["otherframework", "toyframework"])
    machine(gpu(8, 0))
    assert amp.Policy.auto() == amp.Policy("O1", "bfloat16")


def test_frameworks_without_the_device_do_not_count(machine, toy, monkeypatch):
    class Other(toy.Backend):
        name = "otherframework"
        hardware = (CPU,)

    amp.register_backend("otherframework", Other)
    machine(gpu(8, 0))
    monkeypatch.setattr(registry, "names_in_use", lambda: ["otherframework", "toyframework"])
    assert amp.Policy.auto("cuda") == amp.Policy("O1", "bfloat16")


# -- what "auto" is on a CPU


@pytest.fixture
def asked(monkeypatch):
    """Sets the environment variable, or removes it; a process reads it once."""
    hardware.asked_execution.cache_clear()

    def ask(value):
        hardware.asked_execution.cache_clear()
        if value is None:
            monkeypatch.delenv("AMPBRIDGE_CPU_EXECUTION", raising=False)
        else:
            monkeypatch.setenv("AMPBRIDGE_CPU_EXECUTION", value)

    yield ask
    hardware.asked_execution.cache_clear()


@pytest.mark.parametrize("fast", [False, True])
def test_the_environment_decides_before_the_speed(asked, fast):
    by_speed = "native" if fast else "simulated"
    for value, expected in [
        ("native", "native"),
        ("simulated", "simulated"),
        ("auto", by_speed),
        (None, by_speed),
    ]:
        asked(value)
        assert hardware.auto_execution(lambda: fast) == expected


def test_another_word_in_the_environment_is_refused(asked):
    asked("Native")
    with pytest.raises(amp.ArgumentError) as error:
        hardware.auto_execution(lambda: True)
    assert str(error.value) == (
        "Passed AMPBRIDGE_CPU_EXECUTION='Native' in the environment; "
        "allowed are 'native', 'simulated' or 'auto'.\n"
        "Hint: export AMPBRIDGE_CPU_EXECUTION=simulated"
    )


# -- this machine's CPU

SPR = """processor\t: 0
model name\t: Xeon of a test
flags\t\t: fpu avx512_bf16 amx_bf16 amx_tile

processor\t: 1
model name\t: another
"""


@pytest.mark.parametrize(
    "text, instructions",
    [
        (SPR, ("AMX", "AVX512-BF16")),
        (SPR.replace("amx_bf16 ", ""), ("AVX512-BF16",)),
        (SPR.replace("avx512_bf16", "avx512f").replace("amx_bf16", ""), ()),
        ("Features\t: fp asimd bf16\n", ()),
        ("", ()),
    ],
)
def test_what_linux_says_of_a_cpu(tmp_path, monkeypatch, text, instructions):
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    monkeypatch.setattr(hardware, "CPUINFO", str(file))
    assert hardware.bfloat16_instructions() == instructions
    assert hardware.cpu_model() == "Xeon of a test" if "model" in text else hardware.cpu_model()


def test_a_system_without_that_file(tmp_path, monkeypatch):
    """MacOS and Windows."""
    monkeypatch.setattr(hardware, "CPUINFO", str(tmp_path / "nowhere"))
    assert hardware.bfloat16_instructions() == ()
    assert hardware.cpu_model()
