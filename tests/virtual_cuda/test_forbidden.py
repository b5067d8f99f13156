"""CUDA's autocast forbids ``binary_cross_entropy``; regions run it in float32, as on the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from recorder import run_eager

import ampbridge as amp

P = torch.linspace(0.1, 0.9, 5)
T = torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])

POLICIES = (
    amp.Policy("O1", "float16"),
    amp.Policy("O2", "bfloat16"),
    amp.Policy("O1", "float16", deny=["binary_cross_entropy"]),
    amp.Policy("O1", "bfloat16", lists="safe"),
    amp.Policy("O1", "float16", lists="tensorflow"),
)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_denied_binary_cross_entropy_is_float32(policy: amp.Policy) -> None:
    low = P.to(getattr(torch, policy.dtype))
    given = low.cuda().requires_grad_()
    with amp.autocast(policy, "torch"):
        loss = torch.nn.BCELoss()(given, T.cuda())
    loss.backward()
    wide = low.float().requires_grad_()
    expected = F.binary_cross_entropy(wide, T)
    expected.backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.cpu(), expected)
    torch.testing.assert_close(given.grad.cpu(), wide.grad.to(low.dtype))
    region = amp.autocast(policy, "torch")
    assert run_eager(F.binary_cross_entropy, [low.cuda(), T.cuda()], region).dtypes == {"float32"}


def test_it_stays_forbidden_outside_of_regions() -> None:
    with amp.autocast("O1", "torch"):
        pass
    for region in (
        torch.autocast("cuda", torch.float16),
        amp.autocast(amp.Policy(lists="native"), "torch"),
    ):
        with pytest.raises(RuntimeError, match="unsafe to autocast"), region:
            F.binary_cross_entropy(P.cuda(), T.cuda())
    assert F.binary_cross_entropy(P.cuda(), T.cuda()).dtype == torch.float32
