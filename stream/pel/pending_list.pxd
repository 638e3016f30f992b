# The C types of pending_list.py.

cimport cython
from ...storage.format.records cimport seal
from ...storage.log.cursor cimport LogCursor, cursor_over
from ..node.packed_ids cimport pack_ids
from .bucket cimport Bucket

cdef class KnownBuckets:
    cdef dict _rows
    cdef public bytes last

    @cython.locals(known=tuple)
    cpdef Bucket decoded(self, bytes at, object value)
    @cython.locals(at=bytes, bucket=Bucket)
    cpdef Bucket holder(self, object txn, bytes packed)
    cpdef Bucket keep(self, bytes at, object value, Bucket bucket)

cdef class PendingList:
    cdef object _txn
    cdef object _group
    cdef Py_ssize_t _capacity
    cdef object _now
    cdef bytes _buckets
    cdef bytes _by_consumer
    cdef bytes _by_time
    cdef bytes _released
    cdef KnownBuckets _known
    cdef LogCursor _moved

    @cython.locals(last=Bucket)
    cpdef list add_row(self, bytes packed, object consumer, object time, object count=*, object keys=*)
    @cython.locals(old=Bucket, low="Py_ssize_t", count="Py_ssize_t")
    cpdef object remove_row(self, bytes packed)
    @cython.locals(longer=Bucket, value=bytes)
    cdef object _append(self, Bucket last, bytes packed, object nack, bytes keys)
    @cython.locals(value=bytes, parts="Py_ssize_t")
    cdef object _replace(self, Bucket old, Bucket new)
    @cython.locals(bucket=Bucket, at=bytes)
    cdef object _put(self, Bucket old, Bucket new, bytes value)
    cdef LogCursor _cursor(self)
    cdef bytes _consumer_key(self, object consumer, bytes key)
    cdef Bucket _bucket(self, bytes key)
    cdef Bucket _floor(self, bytes packed)
    cdef Bucket _last_bucket(self)
    @cython.locals(cursor=LogCursor)
    cdef tuple _floor_item(self, bytes full)
    @cython.locals(cursor=LogCursor)
    cdef bytes _key_after(self, bytes packed)
