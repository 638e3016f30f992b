# The C types of scan.py, and what its functions without a body do, in C.

cimport cython
from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.string cimport memcpy

from ...storage.log.cursor cimport LogCursor, cursor_over

cdef object seed_of
cdef object node_id
cdef Py_ssize_t HEADER_SIZE
cdef int FORMAT

cdef inline bint is_sound(bytes key, bytes value) except -1:
    cdef const unsigned char *p = value
    cdef Py_ssize_t size = len(value)
    cdef unsigned long long stated
    cdef unsigned int raw_size
    if size < HEADER_SIZE or p[8] > FORMAT or p[9] != 0:
        return False
    memcpy(&stated, p, 8)
    memcpy(&raw_size, p + 26, 4)
    if raw_size != size - HEADER_SIZE:
        return False
    return stated == <unsigned long long> seed_of(
        PyMemoryView_FromMemory(<char *> p + 8, size - 8, PyBUF_READ), seed_of(key))

cdef inline tuple ordinals_of(const unsigned char *p):
    cdef unsigned long long ordinal
    cdef unsigned int span
    memcpy(&ordinal, p + 10, 8)
    memcpy(&span, p + 18, 4)
    return ordinal, span

cdef inline tuple master_of(bytes key):
    cdef const unsigned char *p = key
    cdef unsigned long long ms = 0
    cdef unsigned long long seq = 0
    cdef int i
    if len(key) != 25:
        return node_id(key)
    for i in range(8):
        ms = ms << 8 | p[9 + i]
        seq = seq << 8 | p[17 + i]
    return ms, seq

@cython.final
cdef class Scan:
    cdef object of
    cdef object end
    cdef object number
    cdef bint begun
    cdef bytes last_key
    cdef object begin
    cdef object expected
    cdef readonly bint more

    @cython.locals(key=bytes, value=bytes, prefix=bytes, taken=list, last=tuple)
    cpdef object collect(self, object txn, LogCursor nodes, Py_ssize_t limit, list found)

    cdef object checked(self, bytes key, bytes value)

    cdef object require_dead(self, object txn, bytes key, object start, object stop, list found)
