# The C types of write_transaction.py.

cdef class WriteTransaction:
    cdef readonly object env
    cdef readonly object raw
    cdef readonly object id
    cdef readonly dict warm
    cdef readonly long long epoch
    cdef public dict dirty
    cdef public long long changes
    cdef readonly object get
    cdef readonly object cursor
    cdef object put_raw
    cdef object delete_raw

    cpdef bint put(self, bytes key, bytes value, bint overwrite=*) except -1
    cpdef bint delete(self, bytes key) except -1
    cpdef bint is_untouched(self, long long before, object error) except -1
    cpdef object flush(self)
