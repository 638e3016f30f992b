# The C types of listpack.py.

cimport cython
from .element cimport after, before, element_size, integer_at, is_integer
from .element cimport integer_element, put_value, room_for, value_at

cdef Py_ssize_t HEADER
cdef Py_ssize_t UNKNOWN

@cython.locals(size="Py_ssize_t")
cdef Py_ssize_t check_frame(bytes lp) except -1

@cython.locals(size="unsigned long long", count="unsigned long long")
cdef bytes frame(bytes head, object body, Py_ssize_t elements)

@cython.locals(p="const unsigned char *", pos="Py_ssize_t", count="Py_ssize_t")
cdef Py_ssize_t walk(bytes lp, Py_ssize_t start, Py_ssize_t end) except -1
