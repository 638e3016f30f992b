# The C types of writer_lock.py.

from ..system_calls cimport set_lock

cdef class WriterLock:
    cdef object _file
    cdef object _words
    cdef unsigned long long[::1] _last
    cdef object _path
    cdef bytes _lock
    cdef bytes _none

    cpdef object acquire(self, object timeout)
    cpdef object release(self)
