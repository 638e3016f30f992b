# The C types of room.py.

cimport cython
from .ring cimport Ring
from .transaction cimport Overlay, run_of

cdef class Room:
    cdef public Ring ring
    cdef public object file_tree
    cdef public object map
    cdef public object ceiling
    cdef public long long seen
    cdef public long long page
    cdef public long long used
    cdef public long long depth
    cdef public long long tree
    cdef public long long leaves
    cdef public long long free
    cdef public long long have
    cdef public long long counted
    cdef public long long mapped
    cdef public long long reusable
    cdef public long long aged
    cdef public long long direct
    cdef public object folder

    cpdef object look(self)
    @cython.locals(freed="long long", pages="long long")
    cpdef long long gives(self, Overlay overlay) except -1
    @cython.locals(changes="long long", splits="long long")
    cpdef long long bound(self, Overlay overlay) except -1
    @cython.locals(bound="long long", runs="long long")
    cpdef bint fits(self, Overlay overlay) except -1
    cpdef object count_free(self)
    cpdef bint take(self, long long wanted) except -1
    cpdef long long count_freed(self, object txn) except -1
