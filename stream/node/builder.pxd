# The C types of builder.py.

cimport cython
from ...storage.format.binary cimport flipped, joined, put_front
from .flattened cimport TextColumns
from .listpack cimport cut_off, integer_element, integer_size, lengthen, put_entry, put_integer, put_value, room_for
from .stream_id cimport id_of
from .decode cimport Walk, backward, open_node, skip

cdef Py_ssize_t HEAD_SIZE
cdef Py_ssize_t COUNTS
cdef unsigned long long MASK
cdef unsigned long long SIGN
cdef Py_ssize_t _SPARE

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
    cdef readonly bytearray block

    @cython.locals(size="Py_ssize_t", i="Py_ssize_t", name=bytes)
    cdef int has_names_of(self, list flat) except -1

    cpdef bint push(self, unsigned long long ms, unsigned long long seq, list flat, Py_ssize_t capacity,
                    Py_ssize_t max_bytes, long long max_entries) except -1

    @cython.locals(start="Py_ssize_t", stop="Py_ssize_t", columns=TextColumns, rows=list, none=list)
    cpdef Py_ssize_t fill(self, object flats, Py_ssize_t at, unsigned long long ms, unsigned long long seq,
                          Py_ssize_t capacity, Py_ssize_t max_bytes, long long max_entries,
                          list ids) except -1

    @cython.locals(raw="Py_ssize_t", fields="Py_ssize_t", p=bytearray, at="Py_ssize_t", missing="Py_ssize_t", same=bint,
                   ahead="long long", on="long long", end="Py_ssize_t", live="long long", grown="Py_ssize_t",
                   size="Py_ssize_t")
    cdef bint put(self, unsigned long long ms, unsigned long long seq, list flat, TextColumns columns, Py_ssize_t i,
                  Py_ssize_t capacity, Py_ssize_t max_bytes, long long max_entries, Py_ssize_t spare) except -1

    @cython.locals(p=bytearray)
    cpdef bytes sealed(self, object seed, object ordinal, object span)

    cpdef bytes listpack(self)
