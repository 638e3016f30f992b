# The C types of packed_ids.py.

cimport cython
from .stream_id cimport begin_row, end_row, half_of, put_id

@cython.locals(given=list, row=bytes, at="Py_ssize_t")
cpdef bytes pack_ids(object ids)

@cython.locals(given=list, row=bytes, at="Py_ssize_t", ms="unsigned long long", seq="unsigned long long",
               last_ms="unsigned long long", last_seq="unsigned long long")
cpdef bytes row_of(object ids)
