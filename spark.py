"""The door to the Spark data source: ``spark = raxlog.spark.session()``, or ``raxlog.spark.register(spark)``.

Where raxlog is installed as a wheel, Spark finds ``format("raxlog")`` by itself (pyspark_raxlog), in
the Python that PYSPARK_PYTHON names, and nothing needs to be registered. The source is in tools/spark/.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def register(spark: SparkSession) -> None:
    """Register ``format("raxlog")`` with a Spark session. NotInstalled without pyspark and pyarrow.

    On a local master where neither PYSPARK_PYTHON nor spark.pyspark.python is set, Spark's planner and its tasks
    run in this Python from then on, instead of ``python3``. NotInstalled also if the Python that is set cannot
    plan.
    """
    from .tools.spark import session as sessions  # noqa: PLC0415 - the face of raxlog loads no Spark

    sessions.register(spark)


def session(master: str | None = None, config: Mapping[str, str] | None = None) -> SparkSession:
    """A Spark session that reads and writes ``format("raxlog")``: a new one, or the active one.

    ``master``   by default that of spark-submit or of Spark's own configuration, otherwise local[*]
    ``config``   further settings: ``session(config={"spark.driver.memory": "4g"})``

    Its tasks run in this Python, filters can be pushed down, and the time zone is UTC unless another is set.
    NotInstalled without pyspark, pyarrow or Java.
    """
    from .tools.spark import session as sessions  # noqa: PLC0415

    return sessions.session(master, config or {})


def lag(query: StreamingQuery) -> dict[str, int]:
    """How many entries a streaming query has still to read, by stream; ``sum(lag(query).values())`` is all.

    As of the query's last progress report (``query.lastProgress``), which Spark makes with each batch, and every ten
    seconds while there is nothing to read: what was in the store, and not in the batch, when the batch was planned.
    Empty before the first report. NotInstalled before pyspark 4.2.
    """
    from .tools.spark import stream_reader  # noqa: PLC0415

    return stream_reader.lag(query)
