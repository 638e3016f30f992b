# The C types of packed_ids.py, and two of its functions in C.

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from .stream_id cimport half_of, put_id

cdef inline bytes begin_row(Py_ssize_t count):
    return PyBytes_FromStringAndSize(NULL, 16 * count)

cdef inline bytes end_row(bytes row):
    return row

@cython.locals(given=list, row=bytes, at="Py_ssize_t")
cpdef bytes pack_ids(object ids)

@cython.locals(given=list, row=bytes, at="Py_ssize_t", ms="unsigned long long", seq="unsigned long long",
               last_ms="unsigned long long", last_seq="unsigned long long")
cpdef bytes row_of(object ids)
