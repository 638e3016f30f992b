# The C types of log.py.

cimport cython
from .cursor cimport cursor_over
from ..system_calls cimport seek
from .ring cimport Ring, decode, encode_record, read_u32, read_u64, seal_record
from .transaction cimport Overlay, Version, View, WriteTransaction, mark_of, run_of, write_over

cdef class Room:
    cdef public Ring ring
    cdef public object file_tree
    cdef public object map
    cdef public object ceiling
    cdef public long long seen
    cdef public long long page
    cdef public long long used
    cdef public long long depth
    cdef public long long tree
    cdef public long long leaves
    cdef public long long free
    cdef public long long have
    cdef public long long counted
    cdef public long long mapped
    cdef public long long reusable
    cdef public long long aged
    cdef public long long direct
    cdef public object folder

    cpdef object look(self)
    @cython.locals(freed="long long", pages="long long")
    cpdef long long gives(self, Overlay overlay) except -1
    @cython.locals(changes="long long", splits="long long")
    cpdef long long bound(self, Overlay overlay) except -1
    @cython.locals(bound="long long", runs="long long")
    cpdef bint fits(self, Overlay overlay) except -1
    cpdef object count_free(self)
    cpdef bint take(self, long long wanted) except -1
    cpdef long long count_freed(self, object txn) except -1

cdef class Log:
    cdef public object tree
    cdef public Ring ring
    cdef public Room room
    cdef public object checkpoints
    cdef public object begin_raw
    cdef public bint durable
    cdef public bint readonly
    cdef public object mutex
    cdef public WriteTransaction transaction
    cdef public tuple seen
    cdef public unsigned long long pos
    cdef public tuple begun
    cdef public object chain
    cdef public tuple reached
    cdef public Overlay overlay
    cdef public long long waits
    cdef public double patience
    cdef public long long commits
    cdef public unsigned long long every
    cdef public unsigned long long last_epoch
    cdef public dict foreign
    cdef public unsigned long long foreign_all
    cdef public bint is_slotless
    cdef public object rest
    cdef object __weakref__
    cdef dict __dict__

    @cython.locals(overlay=Overlay, applied="unsigned long long")
    cpdef object enter(self)
    cpdef object take_orphan(self)
    cpdef tuple look(self, object raw)
    @cython.locals(applied="unsigned long long", end="unsigned long long", overlay=Overlay, seen=tuple, view=View)
    cpdef View begin(self, object begin=*)
    cpdef bint is_inside(self) except -1
    cdef object require_outside(self)
    cpdef object refuse_lie(self, Py_ssize_t tries)
    @cython.locals(applied="unsigned long long", ring=Ring, txn=WriteTransaction, left=WriteTransaction)
    cpdef WriteTransaction write(self)
    cpdef object cursor(self, View view)
    cpdef object snapshot(self)
    @cython.locals(overlay=Overlay)
    cpdef object prune(self, unsigned long long floor)
    cpdef object reach(self, unsigned long long pos, object chain, tuple begun)
    cpdef object start_anew(self, unsigned long long upto, object chain)
    cpdef object follow_to_end(self, object raw, unsigned long long applied, object chain)
    @cython.locals(overlay=Overlay)
    cpdef object follow(self, object raw, unsigned long long applied, object chain, unsigned long long end)
    @cython.locals(after="unsigned long long", record=bytes, changes=list, size="Py_ssize_t", key=bytes, value=bytes,
                   freed="Py_ssize_t", foreign=dict, mark=bytes, last=bytes)
    cpdef bint step(self, object raw, Overlay overlay) except -1
    @cython.locals(before=Version)
    cpdef bytes _base_of(self, object raw, Overlay overlay, unsigned long long lsn, bytes key)
    @cython.locals(overlay=Overlay, freed="unsigned long long", room=Room, is_written=bint)
    cpdef object commit(self, WriteTransaction txn)
    @cython.locals(overlay=Overlay, ring=Ring,
                   start="unsigned long long", pos="unsigned long long", place="unsigned long long",
                   size="Py_ssize_t", record=bytearray, key=bytes, behind=bint, written="Py_ssize_t",
                   number="unsigned long long", touched=dict, memory="long long")
    cpdef bint append(self, WriteTransaction txn, unsigned long long freed) except -1
    cpdef object undo(self, WriteTransaction txn)
