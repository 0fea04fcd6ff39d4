"""Weights in fewer bytes: how far each is from what it was, and that int8 is rounded once."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import pytest
import torch
from conftest import CPU, Runs
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from lath.config import NetworkSettings
from lath.engine.int8 import Int8Linear, quantise
from lath.errors import UserError
from lath.model.directory import load_model
from lath.model.network import Model, build_model
from lath.model.storage import (
    COARSE_STEP,
    CODED,
    LEVELS,
    SCALE,
    SMALLER,
    SMALLEST_MATRIX,
    check_stored,
    quantise_rows,
    read_code,
    restore,
    shrink,
    write_code,
)

WIDE = NetworkSettings(
    kind="LAT", width=256, heads=4, feedforward=512, encoder_layers=1, decoder_layers=1, max_positions=64
)


def wide_model() -> Model:
    """As it starts, but with norms and biases that are not all alike."""
    model = build_model(WIDE, 2000, 2000, True, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def refusal(ask: Callable[[], object]) -> str:
    with pytest.raises(UserError) as refused:
        ask()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def back(stored: dict[str, Tensor], weights: Mapping[str, Tensor], where: str = "here") -> dict[str, Tensor]:
    """What is loaded where a network has these weights."""
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    check_stored(stored, shapes, "int8", where)
    return {name: restore(stored, name, shape, where) for name, shape in shapes.items()}


# ---- round trips ---------------------------------------------------------------------------------------------------


def test_rows_by_hand() -> None:
    matrix = torch.tensor([[1.27, -0.01, 0.024], [0.0, 0.0, 0.0], [-254.0, 3.1, 0.9]])
    numbers, scales = quantise_rows(matrix)
    assert numbers.tolist() == [[127, -1, 2], [0, 0, 0], [-127, 2, 0]]
    torch.testing.assert_close(scales, torch.tensor([0.01, 1e-12 / 127, 2.0]))
    assert (numbers.dtype, scales.dtype) == (torch.int8, torch.float32)


def finest(rows: Tensor) -> Tensor:
    return rows.abs().amax(dim=1, keepdim=True) / LEVELS


def coarse(rows: Tensor) -> Tensor:
    return COARSE_STEP * rows.square().mean(dim=1, keepdim=True).sqrt()


@pytest.mark.parametrize(
    ("storage", "step", "ending", "type_"),
    [("int8", finest, "", torch.int8), ("coded", coarse, CODED, torch.uint8)],
    ids=["int8", "coded"],
)
def test_a_matrix_is_half_a_step_away_at_most(
    storage: str, step: Callable[[Tensor], Tensor], ending: str, type_: torch.dtype
) -> None:
    weights = wide_model().state_dict()
    stored = shrink(weights, storage, "here")
    restored = back(stored, weights)
    assert restored.keys() == weights.keys()
    quantised = 0
    for name, tensor in weights.items():
        assert restored[name].dtype == torch.float32
        if tensor.dim() == 1:
            torch.testing.assert_close(restored[name], tensor, rtol=2**-11, atol=1e-7)
        else:
            assert stored[name + ending].dtype == type_
            assert bool(((restored[name] - tensor).abs() <= 0.5001 * step(tensor)).all())
            quantised += 1
    assert quantised == sum(name.endswith(SCALE) for name in stored) > 10


def test_a_matrix_in_int8_is_within_a_hundredth() -> None:
    weights = wide_model().state_dict()
    restored = back(shrink(weights, "int8", "here"), weights)
    for name, tensor in weights.items():
        assert float((restored[name] - tensor).norm() / tensor.norm()) < 0.01, name


def test_coded_rows_by_hand() -> None:
    matrix = torch.tensor([[1.0, -0.3, 0.09, 0.0], [0.0, 0.0, 0.0, 0.0], [1000.0, 0.1, 0.1, 0.1]])
    numbers, scales = quantise_rows(matrix, 0.2)
    assert numbers.tolist() == [[10, -3, 1, 0], [0, 0, 0, 0], [10, 0, 0, 0]]
    torch.testing.assert_close(scales, torch.tensor([0.2 * (1.0981 / 4) ** 0.5, 1e-12 / 127, 100.0]), rtol=1e-4, atol=0)


@given(st.integers(1, 6), st.integers(1, 300), st.integers(0, 99))
def test_a_code_is_read_as_it_was_written(rows: int, columns: int, seed: int) -> None:
    numbers = torch.randint(-127, 128, (rows, columns), dtype=torch.int8, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(read_code(write_code(numbers), numbers.shape), numbers)


def test_half_precision_keeps_eleven_bits() -> None:
    weights = wide_model().state_dict()
    stored = shrink(weights, "fp16", "here")
    assert stored.keys() == weights.keys()
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    for name, tensor in back(stored, weights).items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, weights[name], rtol=2**-11, atol=1e-7)


@given(
    st.integers(1, 6), st.integers(1, 40), st.floats(-20, 4), st.sampled_from([(), (2,), (3, 1)]), st.integers(0, 99)
)
def test_to_round_again_changes_nothing(
    rows: int, columns: int, power: float, more: tuple[int, ...], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, *more, columns, generator=generator) * 10**power
    matrix[0] = 0
    numbers, scales = quantise_rows(matrix)
    restored = back({"m": numbers, "m" + SCALE: scales}, {"m": matrix})["m"]
    again, again_scales = quantise_rows(restored)
    assert torch.equal(again, numbers)
    torch.testing.assert_close(again_scales, scales)


@pytest.mark.parametrize(("storage", "share"), [("coded", 0.14), ("int8", 0.25), ("fp16", 0.5)])
def test_a_file_is_that_much_smaller(storage: str, share: float) -> None:
    weights = wide_model().state_dict()
    assert share < len(save(shrink(weights, storage, "here"))) / len(save(weights)) < 1.04 * share


def test_small_matrices_and_vectors_are_not_worth_scales() -> None:
    width = 64
    weights = {
        "small": torch.randn(SMALLEST_MATRIX // width - 1, width),
        "large": torch.randn(SMALLEST_MATRIX // width, width),
        "vector": torch.randn(2 * SMALLEST_MATRIX),
    }
    stored = shrink(weights, "int8", "here")
    assert {name: tensor.dtype for name, tensor in stored.items()} == {
        "small": torch.float16, "large": torch.int8, "large" + SCALE: torch.float32, "vector": torch.float16,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
@pytest.mark.parametrize("storage", SMALLER)
def test_names_do_not_clash_and_a_shared_table_is_stored_once(toy_run: Runs, kind: str, storage: str) -> None:
    weights = load_model(toy_run(kind) / "model", CPU).model.state_dict()
    assert not any("/" in name for name in weights)
    stored = shrink(weights, storage, "here")
    restored = back(stored, weights)
    assert {name: tensor.shape for name, tensor in restored.items()} == {
        name: tensor.shape for name, tensor in weights.items()
    }
    tables = [name.removesuffix(CODED) for name in stored if "tables" in name and not name.endswith(SCALE)]
    assert tables == ["body.tables.0.weight"]
    save(stored)  # which refuses tensors that share memory


def test_what_is_given_stays_as_it_is() -> None:
    weights = wide_model().state_dict()
    before = {name: tensor.clone() for name, tensor in weights.items()}
    stored = shrink(weights, "int8", "here")
    kept = {name: tensor.clone() for name, tensor in stored.items()}
    back(stored, weights)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights.items())
    assert all(torch.equal(tensor, kept[name]) for name, tensor in stored.items())


# ---- the engine that rounds again ----------------------------------------------------------------------------------


def int8_layers(model: Model) -> dict[str, Int8Linear]:
    quantised = quantise(model, "integer")
    return {name: module for name, module in quantised.named_modules() if isinstance(module, Int8Linear)}


def test_int8_on_a_cpu_has_the_very_numbers_of_the_full_weights() -> None:
    model, again = wide_model(), wide_model()
    again.load_state_dict(back(shrink(model.state_dict(), "int8", "here"), model.state_dict()))
    layers, from_stored = int8_layers(model), int8_layers(again)
    assert layers.keys() == from_stored.keys()
    assert len(layers) > 10
    for name, layer in layers.items():
        assert torch.equal(layer.weight, from_stored[name].weight), name
        torch.testing.assert_close(layer.scale, from_stored[name].scale)


# ---- what can be wrong  ---------------------------------------------------------------------------------------------


MATRICES = {name: torch.randn(64, 64, generator=torch.Generator().manual_seed(4)) for name in ("m", "n")}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e6])
@pytest.mark.parametrize("storage", SMALLER)
@pytest.mark.parametrize("shape", [(7,), (64, 64)])
def test_weights_that_are_not_finite_are_reported(value: float, storage: str, shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape)
    tensor[-1] = value
    assert refusal(lambda: shrink({"fine": torch.ones(3), "norm": tensor}, storage, "runs/x")) == (
        "runs/x: norm contains values that are not finite, or too large for float16; "
        "the training has diverged, use another model"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda stored: stored.pop("m" + SCALE),
            "there: the scales of m are missing or do not fit; copy the model directory again",
        ),
        (
            lambda stored: stored.update({"m" + SCALE: torch.ones(63)}),
            "there: the scales of m are missing or do not fit; copy the model directory again",
        ),
        (
            lambda stored: stored.pop("m"),
            "there: lacks tensor 'm'; the weights are of another kind of model than config.json says",
        ),
    ],
)
def test_missing_tensors_are_reported(change: Callable[[dict[str, Tensor]], object], message: str) -> None:
    stored = shrink(MATRICES, "int8", "here")
    change(stored)
    assert refusal(lambda: back(stored, MATRICES, "there")) == message


@pytest.mark.parametrize(
    "bytes_", [b"no code at all" * 100, zlib.compress(bytes(range(256)) * 16, 0)[:-9]], ids=["damaged", "cut"]
)
def test_a_damaged_code_is_reported(bytes_: bytes) -> None:
    stored = shrink(MATRICES, "coded", "here")
    stored["m" + CODED] = torch.frombuffer(bytearray(bytes_), dtype=torch.uint8)
    message = refusal(lambda: back(stored, MATRICES, "there"))
    assert message.startswith("there: m is damaged (")
    assert message.endswith("); copy the model directory again")


@pytest.mark.parametrize("numbers", [64 * 64 - 1, 64 * 64 + 1, 1 << 26], ids=["short", "long", "bomb"])
def test_a_code_has_as_many_numbers_as_its_matrix(numbers: int) -> None:
    """A code of 64 MiB in 64 KiB would be too long already, so this one is of repetitions, which we never write."""
    stored = shrink(MATRICES, "coded", "here")
    coder = zlib.compressobj(9)
    bytes_ = coder.compress(bytes(numbers)) + coder.flush()
    with pytest.raises(ValueError, match="does not have 4096 numbers"):
        read_code(torch.frombuffer(bytearray(bytes_), dtype=torch.uint8), (64, 64))
    stored["m" + CODED] = torch.frombuffer(bytearray(bytes_), dtype=torch.uint8)
    assert refusal(lambda: back(stored, MATRICES)).startswith("here: m is ")


@pytest.mark.parametrize("storage", SMALLER)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e36])
def test_numbers_that_no_model_has_are_refused(storage: str, value: float) -> None:
    stored = shrink({**MATRICES, "bias": torch.ones(64)}, storage, "here")
    name = "m" if storage == "fp16" else "m" + SCALE
    stored[name] = stored[name].float().index_fill(0, torch.tensor(5), value)
    assert refusal(lambda: back(stored, {**MATRICES, "bias": torch.ones(64)})).startswith(
        "here: m contains values that are not finite, or too large for float16; "
    )


def test_a_code_without_scales_is_reported() -> None:
    stored = shrink(MATRICES, "coded", "here")
    del stored["m" + SCALE]
    assert refusal(lambda: back(stored, MATRICES, "there")) == (
        "there: the scales of m are missing or do not fit; copy the model directory again"
    )
