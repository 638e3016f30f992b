# The C types of writer_lock.py.

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from ..system_calls cimport set_lock

# The view is kept by the lock, as long as this is used.
cdef inline unsigned long long *numbers_of(object view) except NULL:
    cdef Py_buffer shown
    PyObject_GetBuffer(view, &shown, PyBUF_SIMPLE)
    PyBuffer_Release(&shown)
    return <unsigned long long *>shown.buf

cdef class WriterLock:
    cdef object _file
    cdef object _words
    cdef unsigned long long *_last
    cdef object _path
    cdef bytes _lock
    cdef bytes _none

    cpdef object acquire(self, object timeout)
    cpdef object release(self)
