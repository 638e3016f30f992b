"""The command line as a person meets it: colours, aligned tables, times of IDs, --help, completion, doctor."""

from __future__ import annotations

import json
import os
import pty
import random
import shutil
import subprocess
import sys
import unicodedata
from datetime import UTC, datetime, timedelta
from pathlib import Path

import forkserver
import pytest
import raxlog
from cli_runs import CLI, Run, entries, one_line, process
from raxlog.tools import output
from raxlog.tools.cli import COMMANDS
from raxlog.tools.cli.arguments import LOADED
from raxlog.tools.cli.commands.care.doctor import mounted

pytest_plugins = ["cli_fixtures"]

ESC = b"\x1b"


def on_terminal(*arguments: str, **env: str) -> tuple[bytes, bytes]:
    """What a command prints on two terminals, its stdout and its stderr."""
    ends = [pty.openpty(), pty.openpty()]
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"} | env
    forkserver.run([*CLI, *arguments], stdout=ends[0][1], stderr=ends[1][1], timeout=60, check=False, env=env)
    seen = []
    for ours, theirs in ends:
        os.write(theirs, b"\0")  # so that a read of nothing returns
        seen.append(os.read(ours, 1 << 16).removesuffix(b"\0"))
        os.close(theirs)
        os.close(ours)
    return seen[0], seen[1]


# -- colours and tables -------------------------------------------------------------------


def test_a_terminal_has_colours_and_nothing_of_a_store_adds_any(tmp_path: Path) -> None:
    path = str(tmp_path / "s.rax")
    with raxlog.open(path) as store:
        stream = store.stream(b"\x1b[31mred")
        stream.append({b"\x1b]0;title\x07": b"\x1b[2J"}, id="5-1")
        stream.create_group(b"\x1b[32mgroup", "0")
    out, _ = on_terminal("range", path, "\x1b[31mred")
    assert out == b"\x1b[36m5-1\x1b[0m\t\\x1b]0;title\\x07=\\x1b[2J\r\n"
    out, _ = on_terminal("groups", path, "\x1b[31mred")
    assert out.startswith(b"\x1b[1mgroup ")
    assert out.count(ESC) == 2
    assert b"\\x1b[32mgroup" in out
    out, err = on_terminal("get", path, "\x1b[31mred", "7-7")
    assert (out, err[:16], err.count(ESC)) == (b"", b"\x1b[31mraxlog:\x1b[0m", 2)
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        out, _ = on_terminal("range", path, "\x1b[31mred", **env)
        assert out.startswith(b"5-1\t")
        assert ESC not in out
    assert ESC not in process("groups", path, "\x1b[31mred").stdout


def test_columns_stay_aligned_below_wide_and_combined_characters() -> None:
    lines = output.table([("abc", "1"), ("東京", "22"), ("e\u0301", "3")], right=(1,), head=("name", "n"))
    assert lines == ["name   n", "abc    1", "東京  22", "e\u0301      3"]
    assert all(sum(1 + (unicodedata.east_asian_width(c) == "W") - (c == "\u0301") for c in line) == 8 for line in lines)


# -- times --------------------------------------------------------------------------------


def test_the_time_of_an_id_is_that_of_its_milliseconds() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        ms = chance.randrange(1, 253_402_300_800_000)
        expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
        assert datetime.fromisoformat(output.time_of(raxlog.StreamID(ms, 3))) == expected
    assert output.time_of(raxlog.StreamID(253_402_300_799_999, 0)) == "9999-12-31T23:59:59.999Z"
    for ms in (0, 253_402_300_800_000, (1 << 64) - 1):
        assert output.time_of(raxlog.StreamID(ms, 3)) == "-"


@pytest.fixture
def timed(tmp_path: Path) -> str:
    """A store with a stream 'orders' of one entry, delivered and pending, and an empty group."""
    path = str(tmp_path / "t.rax")
    with raxlog.open(path) as store:
        stream = store.stream("orders")
        stream.append({"n": 1}, id="1526919030474-55")
        stream.create_group("billing", "0").read("a")
        stream.create_group("empty", "0")
    return path


@pytest.mark.parametrize("command", [
    "range S orders", "tail S orders --count 1", "get S orders 1526919030474-55", "read S orders=0",
    "read S orders --group billing --consumer a --history", "pending S orders billing --list", "streams S",
    "groups S orders", "pending S orders billing",
])
def test_ids_are_printed_with_their_times(raxlog_cli: Run, timed: str, command: str) -> None:
    words = [timed if word == "S" else word for word in command.split()]
    time = "2018-05-21T16:10:30.474Z"
    assert time not in raxlog_cli(*words)[1]
    status, out, _ = raxlog_cli(*words, "--time")
    assert status == 0
    assert time in out
    if words[0] in ("range", "tail", "get"):
        assert out == f"1526919030474-55\t{time}\tn=1\n"
    shown = raxlog_cli(*words, "--time", "--json")[1]
    if words[-1] != "billing":
        assert time in shown
    if words[0] == "groups":
        assert [group["time"] for group in json.loads(shown)["groups"]] == [time, "-"]


