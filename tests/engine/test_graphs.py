"""Recording without a GPU: what happens around it on the host."""

from __future__ import annotations

import contextlib
import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lath.engine.graphs import WARM_UPS, Recording, uncollected


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch.cuda whose graphs do nothing."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    replaced: dict[str, Any] = {
        "get_rng_state": lambda: None,
        "set_rng_state": lambda state: None,
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda one: contextlib.nullcontext(),
        "CUDAGraph": SimpleNamespace,
        "graph": lambda graph, pool, capture_error_mode: contextlib.nullcontext(),
    }
    for name, stand_in in replaced.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)


@pytest.mark.usefixtures("stand_ins")
def test_nothing_is_collected_while_work_is_recorded() -> None:
    collecting: list[bool] = []
    Recording(lambda: collecting.append(gc.isenabled()))
    assert collecting == [True] * WARM_UPS + [False]
    assert gc.isenabled()


@pytest.mark.usefixtures("stand_ins")
def test_work_that_cannot_be_recorded_leaves_the_collector_on() -> None:
    def work() -> None:
        if not gc.isenabled():
            raise RuntimeError("not while recording")

    with pytest.raises(RuntimeError, match="not while recording"):
        Recording(work)
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
