"""The server on a real socket of this machine: many clients, slow ones, those that leave, signals, memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from conftest import Runs, Translators

pytest.importorskip("fastapi", reason="the extra serve is not installed")
from libretranslatepy import LibreTranslateAPI
from serving import ASK, listening, serving
from toy import WORDS

from lath.serve import app, guard
from lath.serve.app import Server
from lath.translator import Translator

Question = tuple[str, int | None]


@pytest.fixture(scope="module")
def translator(wild: Translators) -> Translator:
    return wild("LAT")


@pytest.fixture(scope="module")
def server(translator: Translator) -> Iterator[Server]:
    with serving(translator, max_queue=1000) as made:
        yield made


@pytest.fixture(scope="module")
def address(server: Server) -> Iterator[str]:
    with listening(server) as found:
        yield found


def questions(count: int, seed: int) -> list[Question]:
    """Texts of one to four sentences, with different numbers of passes."""
    draw = random.Random(seed)
    texts = [
        " ".join(
            " ".join(draw.choices(WORDS, k=draw.randint(1, 8))).capitalize() + "." for _ in range(draw.randint(1, 4))
        )
        for _ in range(count)
    ]
    return [(text, draw.choice((1, 2))) for text in texts]


def serial(translator: Translator, question: Question) -> str:
    text, iterations = question
    return translator.translate(text, **({} if iterations is None else {"iterations": iterations}))


def request(question: Question, close: bool = False) -> bytes:
    """A whole HTTP request."""
    text, iterations = question
    body = json.dumps({**ASK, "q": text, "iterations": iterations}).encode()
    head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return (head + ("Connection: close\r\n" if close else "") + "\r\n").encode() + body


async def answered(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and translation of the next answer on a connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(re.search(r"content-length: (\d+)", head)[1])  # type: ignore[index]
    body = json.loads(await reader.readexactly(length))
    return int(head.split()[1]), body.get("translatedText", "")


async def _one_client(address: str, asked: Sequence[Question], delay: float = 0.0) -> list[tuple[int, str]]:
    reader, writer = await asyncio.open_connection(*_host(address))
    found = []
    for question in asked:
        data = request(question)
        size = 1 if delay else len(data)
        for start in range(0, len(data), size):
            writer.write(data[start : start + size])
            await asyncio.sleep(delay)
        found.append(await answered(reader))
    writer.close()
    return found


def _host(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    return str(parts.hostname), int(parts.port or 0)


async def many_clients(address: str, asked: Sequence[Question], clients: int) -> list[list[tuple[int, str]]]:
    return await asyncio.gather(*(_one_client(address, asked[number::clients]) for number in range(clients)))


def test_an_unmodified_libretranslate_client(address: str, translator: Translator) -> None:
    client = LibreTranslateAPI(address)
    text = "Ba ko mi. Re sa?\n\n- lo & ni"
    assert client.translate(text, "xx", "yy") == translator.translate(text)
    assert [language["code"] for language in client.languages()] == ["xx", "yy"]
    assert set(client.detect(text)[0]) == {"language", "confidence"}


def test_two_hundred_clients_get_their_own_answers(address: str, translator: Translator) -> None:
    asked = questions(200, 1)
    found = asyncio.run(many_clients(address, asked, 200))
    for number, answers in enumerate(found):
        assert answers == [(200, serial(translator, question)) for question in asked[number::200]]


def test_a_client_that_leaves_frees_its_place(address: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    (worker,) = server.workers.values()
    begun, released, plain = threading.Event(), threading.Event(), worker._translate
    monkeypatch.setattr(worker, "_translate", lambda *given: (begun.set(), released.wait(30), plain(*given))[2])
    first, second = (socket.create_connection(_host(address)) for _ in range(2))
    first.sendall(request(("ba ko.", None), close=True))
    assert begun.wait(30)
    second.sendall(request(("mi. " * 500, None)))
    _until(lambda: worker.queued == 1)
    second.close()
    _until(lambda: not worker.queued)
    released.set()
    assert b" 200 " in first.recv(1 << 16)
    first.close()


def _until(true: object) -> None:
    end = time.monotonic() + 30
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.005)


def test_an_answer_is_not_held_back(address: str) -> None:
    async def waits() -> list[float]:
        reader, writer = await asyncio.open_connection(*_host(address))
        found = []
        for _ in range(60):
            begun = time.perf_counter()
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"}")
            found.append(time.perf_counter() - begun)
        writer.close()
        return found

    assert min(asyncio.run(waits())[30:]) < 0.03  # Nagle's algorithm and delayed acknowledgements take 0.04 s


def test_a_slow_client_holds_up_nobody(address: str, translator: Translator) -> None:
    async def both() -> tuple[list[tuple[int, str]], bool, list[tuple[int, str]]]:
        slow = asyncio.create_task(_one_client(address, [("ba ko.", None)], delay=0.003))
        await asyncio.sleep(0.01)
        quick = await _one_client(address, [("mi tu.", None)])
        return quick, slow.done(), await slow

    quick, slow_was_done, slow = asyncio.run(both())
    assert not slow_was_done
    assert quick == [(200, translator.translate("mi tu."))]
    assert slow == [(200, translator.translate("ba ko."))]


def test_a_client_that_never_ends_its_request_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS", 0.1)
    with socket.create_connection(_host(address)) as client:
        client.sendall(request(("ba ko.", None))[:-3])
        assert b" 408 " in client.recv(1 << 16)


LARGE = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n"


def test_fifty_megabytes_are_refused_before_they_are_sent(address: str) -> None:
    with socket.create_connection(_host(address)) as client:
        client.sendall(LARGE)
        answer = client.recv(1 << 16)
    assert b" 413 " in answer
    assert b"connection: close" in answer


def test_a_client_that_sends_fifty_megabytes_nevertheless_sees_why(address: str) -> None:
    with socket.create_connection(_host(address)) as client:
        client.sendall(LARGE + b" " * 50_000_000)
        answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert b" 413 " in answer
    assert b"send the text in parts" in answer


def test_a_body_without_an_end_is_cut(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LINGER_SECONDS", 0.2)
    head, chunk = LARGE.replace(b"Content-Length: 50000000", b"Transfer-Encoding: chunked"), b"186a0\r\n%b\r\n"
    sent = 0
    with socket.create_connection(_host(address)) as client:
        client.sendall(head)
        with pytest.raises(ConnectionError):
            while sent < 10**11:
                client.sendall(chunk % (b" " * 100_000))
                sent += 100_000
                if sent == 3_000_000:
                    assert b" 413 " in client.recv(1 << 16)
    assert sent >= 3_000_000


def test_what_is_not_http_is_refused(address: str) -> None:
    noises = [
        b"\x16\x03\x01\x02\x00\x01" * 50 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a" * 200_000,
        b"\r\n" * 5000 + b"x\r\n\r\n",
    ]
    for noise in noises:
        with socket.create_connection(_host(address)) as client, contextlib.suppress(ConnectionError):
            client.sendall(noise)
            client.shutdown(socket.SHUT_WR)
            client.recv(1 << 16)
    assert asyncio.run(_one_client(address, [("ba.", None)]))[0][0] == 200


def _resident() -> float:
    """Megabytes of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_stays_flat(address: str) -> None:
    asked = [(text.partition(".")[0], 1) for text, _ in questions(100, 3)]
    asyncio.run(many_clients(address, asked * 2, 16))
    before = _resident()
    asyncio.run(many_clients(address, asked * 5, 16))
    assert _resident() - before < 10


