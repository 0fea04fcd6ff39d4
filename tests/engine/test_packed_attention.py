"""The kernels of packed attention compute what the plain quadratic form computes, and its gradients."""

from __future__ import annotations

import pytest
from interpreter import run_interpreted

from lath.devices import HAS_TRITON

SAME = """
import torch
from lath.engine.packed_attention import attend_in_sentences
from lath.engine.packed import Packed, packed_mask
generator = torch.Generator().manual_seed(1)

def bounds(*lengths):
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)

short, long = bounds(3, 1, 9, 2, 40, 7), bounds(5, 2, 4, 0, 70, 1)  # the fourth sentence has no keys
many = bounds(*range(1, 20))
for queries, keys, causal, size in [(short, long, False, 16), (many, many, True, 16), (long, short, False, 20)]:
    # As in the network: queries, keys and values are slices of one product.
    count, other = int(queries[-1]), int(keys[-1])
    query = torch.randn(count, 3, 2, size, generator=generator)[:, 0].requires_grad_()
    key, value = torch.randn(other, 3, 2, size, generator=generator).unbind(1)[:2]
    inputs = (query, key.requires_grad_(), value.requires_grad_())
    mask = packed_mask(*(Packed(torch.zeros(int(ends[-1])), None, ends) for ends in (queries, keys)), causal)
    expected = mask.attend(*inputs)  # on the CPU, so by the plain form
    found = attend_in_sentences(*inputs, mask.key_spans, mask.query_spans, causal)
    assert torch.allclose(found, expected, atol=1e-5), (found - expected).abs().max()
    outer = torch.randn(expected.shape, generator=generator)
    for one, two in zip(torch.autograd.grad(found, inputs, outer), torch.autograd.grad(expected, inputs, outer)):
        assert torch.allclose(one, two, atol=1e-5), (one - two).abs().max()
"""


@pytest.mark.skipif(not HAS_TRITON, reason="no Triton here")
def test_the_kernels_compute_what_the_plain_form_computes() -> None:
    run_interpreted(SAME)
