"""The fused kernels compute what the plain layers compute."""

from __future__ import annotations

import pytest
from interpreter import run_interpreted

from lath.devices import HAS_TRITON

SAME = """
import torch
from torch.nn import functional
from lath.engine.pointwise import lstm_gates, residual_norm
from lath.model.network import LocalTranslator
generator = torch.Generator().manual_seed(1)

def draw(*shape):
    return torch.randn(*shape, generator=generator)

for width in (8, 20):
    x, added, weight, bias = draw(2, 3, width), draw(2, 3, width), draw(width), draw(width)
    found = residual_norm(x, added, weight, bias, 1e-12)
    expected = functional.layer_norm(x + added, (width,), weight, bias, 1e-12)
    assert torch.allclose(found, expected, atol=1e-5), (found - expected).abs().max()

    local = LocalTranslator(width)
    embedded, hidden, cell = 3 * draw(2, 3, width), draw(2, 3, width), 3 * draw(2, 3, width)
    with torch.no_grad():
        expected = local(embedded, hidden, cell)
        found = lstm_gates(local.input(embedded), local.recurrent(hidden), cell)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5), (one - other).abs().max()
"""


@pytest.mark.skipif(not HAS_TRITON, reason="no Triton here")
def test_the_kernels_compute_what_the_layers_compute() -> None:
    run_interpreted(SAME)
