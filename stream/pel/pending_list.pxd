# The C types of pending_list.py, and three of its functions in C.

cimport cython
from ...storage.format.records cimport seal
from ...storage.log.cursor cimport LogCursor, cursor_over
from ...storage.log.transaction cimport View, WriteTransaction
from ..node.packed_ids cimport pack_ids
from .bucket cimport Bucket, column, is_behind, place_of, sealed

cdef inline bytes row_at(object txn, bytes key):
    return (<View>txn).get(key) if isinstance(txn, View) else txn.get(key)

cdef inline int put_row(object txn, bytes key, bytes value) except -1:
    if isinstance(txn, WriteTransaction):
        (<WriteTransaction>txn).put(key, value)
    else:
        txn.put(key, value)
    return 0

cdef inline int put_sealed(object txn, bytes key, bytes body, object seed) except -1:
    return put_row(txn, key, sealed(body, seed))

@cython.final
cdef class KnownBuckets:
    cdef dict _rows
    cdef public bytes last
    cdef readonly tuple families

    @cython.locals(known=Bucket)
    cpdef Bucket decoded(self, bytes at, bytes value)
    @cython.locals(bucket=Bucket)
    cpdef Bucket holder(self, object txn, bytes packed)
    cpdef Bucket keep(self, Bucket bucket)

@cython.final
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

    @cython.locals(last=Bucket, row=bytes)
    cpdef list add_row(self, bytes packed, object consumer, object time, object count=*, object keys=*)
    @cython.locals(old=Bucket, low="Py_ssize_t", count="Py_ssize_t")
    cpdef dict remove_row(self, bytes packed)
    @cython.locals(longer=Bucket)
    cdef object _append(self, Bucket last, bytes packed, object consumer, object time, object count, bytes keys)
    @cython.locals(count="Py_ssize_t", size="Py_ssize_t", parts="Py_ssize_t")
    cdef object _replace(self, Bucket old, Bucket new)
    @cython.locals(bucket=Bucket, at=bytes)
    cdef object _put(self, Bucket old, Bucket new)
    @cython.locals(at=bytes)
    cdef object _put_count(self, Bucket bucket, object consumer, Py_ssize_t count)
    cdef LogCursor _cursor(self)
    cdef bytes _consumer_key(self, object consumer, bytes key)
    @cython.locals(value=bytes)
    cdef Bucket _bucket(self, bytes key)
    @cython.locals(bucket=Bucket)
    cdef Bucket _holder(self, bytes packed)
    cdef Bucket _floor(self, bytes packed)
    @cython.locals(bucket=Bucket, at=bytes, value=bytes)
    cdef Bucket _last_bucket(self)
    @cython.locals(cursor=LogCursor)
    cdef tuple _floor_item(self, bytes full)
    @cython.locals(cursor=LogCursor)
    cdef bytes _key_after(self, bytes packed)
