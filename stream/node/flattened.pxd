# The C types of flattened.py.

cimport cython
from libc.string cimport memcpy

from .listpack cimport SAMEFIELDS, put_integer, put_text, put_value

cdef inline long long start_of(const unsigned char *starts, Py_ssize_t i) noexcept:
    cdef long long value
    memcpy(&value, starts + 8 * i, 8)
    return value

cdef inline void put_start(unsigned char *starts, Py_ssize_t i, long long value) noexcept:
    memcpy(starts + 8 * i, &value, 8)

@cython.final
cdef class TextColumns:
    cdef readonly Py_ssize_t count
    cdef readonly bint full
    cdef readonly list names
    cdef readonly list starts
    cdef readonly list texts
    cdef readonly list there

    @cython.locals(reserved=bint, most="Py_ssize_t", i="Py_ssize_t")
    cpdef object check(self)

    @cython.locals(k="Py_ssize_t", i="Py_ssize_t", starts=bytes, sizes=bytearray, there=bint)
    cpdef list parts(self)

    @cython.locals(there=bytes)
    cdef bint has(self, Py_ssize_t k, Py_ssize_t i) except -1

    @cython.locals(fields="Py_ssize_t", k="Py_ssize_t")
    cdef Py_ssize_t width(self, Py_ssize_t i) except -1

    @cython.locals(size="Py_ssize_t", k="Py_ssize_t", starts=bytes, name=bytes)
    cdef Py_ssize_t size_of(self, Py_ssize_t i) except -1

    @cython.locals(k="Py_ssize_t", at="Py_ssize_t", name=bytes)
    cdef bint has_names(self, Py_ssize_t i, list names) except -1

    @cython.locals(fields="Py_ssize_t", k="Py_ssize_t", starts=bytes, texts=bytes, start="long long")
    cdef Py_ssize_t put_entry(self, unsigned char *p, Py_ssize_t at, long long ms, long long seq, Py_ssize_t i,
                              bint same) except -1
