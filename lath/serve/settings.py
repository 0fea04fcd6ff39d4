"""The settings of `lath serve`.

The command line shows these defaults in its help, so this file does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServeSettings:
    """A translation server, its queue and its limits (`lath serve`)."""

    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 is every address of the machine."""
    port: int = 5000
    """Port to listen at; 0 takes a free one."""
    max_wait_ms: int = 5
    """Milliseconds that a batch waits for company, but only under load; a request to an idle server never waits."""
    max_batch: int = 0
    """Most sentences of a batch; 0 takes what suits the device."""
    max_queue: int = 256
    """Requests that may wait for a model; half of them may be one client's. More are refused (503)."""
    max_body: int = 2_000_000
    """Bytes of a request (413)."""
    max_characters: int = 100_000
    """Characters to translate in a request (400)."""
    rate: int = 0
    """Requests a minute of a key or address (429); 0 is no limit."""
    cors: str = ""
    """Origin whose pages may ask, * for all; empty for none but the server's own."""
