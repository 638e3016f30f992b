"""Ports of this machine's loopback interface."""

from __future__ import annotations

import socket
import subprocess
import time


def free_port() -> int:
    """A port on which no program listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_listening(server: subprocess.Popen[bytes], port: int) -> None:
    """Return once the port can be connected to, or after ten seconds; fail where the server has ended."""
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert server.poll() is None, f"{server.args} ended at once with status {server.returncode}"
        time.sleep(0.02)
