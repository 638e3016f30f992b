# The C types of transaction.py.

cimport cython
from libc.string cimport memcpy

cdef extern from "Python.h":
    bytes PyBytes_FromStringAndSize(const char *text, Py_ssize_t size)
    char *PyBytes_AS_STRING(object text)
    Py_ssize_t PyBytes_GET_SIZE(object text)

cdef inline bytes mark_of(bytes key):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(key), head = min(size, 8), rest = max(0, min(size, 13) - 9)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, head + rest)
    memcpy(PyBytes_AS_STRING(made), PyBytes_AS_STRING(key), head)
    memcpy(PyBytes_AS_STRING(made) + head, PyBytes_AS_STRING(key) + 9, rest)
    return made

cpdef long long run_of(bytes key, bytes value) except -1

cdef class Version:
    cdef public unsigned long long lsn
    cdef public bytes value
    cdef public Version older
    cdef public bint listed

cdef inline Version version_of(unsigned long long lsn, bytes value, Version older, bint listed):
    cdef Version made = Version.__new__(Version)
    made.lsn = lsn
    made.value = value
    made.older = older
    made.listed = listed
    return made

cdef class Overlay:
    cdef public unsigned long long floor
    cdef public dict rows
    cdef public list order
    cdef public dict gaps
    cdef public long long moves
    cdef public long long readers
    cdef public long long bytes
    cdef public long long runs
    cdef public long long singles
    cdef public list freed
    cdef object __weakref__

    @cython.locals(before=Version, version=Version, order=list, at="Py_ssize_t")
    cpdef Version write(self, bytes key, bytes value, unsigned long long lsn)
    @cython.locals(run="long long")
    cdef object count(self, bytes key, bytes value, long long sign)
    @cython.locals(version=Version, key=bytes)
    cpdef object settle(self, list touched)
    @cython.locals(version=Version, older=Version, key=bytes)
    cpdef object undo(self, dict touched, unsigned long long lsn)
    @cython.locals(version=Version, key=bytes)
    cpdef object count_all(self)
    @cython.locals(at="Py_ssize_t")
    cpdef object unlist(self, bytes key)
    cpdef long long memory(self) except -1
    @cython.locals(fresh=Overlay, version=Version, key=bytes, listed=bint)
    cpdef Overlay pruned(self, unsigned long long floor)
    @cython.locals(newest=Version, version=Version, key=bytes, found=list)
    cpdef list changes(self, unsigned long long after, unsigned long long upto)

cdef class View:
    cdef public object log
    cdef public object raw
    cdef public Overlay overlay
    cdef public dict rows
    cdef public unsigned long long upto
    cdef public bint writes
    cdef public object rest
    cdef object __weakref__

    cdef object stand(self, object log, object raw, Overlay overlay, bint writes)
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
    cpdef bint is_foreign(self, bytes mark, unsigned long long since) except -1
    cpdef bint is_untouched(self, long long before, object error) except -1
    cpdef object flush(self)
    cpdef object abort(self)

cdef inline WriteTransaction write_over(object log, Overlay overlay):
    cdef WriteTransaction made = WriteTransaction.__new__(WriteTransaction)
    made.stand(log, None, overlay, True)
    made.warm = {}
    made.dirty = {}
    made.touched = {}
    made.written = -1
    return made
