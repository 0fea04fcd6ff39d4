"""The kernels that choose tokens choose what the plain way chooses."""

from __future__ import annotations

import pytest
from interpreter import run_interpreted

from lath.devices import HAS_TRITON

SAME = """
import torch
from lath.engine.top_tokens import top_tokens_by_kernel
from lath.model.network import top_tokens
generator = torch.Generator().manual_seed(1)
for columns, size, forbidden, count in [(5000, 4995, (0, 3), 10), (40, 40, (1, 4, 5, 2), 1), (40, 37, (), 4)]:
    logits = 3 * torch.randn(2, 3, columns, generator=generator)
    logits[0, 0, forbidden[:1]] = 50.0  # would win if it could
    logits[1, 1, size:] = 40.0  # so would what is beyond the vocabulary
    found, expected = (choose(logits, size, forbidden, count) for choose in (top_tokens_by_kernel, top_tokens))
    assert found[1].tolist() == expected[1].tolist()
    assert torch.allclose(found[0], expected[0], atol=1e-5)
tied = torch.zeros(1, 200)
assert top_tokens_by_kernel(tied, 200, (0,), 3)[1].tolist() == [[1, 2, 3]]
"""


@pytest.mark.skipif(not HAS_TRITON, reason="no Triton here")
def test_the_kernels_choose_what_the_plain_way_chooses() -> None:
    run_interpreted(SAME)
