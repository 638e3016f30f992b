# The C types of log.py.

cimport cython
from .record cimport decode, encode_change, number_at
from .room cimport Room
from .transaction cimport Overlay, Version, View, WriteTransaction

cdef class Log:
    cdef public object tree
    cdef public object begin_raw
    cdef public bint durable
    cdef public bint readonly
    cdef public object file
    cdef public object synced
    cdef public unsigned long long[::1] words
    cdef public object ring
    cdef public unsigned long long size
    cdef public unsigned long long opening
    cdef public object mutex
    cdef public WriteTransaction transaction
    cdef public tuple seen
    cdef public unsigned long long pos
    cdef public tuple begun
    cdef public object chain
    cdef public tuple reached
    cdef public Overlay overlay
    cdef public long long checkpoints
    cdef public long long waits
    cdef public double patience
    cdef public long long commits
    cdef public unsigned long long every
    cdef public object bell
    cdef public unsigned long long opened
    cdef public bint is_slotless
    cdef public bint is_tended
    cdef public object tending
    cdef public bint closed
    cdef public Room room
    cdef public object rest
    cdef public bint is_beside_rest
    cdef object __weakref__
    cdef dict __dict__

    @cython.locals(overlay=Overlay, applied="unsigned long long")
    cpdef object join(self)
    @cython.locals(piece=bytes, there=bytes, pos="unsigned long long", lsn="unsigned long long", found="Py_ssize_t",
                   lap="unsigned long long", behind="unsigned long long", begin="unsigned long long",
                   first="unsigned long long", length="Py_ssize_t", start="Py_ssize_t", used="Py_ssize_t",
                   at="unsigned long long", after="unsigned long long", size="unsigned long long")
    cpdef object find_damage(self, bint is_short)
    cdef unsigned long long opening_at(self, unsigned long long lsn, unsigned long long written)
    cdef bint says_all_before(self, unsigned long long place, unsigned long long lsn, object chain) except -1
    cpdef unsigned long long lsn_at(self, unsigned long long place)
    cpdef object take_orphan(self)
    cpdef tuple look(self, object raw)
    @cython.locals(applied="unsigned long long", end="unsigned long long", overlay=Overlay, seen=tuple, view=View)
    cpdef View begin(self, object begin=*)
    cpdef object refuse_lie(self, Py_ssize_t tries)
    @cython.locals(applied="unsigned long long", left=WriteTransaction)
    cpdef WriteTransaction write(self)
    cpdef object snapshot(self)
    cpdef object rebase(self, unsigned long long floor)
    cpdef object reach(self, unsigned long long pos, object chain, tuple begun)
    @cython.locals(overlay=Overlay)
    cpdef object follow(self, object raw, unsigned long long applied, object chain, unsigned long long end)
    @cython.locals(pos="unsigned long long", place="unsigned long long")
    cpdef bytes next_record(self)
    @cython.locals(after="unsigned long long", record=bytes, touched=dict, size="Py_ssize_t", key=bytes, value=bytes,
                   freed="Py_ssize_t")
    cpdef bint step(self, object raw, Overlay overlay) except -1
    @cython.locals(before=Version)
    cpdef bytes base_of(self, object raw, Overlay overlay, unsigned long long lsn, bytes key)
    cdef bytes record_at(self, unsigned long long place, unsigned long long pos, object chain)
    @cython.locals(overlay=Overlay, rows=dict, parts=list, before=Version, version=Version, start="unsigned long long",
                   pos="unsigned long long", place="unsigned long long", size="Py_ssize_t", changes=bytes,
                   covered=bytes, record=bytes, key=bytes, behind=bint, number="unsigned long long")
    cpdef object append(self, dict touched, WriteTransaction view, unsigned long long freed)
    @cython.locals(upto="unsigned long long", applied="unsigned long long", begun=tuple, overlay=Overlay)
    cpdef object put_all(self, WriteTransaction view, bint lent)
