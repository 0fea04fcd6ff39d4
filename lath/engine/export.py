"""Export an AT model for CTranslate2: `lath export MODEL OUT --to ctranslate2`.

CTranslate2 is a translation engine in C++ with int8 kernels for CPUs; it runs autoregressive transformers only. An
exported directory works with any program that uses CTranslate2, and with lath itself (ctranslate2.py). docs/formats.md
lists the files.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from lath.engine.settings import ExportSettings
from lath.engine.shortlist import Shortlist, has_shortlist, load_shortlist
from lath.errors import UserError, did_you_mean, one_of
from lath.files import whole_directory
from lath.model.directory import CARD, EXPORTED, LoadedModel, is_exported, load_model, write_info
from lath.model.network import AT, NORM_EPSILON, Attention, DecoderLayer, EncoderLayer, FeedForward, padded_size
from lath.text.vocab import BOS, EOS, SPECIALS, UNK, Vocab, save_vocabs

ENGINE_WEIGHTS, ENGINE_SHORTLIST = "model.bin", "vmap.txt"
ENGINE_CONFIG = "config.json"
SHARED_NAMES, SOURCE_NAMES, TARGET_NAMES = (f"{side}_vocabulary.json" for side in ("shared", "source", "target"))
TARGETS = ("ctranslate2",)
QUANTIZATIONS = ("float32", "float16", "int8")
"""CTranslate2's names for the type of the weights. On a CPU, int8 also computes in int8, float16 in float32."""


def import_ctranslate2() -> Any:
    """The package ctranslate2, from the extra bench."""
    try:
        import ctranslate2
    except ImportError:
        raise UserError("exported models need the package ctranslate2: pip install 'lath[bench]'") from None
    return ctranslate2


def export(
    model: Path, out: Path, to: str = ExportSettings.to, quantization: str = ExportSettings.quantization
) -> None:
    """Write the AT model of a model directory in the format of another program."""
    _check_name("format", to, TARGETS)
    _check_name("quantization", quantization, QUANTIZATIONS)
    if is_exported(model):
        raise UserError(f"{model}: already exported; name the model directory it came from")
    import_ctranslate2()  # report a missing package before reading a large model
    loaded = load_model(model, torch.device("cpu"))
    if not isinstance(loaded.model, AT):
        raise UserError(
            f"{model}: a {loaded.info.network.kind} model, but CTranslate2 runs autoregressive models (AT) only; "
            f"export an AT model"
        )
    with whole_directory(out) as partial:
        spec = transformer_spec(loaded, loaded.model)
        spec.validate()
        spec.optimize(quantization)
        spec.save(str(partial))
        if has_shortlist(model):
            write_shortlist(partial / ENGINE_SHORTLIST, load_shortlist(model), loaded)
        (partial / EXPORTED).mkdir()
        save_vocabs(partial / EXPORTED, loaded.source_vocab, loaded.target_vocab)
        write_info(partial / EXPORTED, loaded.info, more=engine_files(partial))
        if (model / CARD).is_file():
            shutil.copyfile(model / CARD, partial / EXPORTED / CARD)


def engine_files(directory: Path) -> list[Path]:
    """The files of an exported directory that CTranslate2 reads."""
    names = (ENGINE_CONFIG, ENGINE_WEIGHTS, ENGINE_SHORTLIST, SHARED_NAMES, SOURCE_NAMES, TARGET_NAMES)
    return [path for name in names if os.path.lexists(path := directory / name)]


