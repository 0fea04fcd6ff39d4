"""A server that answers like `lath serve`, at the speed and with the mistakes that a test of its page asks for."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import lath

PAGE = Path(lath.__file__).parent / "serve" / "page"
KINDS = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
HOSTILE = "<img src=x onerror=window.hacked=1>"


def tokens(*pairs: tuple[str, float]) -> list[dict[str, Any]]:
    """Tokens with their probabilities."""
    return [{"t": token, "p": probability} for token, probability in pairs]


def passes() -> list[dict[str, Any]]:
    """Two passes with pieces of two tokens: in the first `dog` wins against `cat`, and is masked for the second."""
    pieces = [
        tokens(("<s>", 1.0), ("▁the", 0.9)),
        tokens(("▁the", 0.8), ("▁dog", 0.6)),
        tokens(("▁cat", 0.4), ("▁barks", 0.5)),
        tokens(("▁barks", 0.7), ("</s>", 0.9)),
    ]
    sources = {"▁the": [[0, 1], [1, 0]], "▁dog": [[1, 1]], "▁barks": [[2, 1], [3, 0]]}
    output = [
        {"t": "<s>", "p": 1.0, "from": []},
        *({"t": token, "p": 0.6, "from": found} for token, found in sources.items()),
        {"t": "</s>", "p": 1.0, "from": []},
    ]
    conflict = {"piece": 2, "left": ["▁dog"], "right": ["▁cat"], "kept": "left"}
    first = {"input": [None] * 4, "pieces": pieces, "output": output, "masked": [2], "conflicts": [conflict]}
    again = {
        "input": ["<s>", "▁the", None, "▁barks"],
        "pieces": [
            pieces[0],
            tokens(("▁the", 0.8), (HOSTILE, 0.6)),
            tokens((HOSTILE, 0.4), ("▁barks", 0.5)),
            pieces[3],
        ],
        "output": [
            {**token, "t": HOSTILE, "from": [[1, 1], [2, 0]]} if token["t"] == "▁dog" else token for token in output
        ],
        "masked": [],
        "conflicts": [],
    }
    return [first, again]


def checked() -> list[dict[str, Any]]:
    """A draft of which the verifier accepts one token, and a redraft of which it accepts all."""
    first, again = passes()[:1][0], passes()[1]
    first |= {"masked": [], "prefix": [], "check": {"accepted": 1, "correction": HOSTILE}}
    output = [again["output"][0], *again["output"][3:]]
    pieces = [tokens(("<s>", 0.9), ("▁barks", 0.8)), tokens(("▁barks", 0.7), ("</s>", 0.9))]
    output[1] = {**output[1], "from": [[0, 1], [1, 0]]}
    redraft = {"input": ["<s>", None], "pieces": pieces, "output": output, "masked": [], "conflicts": []}
    return [first, redraft | {"prefix": ["▁the", HOSTILE], "check": {"accepted": 2, "correction": None}}]


class Stub(ThreadingHTTPServer):
    """What tests set, and what the page asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.both_directions = True
        self.delays: dict[str, float] = {}
        """Seconds until a text is answered; others are answered at once."""
        self.traced = [passes(), passes()[:1]]
        """The passes of two fragments, for requests that ask for them."""
        self.verify: dict[str, str] = {}
        """The pairs of languages that have a verifier, and its mode."""
        self.key = ""
        """Requests without this one are refused."""
        self.failures: list[tuple[int, str, dict[str, str]]] = []
        """Status, message and headers of the next answers to /translate."""
        self.asked: list[dict[str, Any]] = []
        self.uploads: list[bytes] = []

    def translated(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request: the text in capitals."""
        self.asked.append(asked)
        time.sleep(self.delays.get(asked["q"], 0))
        answer: dict[str, Any] = {"translatedText": asked["q"].upper()}
        if asked["source"] == "auto":
            answer["detectedLanguage"] = {"language": "de", "confidence": 93.0}
        hypothesis = {
            "text": answer["translatedText"],
            "score": -0.6,
            "doubtful": True,
            "copied": False,
            "passes": self.traced if asked.get("trace") else [],
        }
        return answer | {"lath": {"ms": {"queue": 0.5, "translate": 12.0, "total": 12.6}, "hypotheses": [hypothesis]}}


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Stub

    def log_message(self, *_: object) -> None:
        """Nothing: a test's output stays readable."""

    def reply(self, body: object, kind: str = "application/json", status: int = 200, **headers: str) -> None:
        """Send JSON, or bytes of another kind."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        sent = {"Content-Type": kind, "Content-Length": str(len(data)), "Content-Security-Policy": POLICY}
        for name, value in (sent | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        """The page, and what it asks for at its start."""
        languages = [
            {"code": "de", "name": "German", "targets": ["en"]},
            {"code": "en", "name": "English", "targets": ["de"] if self.server.both_directions else []},
        ]
        file = PAGE / ("index.html" if self.path == "/" else self.path.removeprefix("/static/"))
        if self.path == "/languages":
            self.reply(languages)
        elif self.path == "/frontend/settings":
            self.reply({"charLimit": 2000, "keyRequired": bool(self.server.key), "verify": self.server.verify})
        elif file.is_file():
            self.reply(file.read_bytes(), KINDS[file.suffix])
        else:
            self.reply({"error": "not found"}, status=404)

    def do_POST(self) -> None:
        """A text or a file to translate."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/translate_file":
            self.server.uploads.append(body)
            self.reply({"translatedFileUrl": "data:text/plain;base64,R1VURU4="})
        elif self.server.failures:
            status, message, headers = self.server.failures.pop(0)
            self.reply({"error": message}, status=status, **headers)
        elif json.loads(body).get("api_key", "") != self.server.key:
            self.reply({"error": "wrong or missing api_key"}, status=403)
        else:
            self.reply(self.server.translated(json.loads(body)))


@contextmanager
def serving() -> Iterator[Stub]:
    """A server on a free port until the end of the block."""
    with Stub() as stub:
        thread = threading.Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield stub
        stub.shutdown()
        thread.join()
