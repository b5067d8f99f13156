"""Models for Paddle: paddle.vision."""

from __future__ import annotations

import os
import warnings

import pytest
from properties import LEVELS, LOW, NEARNESS, ROUNDING, ByTheRule
from zoo import Subject, parameters

import ampbridge as amp

os.environ.setdefault("OMP_NUM_THREADS", "1")  # several make Paddle print a warning
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of a missing ccache, and of its own dependencies
    import paddle_models
    from in_paddle import Paddle

QUICK = {"lenet", "mobilenet-v1", "shufflenet-v2"}


@pytest.fixture(scope="module", params=parameters(paddle_models.SPECIMENS, QUICK))
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(request.param, Paddle(), tmp_path_factory.mktemp("zoo"))


class TestPaddle(ByTheRule):
    """Paddle has no mixed precision on a CPU that these could be held against."""

    @pytest.mark.parametrize("low", LOW)
    @pytest.mark.parametrize("level", LEVELS)
    def test_losses_are_as_near_to_float32_as_natively(
        self, subject: Subject, level: str, low: str
    ) -> None:
        """The first loss, held against one whose weights and pictures alone were rounded."""
        loss, plain = (
            run.losses[0]
            for run in (subject.train(amp.Policy(level, low)), subject.native("float32"))
        )
        rounded = Paddle().rounded_loss(subject.specimen, low)
        allowed = max(abs(rounded - plain), ROUNDING[low] * abs(plain))
        assert abs(loss - plain) <= NEARNESS[level] * allowed
