"""Keys and rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from lath.errors import UserError
from lath.serve import limits
from lath.serve.limits import Keys, Rates, read_keys


def test_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst\n\n second \n", encoding="utf-8")
    keys = read_keys(path)
    assert keys.check("first")
    assert keys.check("second")
    assert keys.check("first") != keys.check("second")
    assert [keys.check(wrong) for wrong in ("", "firs", "# ours", "first\n", "\ud800")] == [None] * 5


def test_a_file_without_keys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# none\n", encoding="utf-8")
    with pytest.raises(UserError, match="no key"):
        read_keys(tmp_path / "keys")


def test_every_key_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(limits.hmac, "compare_digest", lambda one, two: compared.append(two) or one == two)
    assert Keys(["a", "b", "c"]).check("a")
    assert len(compared) == 3


def test_requests_come_back_with_time() -> None:
    rates = Rates(60)
    assert [rates.wait("a", 0.0) for _ in range(61)] == [0] * 60 + [1]
    assert rates.wait("b", 0.0) == 0
    assert [rates.wait("a", 2.0) for _ in range(3)] == [0, 0, 1]
    assert [rates.wait("a", 1000.0) for _ in range(61)] == [0] * 60 + [1]


def test_no_limit() -> None:
    assert {Rates(0).wait("a", 0.0) for _ in range(100)} == {0}


def test_the_memory_for_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_CLIENTS", 5)
    rates = Rates(1)
    assert {rates.wait(str(client), 0.0) for client in range(100)} == {0}
    assert rates.wait("99", 0.0) > 0
    assert rates.wait("0", 0.0) == 0
