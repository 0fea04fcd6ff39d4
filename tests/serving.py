"""Servers for tests: in this process, with a small model, on a real socket if asked for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import uvicorn
from starlette.testclient import TestClient

from lath.serve.app import Server, make_app
from lath.serve.guard import Metrics
from lath.serve.limits import Keys
from lath.serve.server import listen
from lath.serve.settings import ServeSettings
from lath.serve.worker import Worker
from lath.translator import Translator

PAIR = ("xx", "yy")
ASK = {"source": "xx", "target": "yy"}


@contextlib.contextmanager
def serving(translator: Translator, keys: tuple[str, ...] = (), **settings: Any) -> Iterator[Server]:
    """A server with one model, which is warm."""
    chosen = replace(ServeSettings(), **settings)
    worker = Worker(translator, chosen)
    worker.start()
    assert worker.ready.wait(60)
    yield Server({PAIR: worker}, chosen, Keys(keys), Metrics())
    worker.stop()


def client_of(server: Server) -> TestClient:
    """A client in this process."""
    return TestClient(make_app(server), "http://127.0.0.1")


@contextlib.contextmanager
def listening(server: Server) -> Iterator[str]:
    """The server on a free port of this machine; its address."""
    with listen("127.0.0.1", 0) as listener:
        uvicorn_server = uvicorn.Server(uvicorn.Config(make_app(server), access_log=False, lifespan="off", ws="none"))
        thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not uvicorn_server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        uvicorn_server.should_exit = True
        thread.join()
