"""Tests on the virtual CUDA device: ``pytest -p ampbridge_torch.virtual_cuda.plugin``."""

from __future__ import annotations

from ampbridge_torch import virtual_cuda

virtual_cuda.install()
