"""CUDA graphs: work on the device that is recorded once and then replayed with one launch.

A decode or a training step is thousands of small kernels; where launching one takes longer than running it, the host
sets the pace. A recording fixes every shape and address, so what varies must be copied into tensors that stay.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Inputs = TypeVar("Inputs")
Result = TypeVar("Result")

WARM_UPS = 2
"""Runs before a recording: compilers, autotuners and libraries set themselves up in the first."""
_RECORDING = threading.Lock()
"""One recording at a time: each pauses the process's garbage collector and borrows streams, of which torch has 32."""


class Recording(Generic[Result]):
    """Work recorded on the current device; `replay` does it again on what its input tensors then hold."""

    def __init__(self, work: Callable[[], Result], pool: Any = None) -> None:
        """Record `work`. Recordings that share a `pool` share memory: a replay may overwrite another's results."""
        with _RECORDING:
            random_state = torch.cuda.get_rng_state()
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            # thread_local: other threads may allocate and wait meanwhile; by default that would break this recording.
            with uncollected(), torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
                self._result = work()
            torch.cuda.set_rng_state(random_state)

    def replay(self) -> Result:
        """Start the recorded work; the result is in the same tensors every time."""
        self._graph.replay()
        return self._result


class RecordedCall(Generic[Inputs, Result]):
    """A function of tensors of fixed shapes: recorded on a GPU at the first call, elsewhere called as it is.

    Later calls copy their inputs into the tensors of the first; results are in the same tensors every time.
    """

    def __init__(self, work: Callable[[Inputs], Result], device: torch.device) -> None:
        self._work, self._device = work, device
        self._inputs: Inputs | None = None
        self._recording: Recording[Result] | None = None

    def __call__(self, inputs: Inputs, after_recording: Callable[[], None] = lambda: None) -> Result:
        """The result. `after_recording` undoes what the runs before a recording have left behind."""
        if self._device.type != "cuda":
            return self._work(inputs)
        if self._recording is None:
            self._inputs = inputs  # the recording reads these tensors
            self._work(inputs)  # compiles
            torch.cuda.empty_cache()  # the recording allocates as much again, in its own pool
            self._recording = Recording(lambda: self._work(inputs))
            torch.cuda.empty_cache()
            after_recording()
        torch._foreach_copy_(tensors_of(self._inputs), tensors_of(inputs))
        return self._recording.replay()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pause the cyclic garbage collector: if it destroyed an old recording now, the one being made would fail."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a nest of dataclasses, tuples and lists, in order."""
    if isinstance(value, Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, (tuple, list)):
        return [tensor for part in value for tensor in tensors_of(part)]
    return []


def recorded(work: Callable[[], Result], device: torch.device, pool: Any = None) -> Callable[[], Result]:
    """Something that does the work again at each call: recorded on a GPU, elsewhere the work itself."""
    return Recording(work, pool).replay if device.type == "cuda" else work


class Held(Generic[Result]):
    """What some work has left where other work reads it: on a GPU always the same tensors."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work, self.result = work, work()

    def run(self) -> None:
        """Do the work again."""
        self.result = self._work()


def side_by_side(
    first: Callable[[], Result], second: Callable[[], Inputs], side: torch.cuda.Stream | None
) -> tuple[Result, Inputs]:
    """The results of two works, of which a GPU does the first on the stream `side`, beside the second."""
    if side is None:
        return first(), second()
    here = torch.cuda.current_stream()
    side.wait_stream(here)
    with torch.cuda.stream(side):
        one = first()
    other = second()
    here.wait_stream(side)
    return one, other


class Fetched:
    """A result on its way to the CPU: a recording may overwrite it on the device as soon as it has left."""

    def __init__(self, result: Tensor) -> None:
        self._here, self._arrived = result, None
        if result.is_cuda:
            self._here = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
            self._here.copy_(result, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def wait(self) -> Tensor:
        """The result, once it is here."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._here
