"""The Spark data source: ``spark.read.format("raxlog")``, its stream reader and its writer.

    raxlog.spark ──> session.py ──> source.py  the class Spark asks for readers and writers
                                ├── options.py      the options given, checked
                                ├── schema.py       which columns, of which types, from which fields
                                ├── location.py     what is at the path: snapshot, shards, live store
                                ├── live_snapshot.py   a snapshot of a live store: taken, reused, removed
                                ├── plan.py         partitions: which task reads which range
                                ├── data_loss.py    entries asked for that have been trimmed
                                ├── scan.py         what a task does with its part
                                ├── batch_reader.py one scan                   tables.py   groups, pending
                                ├── stream_reader.py   an endless one, by offsets
                                └── writer.py       appending a DataFrame, once
                                    └── given_ids.py   rows that have IDs: sorted by tasks, merged by the driver

    session.py                  register() and session(): a Spark that knows it, and its Python
    requirements.py             what must be installed, and how to get it
    discovery/pyspark_raxlog    a top-level package of its own, by which Spark finds the source

Nothing here is loaded by ``import raxlog``. All but source.py, schema.py, the readers and writers works
without pyspark, so that ``raxlog plan`` needs none.
"""
