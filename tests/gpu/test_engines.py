"""The recorded engines give what the plain ones give, on a GPU. Skipped where there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import toy
from safetensors.torch import load_file
from torch.nn import functional
from wild import SMALL, WAYS, sentences, wild_model

import lath
from lath.config import DecodeSettings, Kind, NetworkSettings
from lath.decoding.beam import beam_search
from lath.decoding.decoder import decode
from lath.devices import choose_device
from lath.engine.beam import BeamSearch
from lath.engine.beam_attention import BeamMask, _attend_through_table, attend_few, attend_gathered, few_queries
from lath.engine.fused import FusedLocalTranslator, FusedResidual, fuse
from lath.engine.graphs import Recording
from lath.engine.passes import Passes
from lath.engine.recorded import RecordedDecoder
from lath.engine.top_tokens import top_tokens_by_kernel
from lath.model.network import AT, LocalTranslator, Residual, build_model, padded_size, top_tokens
from lath.model.padding import pad
from lath.text.vocab import EOS
from lath.trainer import train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.mark.parametrize(("kind", "glancing"), [("AT", 0.0), ("CMLM", 0.0), ("LAT", 0.0), ("LAT", 0.5)])
def test_recorded_and_plain_training_end_in_the_same_weights(
    toy_folder: Path, tmp_path: Path, kind: Kind, glancing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # compiling takes a minute; recording stays
    weights = []
    for engine in ("plain", "packed"):
        base = toy.toy_recipe(tmp_path, kind, steps=5, validate_every=5)
        settings = dataclasses.replace(base.train, engine=engine, micro_batch_tokens=300)  # several packs an update
        network = dataclasses.replace(base.network, dropout=0.0)
        objective = dataclasses.replace(base.objective, glancing_share=glancing)
        recipe = dataclasses.replace(base, network=network, objective=objective, train=settings)
        train(recipe, toy_folder / "data", tmp_path / engine, device="cuda")
        weights.append(load_file(tmp_path / engine / "checkpoints" / "step-5" / "model.safetensors"))
    for name, tensor in weights[0].items():
        assert torch.allclose(tensor, weights[1][name], atol=1e-4), name


def random_sentences(count: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 20, (count,), generator=generator).tolist()
    return [[*torch.randint(6, 40, (length,), generator=generator).tolist(), EOS] for length in lengths]


@pytest.mark.parametrize("beam", [1, 5])
def test_recorded_beam_search_is_the_plain_one(beam: int) -> None:
    settings = NetworkSettings(
        kind="AT", width=64, heads=4, feedforward=96, encoder_layers=2, decoder_layers=2, max_positions=64, dropout=0.0
    )
    model = build_model(settings, 40, 40, True, torch.Generator().manual_seed(1)).eval().to(choose_device("cuda"))
    assert isinstance(model, AT)
    with torch.no_grad():  # sharpen the outputs: at its initial scale every prediction is nearly a tie
        for name, parameter in model.named_parameters():
            if "table" in name or "positions" in name:
                parameter.mul_(12)
    fused = fuse(model)
    assert isinstance(fused, AT)
    search = BeamSearch(fused, beam, 0.6)
    for count in (1, 7, 64, 7):
        source = pad(random_sentences(count, count)).to("cuda")
        with torch.inference_mode():
            expected = beam_search(model, source, beam, 0.6)
        found = search.decode(source.cpu())
        assert [result.ids for result in found] == [result.ids for result in expected]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_beam_kernel_gives_what_gathering_gives(dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    for step in (0, 7, 31, 32, 90):
        shape = (3, 91, 5, 8, 64)
        keys, values = (torch.randn(shape, generator=generator, device="cuda").to(dtype) for _ in range(2))
        query = torch.randn((3, 5, 3, 8, 64), generator=generator, device="cuda").to(dtype).unbind(2)[0]
        ancestors = torch.randint(0, 5, (3, 5, 91), generator=generator, device="cuda", dtype=torch.int32)
        mask = BeamMask(torch.tensor([step], device="cuda"), ancestors)
        found = _attend_through_table(query, keys, values, mask).float()
        expected = attend_gathered(query.float(), keys.float(), values.float(), mask)
        assert torch.allclose(found, expected, atol=1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "size", "count"), [(5, 32_001, 1), (5120, 10_003, 10), (7, 40, 4)])
def test_the_kernels_choose_the_tokens_that_the_cpu_chooses(
    dtype: torch.dtype, rows: int, size: int, count: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (3 * torch.randn(rows, padded_size(size), generator=generator)).to(dtype)
    found = top_tokens_by_kernel(logits.cuda(), size, (0, 3), count)
    expected = top_tokens(logits, size, (0, 3), count)
    assert torch.allclose(found[0].cpu(), expected[0], atol=1e-4)
    # Narrow numbers are often equal, and equals may come in any order: what counts is that the values are these.
    assert torch.equal(logits.gather(1, found[1].cpu()), logits.gather(1, expected[1]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["CMLM", "LAT"])
def test_recorded_passes_give_what_the_cpu_gives(kind: Kind, way: str) -> None:
    model, settings = wild_model(kind, 2), WAYS[way]
    for count in (1, 7, 16):
        source = sentences(count, count)
        expected = decode(model.cpu(), source, settings)
        found = Passes(fuse(model.cuda()), settings).decode(source)  # type: ignore[arg-type]
        assert [result.ids for result in found] == [result.ids for result in expected]
        assert [result.iterations for result in found] == [result.iterations for result in expected]


def test_garbage_does_not_spoil_what_is_being_recorded() -> None:
    numbers = torch.arange(4.0, device="cuda")
    old = [Recording(lambda: numbers * 2)]

    def work() -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            circle: list[object] = [old.pop()]  # nobody will hold this recording any more ...
            circle.append(circle)
            del circle
            assert len([[] for _ in range(10_000)]) == 10_000  # ... and so many new lists call the collector
        return numbers + 1

    assert torch.equal(Recording(work).replay(), numbers + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_fused_layers_compute_what_the_plain_ones_compute(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    shape, tolerance = (3, 7, 512), 1e-5 if dtype == torch.float32 else 1e-2
    settings = NetworkSettings(width=512, dropout=0.0)
    residual, local = Residual(settings).eval(), LocalTranslator(512)
    x, added, cell = (torch.randn(shape, generator=generator) for _ in range(3))
    with torch.inference_mode():
        expected = residual(x, added), *local(x, added, cell)
        given = [tensor.to("cuda", dtype) for tensor in (x, added, cell)]
        fused = FusedResidual(residual.to("cuda", dtype)), FusedLocalTranslator(local.to("cuda", dtype))
        found = fused[0](*given[:2]), *fused[1](*given)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one.float().cpu(), other, atol=tolerance)


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_batch_after_batch_while_the_device_works_on_the_next(kind: Kind) -> None:
    settings = DecodeSettings(iterations=3, beam=2)
    network = dataclasses.replace(SMALL, kind=kind, max_positions=96)
    model = build_model(network, 40, 40, True, torch.Generator().manual_seed(3)).eval()
    with torch.no_grad():  # sharpen the outputs: at its initial scale every prediction is nearly a tie
        for name, parameter in model.named_parameters():
            if "table" in name or "positions" in name:
                parameter.mul_(12)
    sources = [sentences(count, count) for count in (3, 16, 3, 1, 16)]
    expected = [decode(model.cpu(), source, settings) for source in sources]
    decoder = RecordedDecoder(fuse(model.cuda()))
    for _ in range(2):  # the second time nothing is recorded any more
        found = list(decoder.decode_many(iter(sources), settings))
        assert [[r.ids for r in batch] for batch in found] == [[r.ids for r in batch] for batch in expected]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("queries", "length"), [(5, 1), (5, 31), (5, 40), (5, 130), (31, 32), (64, 40)])
def test_few_queries_are_attended_as_by_torch(dtype: torch.dtype, queries: int, length: int) -> None:
    generator = torch.Generator("cuda").manual_seed(length)
    query = torch.randn((3, queries, 3, 8, 64), generator=generator, device="cuda").to(dtype).unbind(2)[0]
    keys, values = torch.randn((3, length, 2, 8, 64), generator=generator, device="cuda").to(dtype).unbind(2)
    bias = torch.zeros((3, 1, 1, length), dtype=dtype, device="cuda")
    bias[0, ..., length // 2 + 1 :] = -torch.inf
    bias[1, ..., : length - 1] = -torch.inf
    with torch.inference_mode():
        assert few_queries(query, bias)
        found = attend_few(query, keys, values, bias).float()
    turned = (tensor.float().transpose(1, 2) for tensor in (query, keys, values))
    expected = functional.scaled_dot_product_attention(*turned, attn_mask=bias.float()).transpose(1, 2)
    assert torch.allclose(found, expected, atol=1e-5 if dtype == torch.float32 else 5e-3)


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_the_plain_engine_launches_no_triton_kernel(
    toy_run: Callable[[str], Path], kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.runtime.jit import JITFunction

    launched, run = [], JITFunction.run

    def counted(self: JITFunction, *arguments: object, **options: object) -> object:
        launched.append(self.fn.__name__)
        return run(self, *arguments, **options)

    monkeypatch.setattr(JITFunction, "run", counted)
    lines = ["ba ko", "mi tu re sa"]
    expected = lath.load(toy_run(kind) / "model", "cuda", engine="plain").translate(lines)
    assert launched == []
    assert lath.load(toy_run(kind) / "model", "cuda", precision="fp32").translate(lines) == expected
    assert "residual_norm_kernel" in launched
