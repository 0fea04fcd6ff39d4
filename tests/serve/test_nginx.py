"""Two processes behind nginx, with the configuration of docs/serving.md (skipped without nginx)."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Translators

pytest.importorskip("fastapi", reason="the extra serve is not installed")
from serving import ASK, listening, serving

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
PAGE = Path(__file__).parents[2] / "docs/serving.md"


@contextlib.contextmanager
def nginx(folder: Path, upstreams: list[str]) -> Iterator[str]:
    """nginx with the page's configuration, on a free port; its address."""
    found = re.search(r"```nginx\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sites = found[1].replace("8080", str(port))
    for number, upstream in zip((5001, 5002), upstreams, strict=True):
        sites = sites.replace(f"127.0.0.1:{number}", upstream.removeprefix("http://"))
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"pid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}{sites}}}\n",
        encoding="utf-8",
    )
    process = subprocess.Popen([str(NGINX), "-c", str(configuration), "-e", f"{folder}/error.log", "-g", "daemon off;"])
    try:
        end = time.monotonic() + 20
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_two_servers_share_the_work(tmp_path: Path, wild: Translators) -> None:
    texts = [f"ba {word} mi." for word in ("ko", "tu", "re", "sa")] * 10
    with (
        serving(wild("LAT")) as first,
        serving(wild("LAT")) as second,
        listening(first) as one,
        listening(second) as two,
    ):
        with nginx(tmp_path, [one, two]) as address:

            def ask(text: str) -> str:
                body = json.dumps({**ASK, "q": text}).encode()
                asked = urllib.request.Request(f"{address}/translate", body, {"Content-Type": "application/json"})
                return str(json.load(urllib.request.urlopen(asked))["translatedText"])

            with ThreadPoolExecutor(8) as pool:
                found = list(pool.map(ask, texts))
            assert found == [wild("LAT").translate(text) for text in texts]
            counts = [
                server.metrics.registry.get_sample_value(
                    "lath_requests_total", {"route": "/translate", "status": "200"}
                )
                for server in (first, second)
            ]
            assert sum(filter(None, counts)) == len(texts)
            assert all(counts)
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(f"{address}/metrics")
