"""int8: near fp32 layer by layer, the same translations, and nobody's neighbours change anything."""

from __future__ import annotations

import pytest
import torch
from conftest import Runs, Translators
from torch import Tensor, nn

from lath.config import DecodeSettings, NetworkSettings
from lath.decoding.decoder import decode
from lath.engine import int8
from lath.engine.int8 import BACKENDS, LEVELS, Int8Linear, Int8Table, levels_of, load_int8, log_sum_exp, quantise
from lath.errors import UserError
from lath.model.bundled import default_model
from lath.model.directory import load_model
from lath.model.network import LAT, NEVER_WRITTEN, Model, Projection, Table, best_tokens, build_model
from lath.text.vocab import EOS, PAD

KINDS = ("AT", "CMLM", "LAT")
backends = pytest.mark.parametrize("backend", ["fbgemm", "integer"])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def small_model(kind: str, size: int = 5000) -> Model:
    settings = NetworkSettings(
        kind=kind, width=64, heads=4, feedforward=128, encoder_layers=2, decoder_layers=2, max_positions=64, dropout=0.0
    )  # type: ignore[arg-type]
    model = build_model(settings, size, size, True, torch.Generator().manual_seed(3)).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:  # something different to say everywhere
            std = 1.0 if "tables" in name or "positions" in name else 0.15
            nn.init.normal_(parameter, std=std, generator=torch.Generator().manual_seed(len(name)))
    return model


@backends
def test_a_product_is_that_of_the_integers(backend: str) -> None:
    levels = levels_of(backend)
    assert levels is not None
    weight = torch.randint(-LEVELS, LEVELS + 1, (40, 64), dtype=torch.int8, generator=torch.Generator().manual_seed(1))
    rows = torch.randint(-levels, levels + 1, (5, 64), generator=torch.Generator().manual_seed(2))
    scale = torch.rand(40, generator=torch.Generator().manual_seed(3)) + 0.1
    exact = (rows @ weight.long().t()).double() * scale / levels
    torch.testing.assert_close(
        BACKENDS[backend](weight, scale, levels)(rows / levels).double(), exact, rtol=1e-5, atol=1e-4
    )


@backends
@pytest.mark.parametrize("levels", [int8.LEVELS, int8.FEW_LEVELS])
def test_a_layer_is_near_the_plain_one(backend: str, levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "levels_of", lambda name: levels)
    plain = Projection(128, 96)
    nn.init.normal_(plain.bias)
    x = random(3, 7, 128) * torch.logspace(-3, 3, 21).view(3, 7, 1)  # rows of very different size
    wanted, quantised = plain(x), Int8Linear(plain.weight, plain.bias, backend)
    rows = (quantised(x) - wanted).norm(dim=-1) / (wanted - plain.bias).norm(dim=-1)
    assert rows.max() < (0.02 if levels == LEVELS else 0.03)
    torch.testing.assert_close(quantised.outputs(x, 10, 50), quantised(x)[..., 10:50])
    chosen = torch.tensor([5, 90, 5])
    torch.testing.assert_close(quantised.select(chosen)(x), quantised(x)[..., chosen])


def test_a_row_of_zeros_stays_what_it_is() -> None:
    layer = Int8Linear(random(8, 16), random(8), "fbgemm")
    torch.testing.assert_close(layer(torch.zeros(2, 16)), layer.bias.expand(2, 8) if layer.bias is not None else None)


@pytest.mark.parametrize(("outputs", "bias"), [(48, False), (48, True), (512, True), (2048, True)])
def test_a_row_does_not_depend_on_the_others(outputs: int, bias: bool) -> None:
    layer, x = Int8Linear(random(outputs, 64), random(outputs) if bias else None, "fbgemm"), random(9, 64)
    loud = torch.cat([x, 1e4 * random(5, 64, seed=1)])
    assert layer(loud)[:9].equal(layer(x))
    assert torch.cat([layer(row[None]) for row in x]).equal(layer(x))


@pytest.mark.parametrize("size", [4993, 5000])
def test_the_best_tokens_are_those_of_all_logits(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "ROWS", 4)
    table = Int8Table(Table(5000, 32), "fbgemm")
    states = 3 * random(4, 6, 32)
    scores, ids = table.best_tokens(states, size, NEVER_WRITTEN)
    wanted_scores, wanted = best_tokens(table.logits(states), size, NEVER_WRITTEN)
    assert ids.equal(wanted)
    torch.testing.assert_close(scores, wanted_scores)


def test_forbidden_tokens_and_rows_beyond_the_vocabulary_never_win() -> None:
    plain = Table(5000, 8)
    with torch.no_grad():
        plain.weight.zero_()[[NEVER_WRITTEN[0], 17, 4995], 0] = torch.tensor([9.0, 2.0, 7.0])
    states = torch.eye(1, 8)[None]
    scores, ids = Int8Table(plain, "fbgemm").best_tokens(states, 4990, NEVER_WRITTEN)
    assert ids.tolist() == [[17]]
    torch.testing.assert_close(scores, plain.logits(states).log_softmax(-1)[..., 17], rtol=0, atol=0.02)


