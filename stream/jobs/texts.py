"""Texts of what handlers raise and return: to make one raises nothing, whatever it is of."""

from __future__ import annotations

from collections.abc import Callable

_MOST = 4000  # characters of an exception's text


def text_of(make: Callable[[], str]) -> str:
    """A text that code of the user makes, as UTF-8 can hold it; where that raises, a text that says so."""
    try:
        return str.encode(make(), "utf-8", "backslashreplace").decode()
    except BaseException:
        return "(no text: to make it raises an exception)"


def described(error: BaseException) -> str:
    """An exception's type and text."""
    return f"{text_of(lambda: type(error).__name__)}: {text_of(lambda: str(error))}"[:_MOST]