def test_entries_with_their_times_are_imported_again(raxlog_cli: Run, timed: str) -> None:
    Path("copy.ndjson").write_text(raxlog_cli("range", timed, "orders", "--json", "--time")[1])
    assert raxlog_cli("import", "copy.rax", "orders", "copy.ndjson", "--format", "entries")[0] == 0
    assert entries("copy.rax") == entries(timed)


# -- help and completion ------------------------------------------------------------------


def test_help_lists_each_command_once_below_the_title_of_its_group(raxlog_cli: Run) -> None:
    out = raxlog_cli("--help")[1]
    below = {name: title for title, block in
             ((block.partition(":\n")[0], block.partition(":\n")[2]) for block in out.split("\n\n"))
             for name in (line.split()[0] for line in block.splitlines() if line.startswith("  "))}
    assert below.keys() >= set(COMMANDS)
    assert all(out.count(f"\n  {name} ") == 1 for name in COMMANDS)
    assert [below[name] for name in ("range", "ack", "pub", "doctor", "completion")] == [
        "streams and their entries", "consumer groups and workers", "publish and subscribe", "maintenance of a store",
        "also"]


def completed(raxlog_cli: Run, monkeypatch: pytest.MonkeyPatch, *words: str, shell: str = "bash") -> list[str]:
    monkeypatch.setenv("RAXLOG_WORDS", "\n".join(words) + ("\n" if shell == "fish" else ""))
    status, out, _ = raxlog_cli("completion", shell)
    assert status == (0 if out else 1)
    return out.splitlines()


def test_completion_knows_commands_options_choices_and_streams(
        raxlog_cli: Run, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*words: str) -> list[str]:
        return completed(raxlog_cli, monkeypatch, *words)

    assert found("") == list(COMMANDS)
    assert found("ran") == ["range"]
    for name in COMMANDS:
        options = [option for option in found(name, "--") if option.startswith("--")]
        parser = LOADED[name].parser(name, "x")
        assert options == [option for option in parser._option_string_actions if option.startswith("--")]
    assert found("add", orders, "orders", "--durability", "") == ["commit", "relaxed", "buffered"]
    assert found("add", "--durability", "relaxed", orders, "o") == ["orders"]
    assert found("range", "--reverse", orders, "") == ["orders"]
    assert found("dlq", "re") == ["replay"]
    with raxlog.open(orders) as store:
        store.stream("orders").create_group("billing", "$")
    assert found("lag", orders, "orders", "") == found("dlq", "list", orders, "orders", "") == ["billing"]
    assert found("dlq", "list", "--reason", "f") == ["failed"]
    assert found("lag", orders, "missing", "") == found("lag", "missing.rax", "orders", "") == []
    assert found("worker", "a:b", orders, "") == ["orders"]
    assert found("range", "") == found("range", "missing.rax", "") == found("nonsense", "") == []
    assert not Path("missing.rax").exists()
    assert completed(raxlog_cli, monkeypatch, "lag", shell="fish") == [f"lag\t{COMMANDS['lag'][1]}"]
    assert completed(raxlog_cli, monkeypatch, "lag", shell="zsh") == [f"lag:{COMMANDS['lag'][1]}"]


