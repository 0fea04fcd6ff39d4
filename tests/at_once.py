"""Requests that several threads make at once, for tests on a CPU and on a GPU."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lath.config import DecodeOptions
from lath.translator import Translator

THREADS = 8
OPTIONS: tuple[DecodeOptions, ...] = (
    {"iterations": 1},
    {"iterations": 2},
    {"iterations": 1, "length_candidates": 2},
    {"iterations": 2, "rules": "paper"},
)
Request = tuple[list[str], DecodeOptions]
Asked, Answer = TypeVar("Asked"), TypeVar("Answer")


def requests(lines: Sequence[str], count: int, seed: int) -> list[Request]:
    """One or two lines each, with different settings."""
    draw = random.Random(seed)
    return [(draw.sample(lines, draw.randint(1, 2)), draw.choice(OPTIONS)) for _ in range(count)]


def answers(translator: Translator) -> Callable[[Request], list[str]]:
    return lambda request: translator.translate(request[0], **request[1])


def asked_at_once(answer: Callable[[Asked], Answer], asked: Sequence[Asked]) -> list[Answer]:
    """The answers of several threads that start together."""
    start = threading.Barrier(THREADS)
    with ThreadPoolExecutor(THREADS, initializer=start.wait) as pool:
        return list(pool.map(answer, asked))


def wrong_answers(shared: Translator, alone: Translator, distinct: Sequence[Request], count: int) -> int:
    """How many of so many requests by threads that share a translator differ from the serial answers of another."""
    serial = list(map(answers(alone), distinct))
    asked = random.Random(count).choices(range(len(distinct)), k=count)
    found = asked_at_once(answers(shared), [distinct[number] for number in asked])
    assert len(found) == count
    return sum(texts != serial[number] for number, texts in zip(asked, found, strict=True))
