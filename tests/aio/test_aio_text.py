"""raxlog.aio on a store of text, which a new one is: what waits finds the names it is given as text."""

from __future__ import annotations

import asyncio
from pathlib import Path

import raxlog
import raxlog.aio


def test_waits_on_a_store_of_text_end_when_what_they_wait_for_comes(tmp_path: Path) -> None:
    async def main() -> None:
        async with raxlog.aio.open(tmp_path / "app.rax") as store:
            jobs = store.stream("jöbs\udcff")
            group = await jobs.create_group("wörk\udcff")
            assert (jobs.name, group.stream, group.name) == ("jöbs\udcff", "jöbs\udcff", "wörk\udcff")
            reading = asyncio.create_task(group.read("w", timeout=20))
            seen = aiter(jobs.follow(timeout=20))
            following = asyncio.create_task(anext(seen))
            await asyncio.sleep(0.1)
            sid = await jobs.append({"n": "1"})
            assert sid is not None
            assert [entry.fields["n"] for entry in await reading] == ["1"]
            assert (await following).fields["n"] == "1"
            waiting = asyncio.create_task(group.wait_result(sid, 20))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await group.keep_results({sid: raxlog.Result(7)}, 60)
            await group.ack(sid)
            assert await waiting == raxlog.Result(7)
            again = await jobs.append({"n": "2"})
            assert again is not None
            assert await group.wait_result(again, 0.2) == raxlog.Result(status="timeout")

            worker = group.worker(lambda entry: int(entry.fields["n"]), result_ttl=60)
            await worker.run(burst=True)
            assert (await group.wait_result(again)).value == 2
            await jobs.append({"n": "3"})
            await worker.run(burst=True)
            assert worker.counts == raxlog.Counts(done=2)

    asyncio.run(main())