def test_bash_completes_what_was_typed(orders: str, tmp_path: Path) -> None:
    (tmp_path / "raxlog").write_text(f'#!/bin/sh\nexec {sys.executable} -m raxlog "$@"\n')
    (tmp_path / "raxlog").chmod(0o755)
    script = process("completion", "bash").stdout.decode() + (
        f'COMP_WORDS=(raxlog range {orders} ""); COMP_CWORD=3; _raxlog; echo "${{COMPREPLY[@]}}"')
    done = subprocess.run(["bash", "-c", script], env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
                          capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("orders\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_can_read_the_script(raxlog_cli: Run, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    Path("script").write_text(raxlog_cli("completion", shell)[1])
    assert subprocess.run([shell, "-n", "script"], capture_output=True, timeout=60, check=True).stderr == b""


# -- doctor -------------------------------------------------------------------------------


def findings(out: str | bytes) -> dict[str, dict[str, str]]:
    return {finding["what"]: finding for finding in json.loads(out)["findings"]}


def test_the_doctor_looks_at_a_folder_and_leaves_nothing(raxlog_cli: Run) -> None:
    status, out, _ = raxlog_cli("doctor", "--json")
    found = findings(out)
    assert list(found) == ["raxlog", "file system", "room", "open files", "address space", "file size", "flushes",
                           "trial"]
    assert (status == 0) is json.loads(out)["ok"] is all(one["state"] != "wrong" for one in found.values())
    assert found["trial"]["state"] == "ok"
    assert all(bool(one["advice"]) == (one["state"] != "ok") for one in found.values())
    assert list(Path().iterdir()) == []
    lines = raxlog_cli("doctor", ".")[1].splitlines()
    assert [line.split()[0] for line in lines[:8] if "flushes" not in line] == [  # flushes are measured anew
        one["state"] for what, one in found.items() if what != "flushes"]
    assert sum(line.split(maxsplit=1)[1].startswith("flushes") for line in lines[:8]) == 1
    assert ("nothing is wrong" in lines[-1]) is not any(line.startswith(("warning", "wrong")) for line in lines[:8])


def test_the_doctor_shows_how_a_store_was_left_and_changes_nothing(raxlog_cli: Run, orders: str) -> None:
    before = {path: path.read_bytes() for path in Path(orders).rglob("*")
              if path.is_file() and path.name not in ("lock.mdb", "log-state")}
    status, out, _ = raxlog_cli("doctor", orders, "--json")
    assert (status, findings(out)["store"]["state"]) == (0, "ok")
    assert findings(out)["store"]["value"].startswith("1 stream, ")
    assert {path: path.read_bytes() for path in before} == before
    killed = "import os, sys, raxlog; raxlog.open(sys.argv[1]).stream('a').append({'a': 1}); os._exit(1)"
    forkserver.run([sys.executable, "-c", killed, orders], timeout=60, check=False)
    left = findings(raxlog_cli("doctor", orders, "--json")[1])["store"]["value"]
    assert "ended without closing the store (killed, or close() was not called)" in left
    (Path(orders) / "000001" / "data.mdb").write_bytes(b"")
    status, out, _ = raxlog_cli("doctor", orders)
    assert status == 1
    assert "raxlog salvage" in out


def test_the_doctor_names_what_is_too_little_and_what_is_not_there(raxlog_cli: Run, tmp_path: Path) -> None:
    status, out, err = raxlog_cli("doctor", "missing")
    assert (status, out) == (3, "")
    assert "there is no folder missing" in one_line(err)
    limited = ("import resource as r, sys\nfrom raxlog.tools.cli import main\n"
               "r.setrlimit(r.RLIMIT_NOFILE, (100, 100)); r.setrlimit(r.RLIMIT_FSIZE, (1 << 30, 1 << 30))\n"
               "sys.exit(main(['doctor', sys.argv[1], '--json']))")
    done = subprocess.run([sys.executable, "-c", limited, str(tmp_path)], env=os.environ | {"RAXLOG_PURE": "1"},
                          capture_output=True, timeout=60, check=False)
    found = findings(done.stdout)
    assert {what for what, one in found.items() if one["state"] == "warning"} >= {"raxlog", "open files", "file size"}
    assert (found["open files"]["value"], found["file size"]["value"]) == ("100", "1,073,741,824")
    assert "kernels plain Python" in found["raxlog"]["value"]
    if Path("/proc/self/mountinfo").exists():
        status, out, _ = raxlog_cli("doctor", "/proc", "--json")
        assert (status, findings(out)["flushes"]["state"]) == (1, "wrong")
        assert raxlog_cli("doctor", "/proc")[1].count("see to the permissions and the room") == 1


def test_a_path_is_on_the_innermost_file_system_mounted_there() -> None:
    info = (
        "22 27 0:21 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro\n"
        "23 27 0:22 / /mnt/a\\040b rw master:2 shared:3 - nfs4 host:/a rw,vers=4.2\n"
        "24 27 0:23 / /mnt rw - overlay overlay rw\n"
        "25 27 0:24 / /data rw - xfs /dev/vdb rw,nobarrier\n"
        "26 27 0:25 / /data rw - tmpfs tmpfs rw\n"
    )
    for path, kind, point in (
        ("/home/x", "ext4", "/"), ("/mnt/a b/s.rax", "nfs4", "/mnt/a b"), ("/mnt/a", "overlay", "/mnt"),
        ("/mnt/a bc", "overlay", "/mnt"), ("/data/s.rax", "tmpfs", "/data"), ("/dataset", "ext4", "/"),
    ):
        assert mounted(Path(path), info)[:2] == (kind, point)
    assert "nobarrier" in mounted(Path("/data"), "\n".join(info.splitlines()[:4]))[2]
    assert mounted(Path("/x"), "")[0] == "unknown"


def test_version_names_lmdb_and_python(raxlog_cli: Run) -> None:
    shown = json.loads(raxlog_cli("--version", "--json")[1])
    assert list(shown) == ["version", "kernels", "lmdb", "python"]
    assert f"LMDB {shown['lmdb']}, Python {shown['python']})" in raxlog_cli("--version")[1]
