"""The door to the Spark data source: ``import raxlog.spark; raxlog.spark.register(spark)``.

Where raxlog is installed as a wheel, Spark finds ``format("raxlog")`` by itself (pyspark_raxlog)
and nothing needs to be registered. The source is in tools/spark/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Let ``spark`` know ``format("raxlog")``. NotInstalled without pyspark and pyarrow."""
    from .tools.spark.requirements import require  # noqa: PLC0415 - what it looks for may be missing

    require()
    from .tools.spark.source import RaxlogDataSource  # noqa: PLC0415

    spark.dataSource.register(RaxlogDataSource)
