"""Hints in error messages."""

from __future__ import annotations

import pytest

from lath.errors import UserError, did_you_mean, one_of


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("stpes", ["steps", "seed"], " (did you mean 'steps'?)"),
        ("step", ["steps", "stop"], " (did you mean 'steps'?)"),
        ("LTA", ["AT", "CMLM", "LAT"], " (did you mean 'LAT'?)"),
        ("zebra", ["steps", "seed"], ""),
        ("steps", [], ""),
        ("", ["steps"], ""),
    ],
)
def test_did_you_mean(word: str, known: list[str], hint: str) -> None:
    assert did_you_mean(word, known) == hint


def test_known_words_may_come_from_any_iterable() -> None:
    assert did_you_mean("stpes", {"steps": 1}) == did_you_mean("stpes", iter(["steps"])) == " (did you mean 'steps'?)"


def test_one_of_lists_the_choices() -> None:
    assert [one_of("a"), one_of("ab"), one_of(["a", "b", "c"])] == ["a", "a or b", "a, b or c"]


def test_user_error_shows_its_message_alone() -> None:
    assert str(UserError("a.toml: no such recipe")) == "a.toml: no such recipe"