def test_sigterm_finishes_what_was_accepted(toy_run: Runs, trained: Translators) -> None:
    model = toy_run("LAT") / "model"
    process = subprocess.Popen(
        [sys.executable, "-m", "lath", "serve", str(model), "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    address = line.split()[-1]
    assert "serving xx-yy at http://127.0.0.1:" in line

    def is_ready() -> bool:
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{address}/health/ready").status == 200
        return False

    _until(is_ready)
    question = ("Ba ko mi. " * 40, 1)
    clients = [socket.create_connection(_host(address)) for _ in range(20)]
    for client in clients:
        client.sendall(request(question, close=True))

    def all_are_open() -> bool:
        metrics = urllib.request.urlopen(f"{address}/metrics").read().decode()
        done = re.search(r'lath_requests_total\{route="/translate",status="200"\} (\d+)', metrics)
        running = int(float(re.search(r"^lath_open_requests (\S+)", metrics, re.M)[1])) - 1  # type: ignore[index]
        return running + int(done[1] if done else 0) == len(clients)

    _until(all_are_open)
    process.send_signal(signal.SIGTERM)
    expected = trained("LAT").translate(question[0], iterations=1)
    for client in clients:
        data = b"".join(iter(lambda c=client: c.recv(1 << 16), b""))  # type: ignore[misc]
        assert b" 200 " in data[:20]
        assert json.loads(data.partition(b"\r\n\r\n")[2])["translatedText"] == expected
        client.close()
    assert process.wait(30) == 0
    assert "all requests are answered" in process.stderr.read()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(_host(address))
