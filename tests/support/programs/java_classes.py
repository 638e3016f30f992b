"""Write an archive of the classes that Spark loads: a Java that is given it starts with a third less work.

    python java_classes.py ARCHIVE      prints the options of such a Java, for SPARK_SUBMIT_OPTS
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import raxlog
import raxlog.spark
from spark_scans import JVM, environment


def use_spark(folder: Path) -> None:
    """What most tests do with Spark, once: SQL over a stream."""
    with raxlog.open(folder / "s.rax") as store:
        store.stream("orders").extend([{"n": number} for number in range(100)])
    spark = raxlog.spark.session("local[2]", {"spark.ui.enabled": "false", "spark.log.level": "OFF"})
    orders = spark.read.format("raxlog").schema("n bigint").options(path=str(folder / "s.rax"), stream="orders").load()
    orders.createOrReplaceTempView("orders")
    spark.sql("select n % 7 seventh, count(*) many, sum(n) n from orders group by 1 order by 1").collect()
    java = spark.sparkContext._gateway.proc
    spark.stop()
    java.stdin.close()
    java.wait()  # it writes the archive as it ends


def main() -> None:
    """Print the options of a Java that is given the archive."""
    archive = Path(sys.argv[1]).resolve()
    os.environ |= environment() | {"SPARK_SUBMIT_OPTS": f"{JVM} -XX:ArchiveClassesAtExit={archive} -Xlog:disable"}
    del os.environ["SPARK_HOME"]  # the archive is for the files of the folders that it names, if those are still there
    with tempfile.TemporaryDirectory() as folder:
        use_spark(Path(folder))
    print(f"{JVM} -XX:SharedArchiveFile={archive} -Xlog:disable")


main()
