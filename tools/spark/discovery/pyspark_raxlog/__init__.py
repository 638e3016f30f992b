"""Found by Spark, which imports every top-level package named pyspark_*: format("raxlog") needs no register()."""

from raxlog.tools.spark.source import RaxlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
