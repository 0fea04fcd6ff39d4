"""Start the server: listen, load and warm up the models, answer until a signal comes, finish what was accepted."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from lath.errors import Interrupted, UserError
from lath.serve.app import Server, make_app
from lath.serve.guard import Metrics
from lath.serve.limits import Keys, read_keys
from lath.serve.queue import Item
from lath.serve.settings import ServeSettings
from lath.serve.worker import Worker
from lath.translator import load


def serve(
    models: Sequence[Path],
    settings: ServeSettings,
    device: str = "auto",
    threads: int | None = None,
    key_file: Path | None = None,
    verifier: Path | None = None,
) -> None:
    """Serve the models until SIGTERM or Ctrl-C; what was accepted by then is still answered."""
    if verifier is not None and len(models) > 1:
        raise UserError("--verifier is for one model; make a directory of each pair with lath pair, and name those")
    keys = read_keys(key_file) if key_file else Keys([])
    with listen(settings.host, settings.port) as listener:
        server = make_server(models, settings, device, threads, keys, verifier)
        configuration = uvicorn.Config(
            make_app(server), access_log=False, server_header=False, log_level="warning", lifespan="off", ws="none"
        )
        for worker in server.workers.values():
            worker.start()
        server.detect([""])  # loads the identifier
        host, port = listener.getsockname()[:2]
        pairs = ", ".join("-".join(pair) for pair in server.workers)
        print(
            f"lath: serving {pairs} at http://{f'[{host}]' if ':' in host else host}:{port}",
            file=sys.stderr,
            flush=True,
        )
        with contextlib.suppress(Interrupted):  # uvicorn passes the signal on after it has finished
            uvicorn.Server(configuration).run(sockets=[listener])
        for worker in server.workers.values():
            worker.stop()
    print("lath: all requests are answered; stopped", file=sys.stderr)


def make_server(
    models: Sequence[Path],
    settings: ServeSettings,
    device: str,
    threads: int | None,
    keys: Keys,
    verifier: Path | None = None,
) -> Server:
    """Load the models, one for each language pair; `verifier` checks the only one."""
    metrics = Metrics()

    def observe(batch: Sequence[Item], seconds: float) -> None:
        metrics.batch.observe(len(batch))
        metrics.batch_seconds.observe(seconds)

    workers: dict[tuple[str, str], Worker] = {}
    for model in models:
        translator = load(model, device, threads=threads, verifier=verifier)
        pair = translator.info.source_language, translator.info.target_language
        if pair in workers:
            raise UserError(
                f"{model}: another model translates {pair[0]} to {pair[1]} already; leave out one of the two"
            )
        workers[pair] = Worker(translator, settings, observe)
    return Server(workers, settings, keys, metrics)


def listen(host: str, port: int) -> socket.socket:
    """A socket at the address, before anything slow is done; nobody can connect until uvicorn listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle's algorithm off; it would delay the end of every answer by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"cannot listen at {host} port {port}: {reason}; choose another with --host or --port"
        ) from None
    return listener