def _check_name(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise UserError(f"unknown {what} {name!r}{did_you_mean(name, known)}; use {one_of(known)}")


def token_names(vocab: Vocab) -> list[str]:
    """A unique name for each row of a model's embedding table.

    A word of the text may look like a special token. Rows beyond the vocabulary (`padded_size`) have names too, because
    they take part in the softmax.
    """
    names: dict[str, None] = {}
    for id in range(padded_size(vocab.size)):
        name = vocab.token(id) if id < vocab.size else "<unused>"
        while name in names:
            name += "#"
        names[name] = None
    return list(names)


def transformer_spec(loaded: LoadedModel, model: AT) -> Any:
    """The network in CTranslate2's terms: post-norm, exact GELU, learnt positions, unscaled embeddings."""
    specs = import_ctranslate2().specs
    network, body = loaded.info.network, model.body
    spec = specs.TransformerSpec.from_config(
        (network.encoder_layers, network.decoder_layers),
        network.heads,
        pre_norm=False,
        activation=specs.common_spec.Activation.GELU,
    )
    for side, names in (("source", token_names(loaded.source_vocab)), ("target", token_names(loaded.target_vocab))):
        getattr(spec, f"register_{side}_vocabulary")(names)
    config = spec.config
    config.bos_token, config.eos_token, config.unk_token = SPECIALS[BOS], SPECIALS[EOS], SPECIALS[UNK]
    config.decoder_start_token, config.add_source_eos = SPECIALS[BOS], True
    config.layer_norm_epsilon = NORM_EPSILON

    # Rows beyond the vocabulary (`padded_size`) are exported too, because they take part in the softmax.
    source, target = _array(_weight(body.tables[0])), _array(_weight(body.tables[-1]))
    spec.encoder.embeddings[0].weight = source
    spec.decoder.embeddings.weight = target
    spec.decoder.projection.weight = target
    for stack, positions in ((spec.encoder, body.source_positions), (spec.decoder, body.target_positions)):
        stack.scale_embeddings = False
        stack.position_encodings.encodings = _array(_weight(positions))
    for described, layer in zip(spec.encoder.layer, body.encoder.layers, strict=True):
        _fill_encoder_layer(described, cast(EncoderLayer, layer))
    for described, layer in zip(spec.decoder.layer, body.decoder.layers, strict=True):
        _fill_decoder_layer(described, cast(DecoderLayer, layer))
    return spec


def write_shortlist(path: Path, shortlist: Shortlist, loaded: LoadedModel) -> None:
    """Write a line with the tokens allowed in every sentence, then one with the candidates of each source token.

    Every source ends in EOS, which CTranslate2 does not look up, so the candidates of EOS go on the first line.
    """
    sources, targets = token_names(loaded.source_vocab), np.array(token_names(loaded.target_vocab), object)
    always = shortlist.candidates(torch.tensor([EOS])).numpy()
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"\t{' '.join(targets[always])}\n")
        for name, near in zip(sources, shortlist.near.numpy(), strict=False):
            file.write(f"{name}\t{' '.join(targets[near])}\n")


def _fill_encoder_layer(spec: Any, layer: EncoderLayer) -> None:
    _fill_self_attention(spec.self_attention, layer.attention, layer.attention_residual.norm)
    _fill_feedforward(spec.ffn, layer.feedforward, layer.feedforward_residual.norm)


def _fill_decoder_layer(spec: Any, layer: DecoderLayer) -> None:
    _fill_self_attention(spec.self_attention, layer.attention, layer.attention_residual.norm)
    cross, width = layer.cross, layer.cross.width
    queries, keys_values, output = spec.attention.linear
    _fill_linear(queries, cross.project.weight[:width], cross.project.bias[:width])
    _fill_linear(keys_values, cross.project.weight[width:], cross.project.bias[width:])
    _fill_linear(output, cross.output.weight, cross.output.bias)
    _fill_norm(spec.attention.layer_norm, layer.cross_residual.norm)
    _fill_feedforward(spec.ffn, layer.feedforward, layer.feedforward_residual.norm)


def _fill_self_attention(spec: Any, attention: Attention, norm: nn.LayerNorm) -> None:
    fused, output = spec.linear
    _fill_linear(fused, attention.project.weight, attention.project.bias)
    _fill_linear(output, attention.output.weight, attention.output.bias)
    _fill_norm(spec.layer_norm, norm)


def _fill_feedforward(spec: Any, feedforward: FeedForward, norm: nn.LayerNorm) -> None:
    _fill_linear(spec.linear_0, feedforward.widen.weight, feedforward.widen.bias)
    _fill_linear(spec.linear_1, feedforward.narrow.weight, feedforward.narrow.bias)
    _fill_norm(spec.layer_norm, norm)


def _fill_linear(spec: Any, weight: Tensor, bias: Tensor) -> None:
    spec.weight, spec.bias = _array(weight), _array(bias)


def _fill_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _weight(table: nn.Module) -> Tensor:
    assert isinstance(table, nn.Embedding)
    return table.weight


def _array(tensor: Tensor) -> npt.NDArray[np.float32]:
    """A copy, because quantisation works in place."""
    array: npt.NDArray[np.float32] = tensor.detach().float().numpy().copy()
    return array
