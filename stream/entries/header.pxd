# The C types of header.py.

cimport cython
from ...storage.format.binary cimport flipped, joined, six_numbers

cdef class StreamHeader:
    cdef public object back
    cdef public object codec
    cdef public object deferred
    cdef public object due
    cdef public object entries_added
    cdef public object first
    cdef public object groups
    cdef public object idempotence
    cdef public object last
    cdef public object leaves
    cdef public object leaves_added
    cdef public object length
    cdef public object limits
    cdef public object max_deleted
    cdef public bytes name
    cdef public object next_deferred
    cdef public object next_group
    cdef public object next_ordinal
    cdef public object retention
    cdef public object schema
    cdef public object stored_bytes
    cdef tuple _framed
    cdef tuple _frame

    cdef bytes _moving(self)
    cpdef bint is_due(self, object now) except -1
    @cython.locals(of=tuple, before=bytes, behind=bytes)
    cdef tuple _frame_of(self)
    @cython.locals(before=bytes, behind=bytes, at="Py_ssize_t")
    cpdef bint follow(self, bytes record, object seed) except -1
    @cython.locals(before=bytes, behind=bytes, body=bytes)
    cpdef bytes sealed(self, object seed)
