"""Every file of the installed frameworks can be read: none crashes the reader.

A sample; six times as many in the nightly profile (HYPOTHESIS_PROFILE=nightly), each day others.
In Paddle's sample is a file that is read with two hundred modules of Paddle.
"""

import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from nightly import DAY, NIGHTLY

from ampbridge import port

FRAMEWORKS = ("torch", "tensorflow", "keras", "paddle")
SAMPLED = slice(DAY % 20, None, 20) if NIGHTLY else slice(0, None, 120)


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_file_of_a_framework_is_read(framework):
    spec = find_spec(framework)
    if spec is None or spec.origin is None:
        pytest.skip(f"{framework} is not installed")
    files = sorted(Path(spec.origin).parent.rglob("*.py"))[SAMPLED]
    assert files
    frameworks = Counter()
    errors = []
    for outcome in port.read_many(files):
        if outcome.error is not None:
            errors.append(str(outcome.error))
        else:
            frameworks[outcome.reading.framework] += 1
    print(f"{framework}: {len(files)} files, {dict(frameworks)}, {errors}")
    assert sum(frameworks.values()) + len(errors) == len(files)
    assert len(errors) <= len(files) // 100, errors
    assert framework not in sys.modules
