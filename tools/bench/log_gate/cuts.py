r"""Simulated power cuts and kills at system calls on the log, by the project's own recorder and workloads.

    PYTHONPATH=storage/log/site:tests/support/crash RAXLOG_LOG_RING=65536 \
        python tools/bench/log_gate/cuts.py IMAGES [SEED]
"""

import sys

import journal_workload  # type: ignore[import-not-found]
from raxlog import crashtest

if __name__ == "__main__":
    images, seed = int(sys.argv[1]), int((sys.argv[2:] or ["11"])[0])
    for name, work, check in (("append", journal_workload.append, journal_workload.check),
                              ("consume", journal_workload.consume, journal_workload.check_consumed)):
        cut = crashtest.PowerCut(images=images, ignore=("*lock.mdb", "*log-state"))
        report = crashtest.explore(work, check, modes=[cut, crashtest.KillAt.system_call("all")], seed=seed)
        print(name, report, flush=True)
