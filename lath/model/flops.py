"""The floating-point operations of an update, and the peak of a device, for model FLOPs utilisation (MFU).

Only necessary operations count: no padding and no recomputation. Padding, slow kernels and idle time therefore lower
the MFU. It is an estimate that leaves out norms, softmax, dropout and the length table (under 1 % for the paper's
network), and LAT's deletions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lath.config import NetworkSettings

if TYPE_CHECKING:
    import torch

PEAK_FLOPS = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bf16 operations per second from the data sheets. The first key found in the device's name counts."""


def update_flops(
    network: NetworkSettings,
    target_size: int,
    source_lengths: NDArray[np.integer],
    target_lengths: NDArray[np.integer],
) -> float:
    """Floating-point operations of one update, forward and backward.

    Each weight costs 2 operations per token forward and 4 backward, 6 in all. Attention costs 2 x width operations for
    the score and 2 x width for the weighted sum for each pair of query and key. Source lengths include EOS, target
    lengths BOS and EOS.
    """
    source, target = source_lengths.astype(np.float64), target_lengths.astype(np.float64)
    if network.kind == "AT":
        encoded, target = source, target - 1  # EOS is predicted but never an input
    else:
        encoded = source + 1  # LENGTH
    width, layers = network.width, network.decoder_layers
    encoder_weights = network.encoder_layers * (4 * width**2 + 2 * width * network.feedforward)
    memory_weights = layers * 2 * width**2  # keys and values of the source in each decoder layer
    decoder_weights = layers * (6 * width**2 + 2 * width * network.feedforward)
    products = encoded.sum() * encoder_weights + source.sum() * memory_weights + target.sum() * decoder_weights
    pairs = network.encoder_layers * encoded @ encoded + layers * (target @ target + source @ target)
    products += 2 * width * pairs
    if network.kind == "LAT":  # the local translator: initial h and c, then 8 matrices and the output per step
        products += target.sum() * 2 * width**2
        products += target.sum() * network.piece_length * (8 * width**2 + width * target_size)
    elif network.kind == "CMLM":  # only masked words need the output: half of them on average
        products += ((target - 1) / 2).sum() * width * target_size
    else:
        products += target.sum() * width * target_size
    return 6 * float(products)


def peak_flops(device: torch.device, count: int = 1) -> float | None:
    """Peak bf16 operations per second of `count` such devices; None for a CPU or an unknown GPU."""
    import torch

    peak = known_peak(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return None if peak is None else count * peak


def known_peak(name: str) -> float | None:
    """The table entry for a device name; None if there is none.

    >>> known_peak("NVIDIA H100 80GB HBM3")
    989000000000000.0
    """
    return next((peak for model, peak in PEAK_FLOPS.items() if model in name), None)
