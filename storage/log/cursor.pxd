# The C types of cursor.py.

cimport cython
from .transaction cimport Overlay, Version, View

cdef Overlay NOTHING

@cython.locals(stem=bytes, last="Py_ssize_t")
cpdef bytes behind(bytes full)

@cython.locals(key=bytes, last=bytes)
cpdef bytes seek(object cursor, bytes full, bint before=*)

cdef class LogCursor:
    cdef object cursor
    cdef Overlay overlay
    cdef dict rows
    cdef unsigned long long upto
    cdef bytes prefix
    cdef Py_ssize_t skip
    cdef readonly bint eof
    cdef readonly bytes here
    cdef bytes rest
    cdef bytes seen
    cdef bytes at
    cdef bytes other
    cdef Version version
    cdef Py_ssize_t index
    cdef long long moves
    cdef bint forward
    cdef bint both
    cdef bint on_lmdb

    cpdef object turn_to(self, bytes prefix)
    cdef bytes below(self, bint found)
    @cython.locals(found=bint)
    cdef bytes search(self, bytes full, bint before=*)
    @cython.locals(version=Version, first=bytes, end=bytes, gap=tuple, steps="Py_ssize_t", gaps=dict)
    cdef object skip_from(self, bytes key)
    cdef object skip_lmdb(self, bint found)
    @cython.locals(version=Version, key=bytes, order=list, beside=list, size="Py_ssize_t", before="Py_ssize_t",
                   at="Py_ssize_t")
    cdef object skip_overlay(self, Py_ssize_t index, bytes bound)
    cdef bytes pick(self)
    @cython.locals(text="const unsigned char *")
    cdef bint stand(self, bytes key) except -1
    cdef bint stand_found(self, bytes key) except -1
    cdef object approach(self, bytes full, bint forward)
    @cython.locals(key=bytes)
    cpdef bint set_range(self, bytes full) except -1
    @cython.locals(key=bytes)
    cpdef bint set_before(self, bytes full) except -1
    @cython.locals(key=bytes)
    cpdef bint set_key(self, bytes full) except -1
    cpdef bint seek(self, str op, bytes key=*) except -1
    cpdef bint first(self) except -1
    cpdef bint last(self) except -1
    @cython.locals(here=bytes, key=bytes)
    cpdef bint next(self) except -1
    @cython.locals(here=bytes, key=bytes)
    cpdef bint prev(self) except -1
    cpdef bytes key(self)
    cpdef bytes value(self)
    cpdef tuple item(self)
    @cython.locals(found=list, last=bytes, more=bint, here=bytes, key=bytes)
    cpdef list take(self, Py_ssize_t most, bytes stop)

@cython.locals(cursor=LogCursor, view=View, merges=bint)
cpdef LogCursor cursor_over(object txn, bytes prefix=*)
