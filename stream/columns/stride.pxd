# The C types of stride.py.

cimport cython

from .column_buffers cimport Column
from ..node.element cimport backlen_size, element_size
from ..node.cursor cimport Walk, integer, leave

cdef int SAMEFIELDS
cdef unsigned long long MASK

@cython.locals(p="const unsigned char *", end="Py_ssize_t", at="Py_ssize_t", pos="Py_ssize_t",
               ms="unsigned long long", seq="unsigned long long", start="Py_ssize_t", width="long long",
               i="Py_ssize_t", b="unsigned char", size="Py_ssize_t", after="Py_ssize_t", column=Column)
cdef Py_ssize_t stride(Walk walk, const unsigned char *wanted, list slots, unsigned long long hi_ms,
                       unsigned long long hi_seq) except -1
