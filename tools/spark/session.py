"""The session: a Spark that knows format("raxlog"), and which Python it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...storage.errors import NotInstalled
from .requirements import require, require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON, OF_PYTHON = "PYSPARK_PYTHON", "spark.pyspark.python"


def register(spark: SparkSession) -> None:
    """See raxlog.spark.register()."""
    require()
    from .source import RaxlogDataSource  # noqa: PLC0415 - what it needs may be missing

    context = getattr(spark, "sparkContext", None)  # a session of Spark Connect has none
    if context is not None and not os.environ.get(PYTHON):
        usual = sys.executable if context.master.startswith("local") else context.pythonExec
        context.pythonExec = spark.conf.get(OF_PYTHON, usual)  # which pyspark takes from spark-submit only
    try:
        spark.dataSource.register(RaxlogDataSource)
    except Exception as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # Spark 4.0 has found it by itself
            raise
    if context is not None and context.pythonExec != sys.executable:
        try:
            spark.read.format("raxlog").load()
        except Exception as error:
            if "option path is missing" not in str(error):  # raxlog's own, from a Python that works
                raise NotInstalled(
                    f"Spark plans and runs format('raxlog') in {context.pythonExec!r}, the Python of {PYTHON} or "
                    f"{OF_PYTHON}, and it fails there. Set {PYTHON}, before the session is made, to a Python as "
                    f"{sys.executable} is: of its version, with raxlog and pyarrow, here and where tasks run"
                ) from error


def session(master: str | None, config: Mapping[str, str]) -> SparkSession:
    """See raxlog.spark.session()."""
    require()
    require_java()
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ.setdefault(PYTHON, config.get(OF_PYTHON, sys.executable))  # else tasks run whatever "python3" is
    usual = {"spark.sql.session.timeZone": "UTC", "spark.sql.python.filterPushdown.enabled": "true"}
    builder = SparkSession.builder if master is None else SparkSession.builder.master(master)
    for name, value in {**usual, **config}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark
