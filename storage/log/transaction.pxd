# The C types of transaction.py.

cimport cython
from .overlay cimport LogCursor, Overlay, Version

cdef class View:
    cdef public object log
    cdef public object raw
    cdef public Overlay overlay
    cdef public dict rows
    cdef public unsigned long long upto
    cdef public bint writes
    cdef object __weakref__

    cpdef object lmdb(self)
    @cython.locals(version=Version)
    cpdef object get(self, bytes key, object default=*)
    cpdef object cursor(self)
    cpdef bint put(self, bytes key, bytes value, bint overwrite=*) except -1
    cpdef bint delete(self, bytes key) except -1
    cpdef object release(self)
    cpdef object abort(self)

cdef class WriteTransaction(View):
    cdef readonly object env
    cdef readonly dict warm
    cdef readonly long long epoch
    cdef public dict dirty
    cdef public long long changes
    cdef public dict touched
    cdef public long long written

    cpdef object keep(self, object env, dict warm, long long epoch)
    cpdef bint put(self, bytes key, bytes value, bint overwrite=*) except -1
    cpdef bint delete(self, bytes key) except -1
    cpdef bint is_untouched(self, long long before, object error) except -1
    cpdef object flush(self)
    @cython.locals(freed="long long")
    cpdef object commit(self)
    cpdef bint fits_alone(self) except -1
    cpdef object abort(self)
