"""The moving average of the weights, against the formula."""

from __future__ import annotations

import torch

from lath.config import NetworkSettings
from lath.model.network import Model, build_model
from lath.training.ema import MovingAverage, decay_at, lent_weights

TINY = NetworkSettings(
    kind="CMLM", width=8, heads=2, feedforward=8, encoder_layers=1, decoder_layers=1, max_positions=16
)


def tiny_model(seed: int) -> Model:
    return build_model(TINY, 40, 40, True, torch.Generator().manual_seed(seed))


def flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()]).double()


def test_it_is_the_formula() -> None:
    models = [tiny_model(seed) for seed in range(1, 6)]
    average = MovingAverage(models[0], 0.3)
    expected = flat(models[0].state_dict())
    for step, model in enumerate(models[1:], start=1):
        average.update(model, step)
        decay = min(0.3, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * flat(model.state_dict())
    torch.testing.assert_close(flat(average.weights), expected, atol=1e-6, rtol=1e-5)


def test_the_decay_grows_to_what_was_asked_for() -> None:
    decays = [decay_at(step, 0.99) for step in range(1, 2000)]
    assert decays == sorted(decays)
    assert (decays[0], decays[-1]) == (2 / 11, 0.99)


def test_a_model_lends_its_place_and_gets_it_back() -> None:
    model, other = tiny_model(1), tiny_model(2)
    average = MovingAverage(other, 0.9)
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    places = [parameter.data_ptr() for parameter in model.parameters()]
    with lent_weights(model, average.weights):
        assert torch.equal(flat(model.state_dict()), flat(other.state_dict()))
    assert torch.equal(flat(model.state_dict()), flat(own))
    assert [parameter.data_ptr() for parameter in model.parameters()] == places


def test_it_goes_on_from_what_was_saved() -> None:
    first, second = MovingAverage(tiny_model(1), 0.9), MovingAverage(tiny_model(2), 0.9)
    second.load(first.weights)
    for average in (first, second):
        average.update(tiny_model(3), 5)
    assert torch.equal(flat(first.weights), flat(second.weights))
