# The C types of ring.py.

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
