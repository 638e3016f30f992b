# The C types of ring.py.

cimport cython
from libc.string cimport memcmp

cdef class Ring:
    cdef public object path
    cdef public tuple owner
    cdef public unsigned long long size
    cdef public unsigned long long epoch
    cdef public object locks
    cdef public object shared
    cdef public unsigned long long[::1] words
    cdef public list files
    cdef public object file
    cdef public object synced
    cdef public object map
    cdef object __weakref__

    cpdef bytes record_at(self, unsigned long long place, unsigned long long lsn, object chain)
    cpdef bytes record_after(self, unsigned long long lsn, object chain)
    cpdef unsigned long long lsn_at(self, unsigned long long place) except? 0
    cpdef unsigned long long first_epoch(self, unsigned long long lsn, unsigned long long written) except? 1

cdef inline bint is_same(const unsigned char *left, const unsigned char *right, Py_ssize_t at, Py_ssize_t size) noexcept:
    return memcmp(left + at, right + at, size) == 0

@cython.locals(size="Py_ssize_t", front="Py_ssize_t")
cpdef object encode_change(list parts, bytes key, bytes value, bytes base)

@cython.locals(limit="Py_ssize_t", at="Py_ssize_t", left="const unsigned char*", right="const unsigned char*")
cdef Py_ssize_t common_front(bytes value, bytes base) except -1

@cython.locals(raw="const unsigned char*", kind="int", size="Py_ssize_t", klen="Py_ssize_t", vlen="Py_ssize_t",
               front="Py_ssize_t", middle="Py_ssize_t", key=bytes, value=bytes, base=bytes, found=list)
cpdef list decode(bytes record, Py_ssize_t at, object base_of)

@cython.locals(left="const unsigned char*", high="Py_ssize_t")
cdef Py_ssize_t read_u32(bytes body, Py_ssize_t at) except -1