def test_sums_of_exponentials() -> None:
    logits = 30 * random(5, 300)
    torch.testing.assert_close(log_sum_exp(logits, logits.amax(dim=1)), logits.logsumexp(dim=1))


@pytest.mark.parametrize("kind", KINDS)
def test_every_linear_layer_is_quantised_and_the_original_is_left_alone(kind: str) -> None:
    model = small_model(kind)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    quantised = quantise(model)
    assert not any(isinstance(module, nn.Linear) for module in quantised.modules())
    assert isinstance(quantised.body.tables[-1], Int8Table)
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("kind", [*KINDS, "bundled"])
def test_read_layer_by_layer_a_model_has_the_same_numbers(toy_run: Runs, kind: str) -> None:
    directory = default_model() if kind == "bundled" else toy_run(kind) / "model"
    wanted = quantise(load_model(directory, torch.device("cpu")).model)
    found = load_int8(directory).model
    assert (type(found), found.training) == (type(wanted), False)
    assert found.body.make_mask is wanted.body.make_mask
    assert [type(module) for module in found.modules()] == [type(module) for module in wanted.modules()]
    ours, theirs = found.state_dict(), wanted.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@backends
@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_model_translates_the_same(trained: Translators, kind: str, backend: str) -> None:
    translator = trained(kind)
    lines = ["ba ko mi", "tu re sa lo ni", "pe du", "fa gu ba", "mi"]
    wanted = list(translator.hypotheses(lines))
    translator.model = quantise(translator.model, backend)
    found = list(translator.hypotheses(lines))
    assert sum(a.text == b.text for a, b in zip(wanted, found, strict=True)) >= 4
    assert all(
        a.score == pytest.approx(b.score, abs=0.1) for a, b in zip(wanted, found, strict=True) if a.text == b.text
    )


@pytest.mark.parametrize("kind", KINDS)
def test_seven_at_once_are_seven_alone(kind: str) -> None:
    model = quantise(small_model(kind, size=200))
    settings = DecodeSettings(iterations=3, length_candidates=2, beam=2)
    generator = torch.Generator().manual_seed(5)
    sentences = [torch.randint(6, 200, (length,), generator=generator).tolist() for length in (3, 9, 1, 5, 12, 7, 4)]
    longest = max(map(len, sentences)) + 3
    padded = torch.tensor([[*ids, EOS, *[PAD] * (longest - len(ids))] for ids in sentences])
    together = decode(model, padded, settings)
    alone = [decode(model, torch.tensor([[*ids, EOS]]), settings)[0] for ids in sentences]
    # Attention is in floating point, and padding changes its last digit; where a number lies just between two levels
    # that digit decides, and a model that knows nothing may then say something else.
    assert sum(one.ids == other.ids for one, other in zip(together, alone, strict=True)) >= 6


@backends
def test_the_backends_agree(backend: str) -> None:
    model = small_model("LAT")
    assert isinstance(model, LAT)
    states = random(2, 5, 64)
    one, other = quantise(model, "fbgemm"), quantise(model, backend)
    assert isinstance(one, LAT)
    assert isinstance(other, LAT)
    with torch.inference_mode():
        torch.testing.assert_close(one.local.start(states), other.local.start(states), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(one.pieces(states).scores, other.pieces(states).scores, rtol=0.02, atol=0.02)


def test_a_backend_that_does_not_work_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "levels_of", lambda name: None)
    with pytest.raises(UserError, match="int8 does not work on this machine; use fp32"):
        int8.choose_backend()
    with pytest.raises(UserError, match="int8 backend 'integer' does not work on this machine"):
        quantise(small_model("AT"), "integer")


def test_where_torch_has_lost_its_fastest_the_next_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(weight: Tensor, scale: Tensor, levels: int) -> int8.Product:
        raise AttributeError("no such operator")

    monkeypatch.setitem(int8.BACKENDS, "fbgemm", gone)
    levels_of.cache_clear()
    try:
        assert int8.choose_backend() == "integer"
    finally:
        levels_of.cache_clear()


def test_an_unknown_backend_is_told() -> None:
    with pytest.raises(UserError, match="unknown int8 backend 'intger' .did you mean 'integer'..; use fbgemm, integer"):
        quantise(small_model("AT"), "intger")


def test_few_levels_where_bytes_are_added_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturating(weight: Tensor, scale: Tensor, levels: int) -> int8.Product:
        def product(rows: Tensor) -> Tensor:
            shifted = (rows * levels).round() + levels + 1
            pairs = (shifted[:, None, :] * weight).unflatten(-1, (-1, 2)).sum(-1).clamp(-32768, 32767)
            return (pairs.sum(-1) - (levels + 1) * weight.sum(1)) * scale / levels

        return product

    monkeypatch.setitem(int8.BACKENDS, "saturating", saturating)
    assert levels_of("saturating") == int8.FEW_LEVELS
