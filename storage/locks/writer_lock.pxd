# The C types of writer_lock.py.

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from ..system_calls cimport futex, set_lock
from .ofd_lock cimport find, take

# The view is kept by the lock, as long as this is used.
cdef inline unsigned long long *numbers_of(object view) except NULL:
    cdef Py_buffer shown
    PyObject_GetBuffer(view, &shown, PyBUF_SIMPLE)
    PyBuffer_Release(&shown)
    return <unsigned long long *>shown.buf

cdef inline unsigned long long address_of(object view) except 0:
    return <unsigned long long>numbers_of(view)

cdef class TurnWords:
    cdef readonly object last
    cdef object _words
    cdef unsigned long long _address

    cpdef unsigned int word(self, long long place) except? 0
    cpdef bint sleep(self, long long place, unsigned int word, double seconds) except -1
    cpdef object wake(self, long long place)
    cdef object _call(self, long long place, int what, unsigned int number, double seconds)

cdef class WriterLock:
    cdef object _file
    cdef int _descriptor
    cdef object _words
    cdef unsigned long long *_last
    cdef object _path
    cdef bytes _lock
    cdef bytes _none

    cpdef object acquire(self, object timeout)
    @cython.locals(words=TurnWords, place="long long", word="unsigned int")
    cdef object _wait(self, double deadline, object timeout)
    cdef long long _enter_line(self) except 0
    cdef object _pass_on(self)
    cpdef object release(self)
