"""Beam search in fixed shapes gives what the plain one gives."""

from __future__ import annotations

import pytest
import torch
from interpreter import run_interpreted

from lath.config import NetworkSettings
from lath.decoding.beam import beam_search
from lath.devices import HAS_TRITON
from lath.engine.beam import BeamSearch, batch_size
from lath.engine.beam_attention import BeamMask, attend_gathered
from lath.model.network import AT, build_model
from lath.model.padding import pad
from lath.text.vocab import EOS

SMALL = NetworkSettings(
    kind="AT", width=32, heads=4, feedforward=48, encoder_layers=1, decoder_layers=2, max_positions=64, dropout=0.0
)


def sharp_model(seed: int) -> AT:
    """A random model whose predictions are not all ties, and which ends its sentences at different lengths."""
    model = build_model(SMALL, 40, 40, True, torch.Generator().manual_seed(seed)).eval()
    assert isinstance(model, AT)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "table" in name or "positions" in name:
                parameter.mul_(12)
    return model


def sentences(count: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 20, (count,), generator=generator).tolist()
    return [[*torch.randint(6, 40, (length,), generator=generator).tolist(), EOS] for length in lengths]


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fixed_shapes_give_what_beam_search_gives(beam: int, seed: int) -> None:
    model = sharp_model(seed)
    search = BeamSearch(model, beam, 0.6)
    for count in (1, 7, 16):  # the same tensors serve one batch after the other
        source = pad(sentences(count, seed))
        with torch.inference_mode():
            expected = beam_search(model, source, beam, 0.6)
        found = search.decode(source)
        assert [result.ids for result in found] == [result.ids for result in expected]
        assert [result.score for result in found] == pytest.approx([result.score for result in expected], abs=1e-4)
        assert len({result.iterations for result in found}) > 1 or count == 1


def test_sentences_leave_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    model, search_sizes = sharp_model(1), []
    search = BeamSearch(model, 3, 1.0)
    step = search._step
    monkeypatch.setattr(search, "_step", lambda tensors, size: (search_sizes.append(size), step(tensors, size)))
    source = pad(sentences(16, 5))
    found = search.decode(source)
    assert len(set(search_sizes)) > 1
    with torch.inference_mode():
        assert [r.ids for r in found] == [r.ids for r in beam_search(model, source, 3, 1.0)]


def test_a_batch_too_large_for_the_cache_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    model = sharp_model(2)
    source = pad(sentences(9, 4))
    expected = BeamSearch(model, 2, 1.0).decode(source)
    monkeypatch.setattr("lath.engine.beam.SLOTS", 200)
    search = BeamSearch(model, 2, 1.0)
    assert [r.ids for r in search.decode(source)] == [r.ids for r in expected]
    assert max(batch for batch, _ in search._searches) < batch_size(9)


def test_a_shape_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    search, recorded = BeamSearch(sharp_model(1), 2, 1.0), []
    record = search._record
    monkeypatch.setattr(search, "_record", lambda *shape: (recorded.append(shape[:2]), record(*shape))[1])
    large, small = pad([[7] * 20 + [EOS]] * 8), pad([[7, 8, EOS]])
    for source in (large, small, large, small, large):  # what fits into the room of the largest leaves it as it is
        search.decode(source)
    assert recorded == [(8, 24), (1, 8)]


def test_attention_reads_the_past_through_the_table_of_ancestors() -> None:
    generator = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(2, 6, 3, 4, 8, generator=generator) for _ in range(2))
    query = torch.randn(2, 3, 4, 8, generator=generator)
    ancestors = torch.randint(0, 3, (2, 3, 6), generator=generator, dtype=torch.int32)
    found = attend_gathered(query, keys, values, BeamMask(torch.tensor([3]), ancestors))
    for sentence in range(2):
        for hypothesis in range(3):
            slots = ancestors[sentence, hypothesis, :4].tolist()
            own = [tensor[sentence, range(4), slots] for tensor in (keys, values)]
            for head in range(4):
                weights = (own[0][:, head] @ query[sentence, hypothesis, head] / 8**0.5).softmax(0)
                assert torch.allclose(found[sentence, hypothesis, head], weights @ own[1][:, head], atol=1e-5)


KERNEL = """
import torch
from torch.nn import functional
from lath.engine.beam_attention import BeamMask, _attend_through_table, attend_few, attend_gathered
generator = torch.Generator().manual_seed(1)
for step in (0, 3, 40):
    keys, values = (torch.randn(2, 41, 3, 4, 8, generator=generator) for _ in range(2))
    query = torch.randn(2, 3, 3, 4, 8, generator=generator).unbind(2)[1]
    ancestors = torch.randint(0, 3, (2, 3, 41), generator=generator, dtype=torch.int32)
    mask = BeamMask(torch.tensor([step]), ancestors)
    found, expected = (attend(query, keys, values, mask) for attend in (_attend_through_table, attend_gathered))
    assert torch.allclose(found, expected, atol=1e-5), (found - expected).abs().max()

for queries, length in ((5, 1), (5, 31), (5, 70), (16, 31), (40, 31)):
    query = torch.randn(2, queries, 3, 4, 16, generator=generator).unbind(2)[1]
    keys, values = torch.randn(2, length, 2, 4, 16, generator=generator).unbind(2)
    bias = torch.zeros(2, 1, 1, length)
    bias[0, ..., length // 2 + 1 :] = -torch.inf
    bias[1, ..., : length - 1] = -torch.inf  # whole blocks that are hidden come first
    found = attend_few(query, keys, values, bias)
    turned = (tensor.transpose(1, 2) for tensor in (query, keys, values))
    expected = functional.scaled_dot_product_attention(*turned, attn_mask=bias).transpose(1, 2)
    assert torch.allclose(found, expected, atol=1e-5), (length, (found - expected).abs().max())
"""


@pytest.mark.skipif(not HAS_TRITON, reason="no Triton here")
def test_the_kernel_gives_what_gathering_gives() -> None:
    run_interpreted(KERNEL)
