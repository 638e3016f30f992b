"""An S3-compatible server, moto's, as a process of its own that can be killed and started again.

What it holds is lost with it: serve() puts the files of a folder into it again.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import s3fs
from loopback import free_port, wait_until_listening

BUCKET = "bucket"


class S3Server:
    """The server, its bucket, and what has been asked of it."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "2",  # of botocore itself; raxlog's retries go on longer
        }
        self._files = s3fs.S3FileSystem(
            endpoint_url=self.environment["AWS_ENDPOINT_URL"], key="key", secret="secret", use_listings_cache=False,
        )
        self._log = folder / "s3.log"
        self._log.touch()
        self._seen = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, with an empty bucket."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)], stdout=log, stderr=log,
            )
        wait_until_listening(self._process, self.port)
        self._files.mkdir(BUCKET)

    def kill(self) -> None:
        """End it at once; what it held is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def put(self, name: str, data: bytes) -> str:
        """Put one object into the bucket; its URL."""
        self._files.pipe_file(f"{BUCKET}/{name}", data)
        return f"s3://{BUCKET}/{name}"

    def serve(self, folder: Path, name: str | None = None) -> str:
        """Put the files of a folder into the bucket under its name; their URL."""
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                self.put(f"{name or folder.name}/{file.relative_to(folder)}", file.read_bytes())
        return f"s3://{BUCKET}/{name or folder.name}"

    def delete(self, name: str) -> None:
        """Delete one object."""
        self._files.rm_file(f"{BUCKET}/{name}")

    def forget(self) -> None:
        """Count from here."""
        self._seen = self._log.stat().st_size

    def fetched(self, folder: str = "") -> list[str]:
        """The objects that have been got since, in order, by their names in the bucket.

        ``folder``: only those in there. A worker of an earlier query may still fetch another's.
        """
        with self._log.open("rb") as log:
            log.seek(self._seen)
            return re.findall(rf'"GET /{BUCKET}/({folder}[^ ?]+) HTTP/1.1" 200', log.read().decode())
