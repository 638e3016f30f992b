# The C types of bucket.py.

cimport cython

cdef class Bucket:
    cdef readonly bytes key
    cdef readonly bytes ids
    cdef readonly object consumers
    cdef readonly object times
    cdef readonly object counts
    cdef readonly object numbers
    cdef readonly bytes keys
    cdef public object _least
    cdef public object _offsets
    cdef public object _joined

    cpdef bytes encode(self, bytes at)
    @cython.locals(at="Py_ssize_t", ids=bytes)
    cpdef Py_ssize_t position(self, bytes packed) except? -2
    cpdef object owners(self)
    cpdef object oldest(self)
    cpdef object _least_time(self)
    cpdef Bucket not_after(self, object now)
    cpdef Bucket without_span(self, Py_ssize_t low, Py_ssize_t high)
