"""What a new user writes first: it does what it says, or is refused with what to do."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import raxlog


def test_a_group_made_behind_appends_gets_them_and_one_made_before_makes_the_stream(store: raxlog.Store) -> None:
    store.stream("mail").extend([{"n": n} for n in range(3)])
    assert len(store.stream("mail").create_group("senders").read("w")) == 3
    group = store.stream("later").create_group("senders")
    store.stream("later").append({"n": 1})
    assert len(group.read("w")) == 1
    assert store.stream("mail").create_group("new ones", start="$").read("w") == []
    with pytest.raises(raxlog.NoStream):
        store.stream("typo").create_group("senders", create_stream=False)


def test_configure_makes_the_stream_and_takes_a_timedelta(store: raxlog.Store) -> None:
    stream = store.stream("events")
    changed = stream.configure(retention=raxlog.Retention(max_age=timedelta(days=7)), codec="json")
    assert changed.to_dict()["retention"] == {"max_age": 604_800.0}
    assert stream.exists()
    stream.append({"n": 5})
    assert next(iter(stream)).value == {"n": 5}
    stream.configure(retention=raxlog.Retention(acked=True, idle_group=timedelta(hours=1)))
    with pytest.raises(raxlog.InvalidArgument, match="max_age"):
        stream.configure(retention=raxlog.Retention(max_age=timedelta(0)))


def test_an_id_is_in_a_stream_as_long_as_its_entry_is(store: raxlog.Store) -> None:
    stream = store.stream("s")
    sid = stream.append({"n": 1})
    assert sid in stream
    assert str(sid) in stream
    assert "1-1" not in stream
    stream.delete(sid)
    assert sid not in stream
    with pytest.raises(raxlog.InvalidStreamID):
        assert "x" in stream


def test_a_store_is_not_made_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(raxlog.StoreError, match=r"there is no folder .*typo"):
        raxlog.open(tmp_path / "typo" / "x.rax")
    assert list(tmp_path.iterdir()) == []


def test_a_number_is_no_consumer_and_none_no_value_of_a_state(store: raxlog.Store) -> None:
    group = store.stream("s").create_group("g")
    with pytest.raises(raxlog.InvalidName, match="consumer name is str or bytes, not int"):
        group.read(7)
    assert group.consumers() == []
    with pytest.raises(raxlog.InvalidArgument, match="the value of state key 'k'"):
        store.state["k"] = None  # type: ignore[assignment]
    assert "k" not in store.state


def test_a_stream_that_is_not_there_is_empty_and_not_made_by_a_look(store: raxlog.Store) -> None:
    typo = store.stream("typo")
    assert (len(typo), list(typo), typo.get("1-1"), typo.exists()) == (0, [], None, False)
    assert store.streams() == []


def test_a_position_that_is_no_id_is_refused_with_the_words_that_are_allowed_there(store: raxlog.Store) -> None:
    stream = store.stream("s")
    stream.append({"n": 1})
    group = stream.create_group("g")
    for wrong, words in [
        (lambda: next(stream.follow("x")), r"\$, ms-seq"), (lambda: store.read({"s": "x"}), r"\$, \+, ms-seq"),
        (lambda: stream.create_group("h", start="x"), r"\$, ms-seq"), (lambda: group.read("c", ids="x"), ">, ms-seq"),
        (lambda: group.set_id("x"), r"-, \+, \$, ms-seq"),
    ]:
        with pytest.raises(raxlog.InvalidStreamID, match=words):
            wrong()
