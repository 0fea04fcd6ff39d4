"""The network: sizes, masks, caches, and one body for training and decoding."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from lath.config import Kind, NetworkSettings
from lath.model.network import KINDS, LAT, Model, best_tokens, build_model, padded_size
from lath.text.vocab import BOS, EOS, MASK, PAD, SOP

SMALL = NetworkSettings(
    width=32, heads=4, feedforward=48, encoder_layers=2, decoder_layers=2, max_positions=40, dropout=0.0
)


def small(kind: Kind, **changes: int) -> Model:
    settings = dataclasses.replace(SMALL, kind=kind, **changes)  # type: ignore[arg-type]
    return build_model(settings, 50, 50, True, torch.Generator().manual_seed(1)).eval()


def size_of(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(6, 50, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("kind", "millions"), [("AT", 60), ("CMLM", 62), ("LAT", 64)])
def test_base_configuration_has_the_papers_size(kind: Kind, millions: int) -> None:
    with torch.device("meta"):
        model = KINDS[kind](NetworkSettings(kind=kind), 32_000, 32_000, joint=True)
    assert size_of(model) / 1e6 == pytest.approx(millions, abs=1.1)


def test_the_local_translator_is_the_difference_between_lat_and_cmlm() -> None:
    with torch.device("meta"):
        sizes = {k: size_of(KINDS[k](NetworkSettings(kind=k), 32_000, 32_000, True)) for k in ("CMLM", "LAT")}
    assert sizes["LAT"] - sizes["CMLM"] == 2 * 512 * 512 + 2 * (512 * 4 * 512 + 4 * 512)  # about 2.63 million


@pytest.mark.parametrize(("encoder", "decoder"), [(6, 6), (12, 1), (9, 3)])
def test_depths_are_separate_settings(encoder: int, decoder: int) -> None:
    model = small("AT", encoder_layers=encoder, decoder_layers=decoder)
    assert (len(model.body.encoder.layers), len(model.body.decoder.layers)) == (encoder, decoder)


def test_separate_vocabularies_have_a_table_each_and_the_output_shares_the_targets() -> None:
    model = build_model(dataclasses.replace(SMALL, kind="AT"), 50, 70, False, torch.Generator().manual_seed(1))
    assert [table.weight.shape[0] for table in model.body.tables] == [padded_size(50), padded_size(70)]  # type: ignore[union-attr]
    assert model.body.output_table.weight.shape[0] == 72
    assert len(list(small("AT").body.tables)) == 1


def test_initial_weights_follow_the_recipe() -> None:
    with torch.device("cpu"):
        model = build_model(NetworkSettings(), 8000, 8000, True, torch.Generator().manual_seed(1))
    state = model.state_dict()
    assert state["body.tables.0.weight"].std().item() == pytest.approx(0.02, rel=0.01)
    assert state["body.encoder.layers.0.attention.project.weight"].std().item() == pytest.approx(0.0312, rel=0.02)
    assert state["body.encoder.layers.0.attention.project.bias"].abs().max().item() == 0
    assert state["local.input.bias"].abs().max().item() == pytest.approx(512**-0.5, rel=0.02)
    assert state["body.decoder.layers.5.cross_residual.norm.weight"].unique().tolist() == [1.0]
    again = build_model(NetworkSettings(), 8000, 8000, True, torch.Generator().manual_seed(1)).state_dict()
    assert all(torch.equal(state[name], again[name]) for name in state)


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_padding_changes_nothing(kind: Kind) -> None:
    model = small(kind)
    source, target = tokens(2, 7), tokens(2, 6, seed=1)
    pieces = tokens(2, 6 * model.piece_length, seed=2).view(2, 6, -1)
    plain, _ = model.output_states(source, target, pieces)
    extra = torch.full((2, 3), PAD)
    padded, _ = model.output_states(
        torch.cat([source, extra], 1),
        torch.cat([target, extra], 1),
        torch.cat([pieces, extra[:, :, None].expand(-1, -1, model.piece_length)], 1),
    )
    assert torch.allclose(plain, padded[:, :6], atol=1e-5)


def test_at_never_looks_ahead_and_the_others_do() -> None:
    changes = {}
    for kind in ("AT", "CMLM"):
        model = small(kind)  # type: ignore[arg-type]
        source, target = tokens(1, 5), tokens(1, 6, seed=1)
        changed = target.clone()
        changed[0, 4] = 49 if target[0, 4] != 49 else 48
        before, _ = model.output_states(source, target, target[:, :, None])
        after, _ = model.output_states(source, changed, target[:, :, None])
        changes[kind] = (before - after).abs().amax(dim=(2, 3))[0]
    assert changes["AT"][:4].max() == 0
    assert changes["AT"][4:].min() > 0
    assert changes["CMLM"].min() > 0


def test_cached_steps_equal_one_uncached_pass() -> None:
    model = small("AT")
    source, target = tokens(3, 6), tokens(3, 8, seed=1)
    memory = model.encode(source)
    whole, _ = model.decode(target, memory)  # type: ignore[misc]
    past, steps = None, []
    for place in range(8):
        state, past = model.decode(target[:, place : place + 1], memory, past)  # type: ignore[call-arg, misc]
        steps.append(state)
    assert torch.allclose(whole, torch.cat(steps, 1), atol=1e-5)


@pytest.mark.parametrize("piece_length", range(2, 9))
def test_teacher_forcing_on_its_own_pieces_gives_the_same_scores(piece_length: int) -> None:
    model = small("LAT", piece_length=piece_length)
    assert isinstance(model, LAT)
    memory, _ = model.encode(tokens(2, 5))
    states = model.decode(torch.full((2, 4), MASK), memory)
    written = model.pieces(states)
    assert written.tokens.shape == (2, 4, piece_length)
    forced = model.body.logits(model.local_states(states, written.tokens) * model.output_scale)
    assert best_tokens(forced, model.body.target_size)[1].equal(written.tokens)
    scores = forced.log_softmax(-1).gather(3, written.tokens[..., None])[..., 0]
    assert torch.allclose(written.scores, scores, atol=1e-5)


def test_pad_mask_and_sop_are_never_written() -> None:
    logits = torch.zeros(6, 50)
    logits[:, [PAD, MASK, SOP]] = 9.0
    logits[:, 7] = 1.0
    scores, ids = best_tokens(logits, size=50)
    assert ids.tolist() == [7] * 6
    assert torch.allclose(scores, torch.zeros(6, 50).index_fill(1, torch.tensor([PAD, MASK, SOP]), 9.0).index_fill(
        1, torch.tensor([7]), 1.0).log_softmax(1)[:, 7])  # fmt: skip


def test_length_is_a_distribution_that_never_says_zero() -> None:
    _, lengths = small("CMLM").encode(tokens(3, 5))
    assert lengths.shape == (3, SMALL.max_positions)
    assert torch.allclose(lengths.exp().sum(1), torch.ones(3))
    assert (lengths[:, 0] == -torch.inf).all()


@pytest.mark.parametrize("kind", ["AT", "CMLM", "LAT"])
def test_forward_and_backward_run_under_bf16_autocast(kind: Kind) -> None:
    model = small(kind)
    target = tokens(2, 4, seed=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states, _ = model.output_states(tokens(2, 5), target, target[:, :, None].expand(-1, -1, model.piece_length))
        logits = model.body.logits(states * model.output_scale)
    assert logits.dtype == torch.bfloat16
    logits.float().sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for name, p in model.named_parameters() if "length" not in name)


def test_a_sentence_that_is_only_eos_is_encoded() -> None:
    memory, lengths = small("LAT").encode(torch.tensor([[EOS], [BOS]]))
    assert torch.isfinite(memory.layers[0].keys).all()
    assert torch.isfinite(lengths[:, 1:]).all()
