# The C types of log.py.

cimport cython
from .overlay cimport Overlay, Version, View

@cython.locals(size="Py_ssize_t", front="Py_ssize_t", back="Py_ssize_t", middle=bytes)
cdef object encode_change(list parts, bytes key, bytes value, bytes base)

@cython.locals(most="Py_ssize_t", at="Py_ssize_t", left="const unsigned char*", right="const unsigned char*")
cdef Py_ssize_t common_front(bytes value, bytes base) except -1

@cython.locals(most="Py_ssize_t", at="Py_ssize_t", size="Py_ssize_t", other="Py_ssize_t",
               left="const unsigned char*", right="const unsigned char*")
cdef Py_ssize_t common_back(bytes value, bytes base, Py_ssize_t front) except -1

@cython.locals(left="const unsigned char*")
cdef Py_ssize_t number_at(bytes body, Py_ssize_t at) except -1

cdef class Log:
    cdef public object real
    cdef public object begin
    cdef public bint durable
    cdef public object file
    cdef public object state
    cdef public object synced
    cdef public object map
    cdef public unsigned long long[::1] words
    cdef public object ring
    cdef public unsigned long long size
    cdef public object mutex
    cdef public bint writing
    cdef public object tid
    cdef public unsigned long long applied
    cdef public object applied_chain
    cdef public unsigned long long pos
    cdef public object chain
    cdef public Overlay overlay
    cdef public long long rejoins
    cdef public long long checkpoints
    cdef public long long waits
    cdef public unsigned long long every
    cdef public object bell
    cdef public object thread
    cdef public bint closed
    cdef public object failure
    cdef public object touched_numbers
    cdef public object room
    cdef object __weakref__
    cdef dict __dict__

    cpdef object look(self, object raw)
    @cython.locals(applied="unsigned long long", end="unsigned long long", overlay=Overlay)
    cpdef View read(self)
    @cython.locals(applied="unsigned long long", end="unsigned long long")
    cpdef View write(self)
    cpdef object rebase(self, unsigned long long floor)
    @cython.locals(overlay=Overlay)
    cpdef object follow(self, object raw, unsigned long long end)
    @cython.locals(pos="unsigned long long", place="unsigned long long", after="unsigned long long", body=bytes,
                   touched=dict, at="Py_ssize_t", size="Py_ssize_t", klen="Py_ssize_t", vlen="Py_ssize_t",
                   front="Py_ssize_t", back="Py_ssize_t", middle="Py_ssize_t", key=bytes, value=bytes, base=bytes,
                   before=Version, rows=dict, freed="Py_ssize_t", raw_bytes="const unsigned char*", kind="int")
    cpdef bint step(self, object raw, Overlay overlay, unsigned long long end) except -1
    cdef bytes record_at(self, unsigned long long place, unsigned long long pos)
    @cython.locals(overlay=Overlay, rows=dict, parts=list, before=Version, version=Version, start="unsigned long long",
                   pos="unsigned long long", place="unsigned long long", size="Py_ssize_t", changes=bytes,
                   covered=bytes, record=bytes, key=bytes)
    cpdef object append(self, dict touched, View view, unsigned long long freed)
