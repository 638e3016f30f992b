# The C types of state.py, and two of its functions in C.

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy
from ...storage.log.transaction cimport WriteTransaction, mark_of
from ..entries.writer cimport StreamWriter
from ..pel.bucket cimport sealed
from ..pel.pending_list cimport KnownBuckets, PendingList

cdef inline void put_low_first(char *to, unsigned long long number) noexcept:
    cdef int at
    for at in range(8):
        to[at] = <char>(number >> 8 * at)

cdef inline bytes group_record(object seed, bytes before, object last, long long entries_read,
                               unsigned long long pending, bytes behind):
    cdef unsigned long long ms = last[0], seq = last[1]
    cdef Py_ssize_t size = PyBytes_GET_SIZE(before), rest = PyBytes_GET_SIZE(behind)
    cdef bytes body = PyBytes_FromStringAndSize(NULL, size + 32 + rest)
    cdef char *to = PyBytes_AS_STRING(body)
    memcpy(to, PyBytes_AS_STRING(before), size)
    put_low_first(to + size, ms)
    put_low_first(to + size + 8, seq)
    put_low_first(to + size + 16, <unsigned long long>entries_read)
    put_low_first(to + size + 24, pending)
    memcpy(to + size + 32, PyBytes_AS_STRING(behind), rest)
    return sealed(body, seed)

cdef inline bytes consumer_record(object seed, bytes before, unsigned long long seen, long long active,
                                  unsigned long long pending):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(before)
    cdef bytes body = PyBytes_FromStringAndSize(NULL, size + 24)
    cdef char *to = PyBytes_AS_STRING(body)
    memcpy(to, PyBytes_AS_STRING(before), size)
    put_low_first(to + size, seen)
    put_low_first(to + size + 8, <unsigned long long>active)
    put_low_first(to + size + 16, pending)
    return sealed(body, seed)

@cython.final
cdef class ConsumerState:
    cdef public object number
    cdef public object name
    cdef public object seen
    cdef public object active
    cdef public object pending
    cdef public bytes key
    cdef public object seed
    cdef bytes _before

    cpdef bytes sealed(self)

@cython.final
cdef class GroupState:
    cdef public object number
    cdef public object group
    cdef public object name
    cdef public bytes key
    cdef public object seed
    cdef public bytes mark
    cdef public long long epoch
    cdef public unsigned long long since
    cdef public object last
    cdef public object entries_read
    cdef public object pending
    cdef public object next_consumer
    cdef public object moves
    cdef public object paused
    cdef public object gone
    cdef public list subjects
    cdef public object cancelled
    cdef public object limits
    cdef public object key_limit
    cdef public dict key_rows
    cdef public object place
    cdef public KnownBuckets buckets
    cdef object _held
    cdef dict _consumers
    cdef set _changed
    cdef bint _group_changed
    cdef bint _is_whole
    cdef object _least
    cdef dict _times
    cdef tuple _framed
    cdef tuple _frame

    cpdef bytes sealed(self)
    cpdef GroupState current(self, WriteTransaction txn)
    cpdef bint is_current(self, WriteTransaction txn) except -1
    cpdef PendingList pel(self, object txn, object now=*)
    cpdef ConsumerState consumer(self, object txn, object name)
    cpdef ConsumerState consumer_no(self, object txn, object number)
    @cython.locals(found=ConsumerState, member=ConsumerState)
    cpdef ConsumerState ensure_consumer(self, WriteTransaction txn, object name, object now)
    cpdef object set_seen(self, WriteTransaction txn, ConsumerState consumer, object now)
    cpdef object set_active(self, WriteTransaction txn, ConsumerState consumer, object now)
    cpdef object changed(self, WriteTransaction txn, ConsumerState consumer=*)
    @cython.locals(counted="long long", consumer=ConsumerState, key=bytes)
    cpdef object flush(self, WriteTransaction txn)
    @cython.locals(owner=ConsumerState)
    cpdef object count_pending(self, WriteTransaction txn, object consumer, object by)

cpdef bint is_due(object seen, object now) except -1
@cython.locals(state=GroupState)
cpdef GroupState locate_group(WriteTransaction txn, StreamWriter stream, object name)
@cython.locals(state=GroupState)
cpdef GroupState require_group(WriteTransaction txn, StreamWriter stream, object stream_name, object name)
