"""Training on several devices of one process, which JAX has to be told of before it starts."""

from pathlib import Path

from processes import run_python


def test_steps_on_eight_devices():
    tests = Path(__file__).parent / "on_eight_devices.py"
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", tests, environment=environment)
