"""Where "auto" is decided, once: device, precision, engine, threads, batch size, ranks, and whether Triton is there."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from lath.config import NetworkSettings
from lath.errors import UserError

HAS_TRITON = importlib.util.find_spec("triton") is not None
"""Whether GPU kernels can be compiled here."""


# The threads of OpenMP do not survive a fork, and the child would wait for them for ever. On one thread it needs none.
os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


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


def rank_device(name: str, local_rank: int) -> torch.device:
    """The device of one of several ranks on this machine: a GPU of its own, or the CPU."""
    device = choose_device(name)
    if device.type == "cpu":
        return device
    if device.index is not None:
        raise UserError(f"device {name}: under torchrun every rank uses its own GPU; use --device cuda")
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"local rank {local_rank} has no GPU, this machine has {torch.cuda.device_count()}; "
            f"start one rank per GPU with torchrun --nproc-per-node, or use --device cpu"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.float32}
"""The type in which each precision computes what is not a product of matrices."""
BATCH_INVARIANT = ("fp32", "int8")
"""Precisions in which a translation does not depend on its batch; in the others near-ties may."""
INT8_FROM_WIDTH = 256
"""Networks at least this wide are twice as fast in int8, or more; narrower ones gain little (benchmarks/int8.py)."""


def choose_precision(name: str, network: NetworkSettings, device: torch.device, engine: str) -> str:
    """The precision by name; `auto` is fast and translates as well. The plain engine computes in fp32 by default."""
    if name != "auto" and name not in PRECISIONS:
        raise UserError(f"unknown precision {name!r}; use auto, {', '.join(PRECISIONS)}")
    if name == "int8" and device.type != "cpu":
        raise UserError("precision int8 is for the CPU; use --device cpu, or leave out --precision")
    if name == "int8" and engine == "plain":
        raise UserError("precision int8 replaces layers, which engine plain never does; leave out one of the two")
    if name != "auto":
        return name
    if engine == "plain":
        return "fp32"
    if device.type == "cuda":
        return "fp16"
    return "int8" if network.width >= INT8_FROM_WIDTH else "fp32"


ENGINES = ("auto", "plain", "recorded")


def choose_engine(name: str, kind: str, device: torch.device) -> str:
    """plain or recorded; `auto` records CUDA graphs on a GPU. LAT merges on the GPU by Triton kernels alone."""
    if name not in ENGINES:
        raise UserError(f"unknown engine {name!r}; use {', '.join(ENGINES[:-1])} or {ENGINES[-1]}")
    lacks_kernel = device.type == "cuda" and kind == "LAT" and not HAS_TRITON
    if lacks_kernel and name == "recorded":
        raise UserError("engine recorded: merging on the GPU needs Triton; pip install triton, or use --engine plain")
    if lacks_kernel and name == "auto":
        warnings.warn("Triton is missing, so LAT runs in plain PyTorch, which is slower", stacklevel=2)
        return "plain"
    return "recorded" if name == "recorded" or (name == "auto" and device.type == "cuda") else "plain"


SUITABLE_ROWS = {"cpu": 32, "cuda": 512}
"""Sentences, times the lengths tried for each, decoded side by side unless the settings say otherwise. On a CPU larger
arrays leave the cache."""


def suitable_batch(device: torch.device, length_candidates: int) -> int:
    """Sentences to decode side by side."""
    return max(1, SUITABLE_ROWS[device.type] // length_candidates)


_DECODES = threading.Lock()
_running = 0
"""Decodes of this process on the CPU."""
_leader: threading.Thread | None = None
"""The thread whose decodes may take several threads."""


@contextlib.contextmanager
def decode_threads(chosen: int | None) -> Iterator[None]:
    """Let one decode use so many threads of the CPU; None takes those that are idle.

    One decode at a time may take several, and always in the same Python thread: OpenMP makes a team of threads for each
    one that does, and teams that together have more threads than there are cores sleep at every step (on two cores a
    sentence then takes 28 ms instead of 11).
    """
    global _running, _leader
    with _DECODES:
        if _leader is None or not _leader.is_alive():
            _leader = threading.current_thread()
        alone = _running == 0 and _leader is threading.current_thread()
        _running += 1
    try:
        with cpu_threads(chosen or (idle_threads() if alone else 1)):
            yield
    finally:
        with _DECODES:
            _running -= 1


def idle_threads() -> int:
    """Threads for one decode: torch's own choice, less the cores that others keep busy at this moment; at least 1.

    Threads of one product wait for each other: beside a busy neighbour two take several times as long as one.
    """
    own = torch.get_num_threads()
    if own == 1:
        return 1
    try:
        running = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
        # Threads of ours that still wait for work in a loop are no neighbours.
        tasks = [Path(task.path, "stat").read_text() for task in os.scandir("/proc/self/task")]
    except OSError:  # not Linux, or a thread has ended meanwhile
        return own
    others = running - sum(task.rpartition(")")[2].split()[0] == "R" for task in tasks)
    return max(1, min(own, (os.cpu_count() or own) - max(others, 0)))


LONG = 32
"""Tokens above which fewer sentences share a batch on a CPU: they would need more memory and be no faster."""


def cut_batches(lengths: Sequence[int], most: int, device: torch.device) -> Iterator[range]:
    """Batches of sentences sorted by length, shortest first, as ranges of their places."""
    start = 0
    while start < len(lengths):
        stop = min(start + most, len(lengths))
        while device.type == "cpu" and stop > start + 1 and (stop - start) * lengths[stop - 1] > most * LONG:
            stop -= 1
        yield range(start, stop)
        start = stop


BATCHES_BEFORE_RELEASE = 2
"""Batches of a CPU between two calls of `release_memory`: after each, its page faults would cost 8 per cent."""


def release_memory() -> None:
    """Return freed memory to the system, where the C library is glibc.

    Up to 2.37 glibc hardly reuses what was allocated with an alignment, as torch does: a batch needs 60 MB at a time,
    but hundreds gather over the batches of a file.
    """
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


@contextlib.contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads of the CPU for a while; None changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
