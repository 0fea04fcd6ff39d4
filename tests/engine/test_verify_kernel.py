"""The kernels between two passes do what the plain functions do, in Triton's interpreter; tests/gpu has the rest."""

from __future__ import annotations

import pytest
from interpreter import run_interpreted

from lath.devices import HAS_TRITON

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="no Triton here")

KERNELS = """
import sys
sys.path.insert(0, "tests")
import verify_cases
assert verify_cases.differences("cpu") == []
"""
ATTENTION = """
import torch
from torch.nn import functional
from lath.engine.beam_attention import attend_few
from lath.engine.fused import causal_mask

generator = torch.Generator().manual_seed(1)
for length in (1, 17, 40):
    query, keys, values = torch.randn((2, length, 3, 2, 16), generator=generator).unbind(2)
    mask = causal_mask(length, query)
    found = attend_few(query, keys, values, mask.bias[:, :, -1:].expand(2, -1, -1, -1), causal=True)
    assert torch.allclose(found, mask.attend(query, keys, values), atol=1e-5), length
"""
WHOLE = """
import sys
sys.path.insert(0, "tests")
import torch
from wild import verifying
from lath.config import DecodeSettings
from lath.engine import fused, verified
from lath.engine.beam_attention import attend_few
from lath.engine.merge_kernel import merge_on_device
from lath.engine.verify_kernel import extend_on_device, judge_on_device

launches = []
def attend_causally(self, query, keys, values):
    launches.append("causal")
    return attend_few(query, keys, values, self.bias[:, :, -1:].expand(len(query), -1, -1, -1), causal=True)

verified.judge_batch, verified.extend_batch, verified.merge_batch = judge_on_device, extend_on_device, merge_on_device
verified._mask, fused.CausalMask.attend = fused.FewQueryMask, attend_causally
pair = verifying(5, 6, 0.5, width=32, heads=2, decoder_layers=1, max_positions=16)
settings = DecodeSettings(verify="relaxed", verify_top=12, verify_nats=6.0, iterations=1, length_penalty=0.7)
source = torch.tensor([[9, 12, 2]])
expected = pair.decode(source, settings)[0]
found = verified.Verification(pair.student, pair.verifier, settings).decode(source)[0]
assert (found.ids, found.iterations, found.checks) == (expected.ids, expected.iterations, expected.checks)
assert abs(found.score - expected.score) < 1e-4
assert launches
"""


@pytest.mark.parametrize("script", [KERNELS, ATTENTION, WHOLE], ids=["kernels", "attention", "whole"])
def test_interpreted_kernels_are_the_plain_functions(script: str) -> None:
    run_interpreted(script)
