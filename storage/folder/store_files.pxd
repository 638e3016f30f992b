# The C types of store_files.py.

cimport cython
from ..locks.writer_lock cimport WriterLock
from ..system_calls cimport POLLIN, poll, pollfd

cdef inline bint has_events(object events) except -1:
    cdef pollfd asked
    asked.fd = events.descriptor
    asked.events = POLLIN
    asked.revents = 0
    return asked.fd < 0 or poll(&asked, 1, 0) != 0

cdef class StoreFiles:
    cdef object _path
    cdef object _reopen
    cdef public WriterLock lock
    cdef public object shared
    cdef public int descriptor
    cdef public object presence
    cdef object _store
    cdef object _owner
    cdef tuple _known
    cdef object _events
    cdef Py_ssize_t _looks
    cdef object _seen

    @cython.locals(lock=WriterLock, by_name="Py_ssize_t")
    cpdef object acquire(self, object timeout)
