"""Kernels without a GPU: a script run by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys


def run_interpreted(script: str) -> None:
    """Run Python code in a process of its own, for Triton reads the variable when it is imported."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
