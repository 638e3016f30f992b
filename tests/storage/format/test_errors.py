"""Errors as a program meets them: named as raxlog's, in tracebacks and in pickles."""

from __future__ import annotations

import pickle
import traceback

import pytest
import raxlog
from raxlog.storage import errors

EVERY = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, raxlog.RaxlogError)]


def test_every_error_is_raxlogs_by_name() -> None:
    assert len(EVERY) > 30
    for error in EVERY:
        assert error.__module__ == "raxlog"
        assert getattr(raxlog, error.__name__) is error
        assert error.__name__ in raxlog.__all__
    with pytest.raises(raxlog.NoGroup) as raised:
        raise raxlog.NoGroup("it is not there")
    assert traceback.format_exception_only(raised.value) == ["raxlog.NoGroup: it is not there\n"]


@pytest.mark.parametrize("error", EVERY)
def test_every_error_goes_through_a_pickle(error: type[raxlog.RaxlogError]) -> None:
    here = error("what, where, what to do")
    there = pickle.loads(pickle.dumps(here))
    assert (type(there), str(there), there.__dict__) == (error, str(here), here.__dict__)


@pytest.mark.parametrize("error", [
    raxlog.NotOwner("lost", (raxlog.StreamID("5-1"),)),
    raxlog.AppendsLost("lost", (raxlog.Lost(b"s", (1, 0), (2, 0), 2),), True),
    raxlog.CorruptionError("wrong", stream="s", node="5-1", offset=3),
])  # fmt: skip
def test_what_an_error_carries_goes_with_it(error: raxlog.RaxlogError) -> None:
    there = pickle.loads(pickle.dumps(error))
    assert (str(there), there.__dict__) == (str(error), error.__dict__)
    assert there.__dict__


def test_a_class_of_the_users_own_keeps_its_module() -> None:
    class OurError(raxlog.RaxlogError):
        pass

    assert OurError.__module__ == __name__
