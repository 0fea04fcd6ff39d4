"""Where "auto" is decided, once: the device, the precision, whether Triton is there."""

from __future__ import annotations

import importlib.util

import torch

from lath.config import NetworkSettings
from lath.errors import UserError

HAS_TRITON = importlib.util.find_spec("triton") is not None
"""Whether GPU kernels can be compiled here."""


def choose_device(name: str) -> torch.device:
    """A torch device by name; `auto` takes a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device: torch.device | None = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"unknown device {name!r}; use cpu, cuda or auto")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: this machine has no usable GPU; use --device cpu")
    if device.type == "cuda":
        # cuDNN's attention builds a plan for each new shape: half a second a batch where lengths vary.
        torch.backends.cuda.enable_cudnn_sdp(False)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {name}: this machine has {torch.cuda.device_count()} GPUs, the first is cuda:0")
    return device


PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.float32}
"""The type in which each precision computes what is not a product of matrices."""
INT8_FROM_WIDTH = 256
"""Networks at least this wide are twice as fast in int8, or more; narrower ones gain little (benchmarks/int8.py)."""


def choose_precision(name: str, network: NetworkSettings, device: torch.device, engine: str) -> str:
    """The precision by name; `auto` is what is fast and still translates as well. The plain engine computes in fp32."""
    if name != "auto" and name not in PRECISIONS:
        raise UserError(f"unknown precision {name!r}; use auto, {', '.join(PRECISIONS)}")
    if name == "int8" and device.type != "cpu":
        raise UserError("precision int8 is for the CPU; use --device cpu, or leave out --precision")
    if name != "auto":
        return name
    if engine == "plain":
        return "fp32"
    if device.type == "cuda":
        return "fp16"
    return "int8" if network.width >= INT8_FROM_WIDTH else "fp32"
