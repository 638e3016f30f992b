# The C types of node_builder.py.

cimport cython
from .element cimport (add_integer, add_value, integer_element, integer_size, put_integer, put_value, room_for)
from .inlined cimport id_of
from .listpack cimport frame
from .walk cimport Walk, backward, open_node, skip

cdef int SAMEFIELDS
cdef Py_ssize_t HEADER
cdef unsigned long long MASK
cdef unsigned long long SIGN
cdef Py_ssize_t _ROOM

cdef long long difference(unsigned long long left, unsigned long long right) noexcept

@cython.locals(size="Py_ssize_t", item=bytes)
cpdef Py_ssize_t raw_size(list flat) except -1

cdef class NodeBuilder:
    cdef readonly unsigned long long ms
    cdef readonly unsigned long long seq
    cdef readonly unsigned long long last_ms
    cdef readonly unsigned long long last_seq
    cdef readonly long long live
    cdef readonly long long dead
    cdef readonly Py_ssize_t size
    cdef readonly Py_ssize_t elements
    cdef readonly list names
    cdef readonly bytearray body

    @cython.locals(size="Py_ssize_t", i="Py_ssize_t", elements="Py_ssize_t", same=bint)
    cdef Py_ssize_t add_entry(self, list parts, unsigned long long ms, unsigned long long seq,
                              list flat) except -1

    @cython.locals(size="Py_ssize_t", i="Py_ssize_t", name=bytes)
    cdef int has_names_of(self, list flat) except -1

    @cython.locals(size="Py_ssize_t", i="Py_ssize_t")
    cdef Py_ssize_t put_entry(self, unsigned char *p, Py_ssize_t at, unsigned long long ms, unsigned long long seq,
                              list flat, bint same) except -1

    @cython.locals(parts=list, elements="Py_ssize_t")
    cpdef tuple encode(self, unsigned long long ms, unsigned long long seq, list flat)

    @cython.locals(grown="Py_ssize_t")
    cpdef Py_ssize_t size_with(self, tuple encoded) except -1

    cpdef object push(self, tuple encoded)

    @cython.locals(start="Py_ssize_t", stop="Py_ssize_t", flat=list, room=bytearray, used="Py_ssize_t",
                   raw="Py_ssize_t", needed="Py_ssize_t", same=bint, end="Py_ssize_t", encoded=tuple,
                   size="Py_ssize_t")
    cpdef Py_ssize_t fill(self, list flats, Py_ssize_t at, unsigned long long ms, unsigned long long seq,
                          Py_ssize_t capacity, Py_ssize_t max_bytes, long long max_entries,
                          list ids) except -1

    cpdef bytes listpack(self)
