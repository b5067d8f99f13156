"""Every file of the installed frameworks can be read: none crashes the reader, and it takes little time.

A sample by default; all of them, some minutes, in the nightly profile (HYPOTHESIS_PROFILE=nightly).
"""

import os
import sys
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from ampbridge import port

FRAMEWORKS = ("torch", "tensorflow", "keras", "paddle")
SAMPLED = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 40
MILLISECONDS = 50.0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_file_of_a_framework_is_read(framework):
    spec = find_spec(framework)
    if spec is None or spec.origin is None:
        pytest.skip(f"{framework} is not installed")
    files = sorted(Path(spec.origin).parent.rglob("*.py"))[::SAMPLED]
    assert files
    seconds = []
    frameworks = Counter()
    errors = []
    start = time.process_time()  # of this process: others may have the machine
    for outcome in port.read_many(files):
        now = time.process_time()
        if outcome.error is not None:
            errors.append(str(outcome.error))
        else:
            frameworks[outcome.reading.framework] += 1
        if outcome.reading is None or outcome.reading.framework is None:
            seconds.append(now - start)
        start = now
    average = 1000 * sum(seconds) / len(seconds)
    print(
        f"{framework}: {len(files)} files, {dict(frameworks)}, {average:.1f} ms without AMP, {errors}"
    )
    assert sum(frameworks.values()) + len(errors) == len(files)
    assert len(errors) <= len(files) // 100, errors
    assert average <= MILLISECONDS
    assert framework not in sys.modules
