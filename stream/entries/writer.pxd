# The C types of writer.py.

cimport cython
from ...storage.log.transaction cimport WriteTransaction
from ..node.builder cimport NodeBuilder
from ..node.stream_id cimport id_of
from .header cimport StreamHeader

cdef inline object id_from(object cls, tuple pair):
    return id_of(cls, pair[0], pair[1])

cdef class StreamWriter:
    cdef public object number
    cdef public StreamHeader header
    cdef public long long epoch
    cdef public object stored
    cdef public bytes header_key
    cdef public object header_seed
    cdef public dict groups
    cdef public object idle_from
    cdef public Py_ssize_t begun
    cdef public bytes nodes_prefix
    cdef public NodeBuilder tail
    cdef public bint tail_known
    cdef public bytes tail_key
    cdef public object tail_seed
    cdef public object tail_ordinal
    cdef public object tail_span
    cdef public bint tail_changed
    cdef public Py_ssize_t tail_bytes
    cdef public object tail_put_in
    cdef public object tail_room
    cdef public object trial

    @cython.locals(tail=NodeBuilder, pair=tuple)
    cpdef object append(self, WriteTransaction txn, object new, object now, list flat)
    @cython.locals(max_entries="long long")
    cdef bint _push(self, NodeBuilder tail, object ms, object seq, list flat) except -1
    cdef bint _is_large(self, Py_ssize_t size) except -1
    cdef object _added(self, object count, tuple first, tuple last)
    cpdef object changed(self, WriteTransaction txn)
    cpdef tuple next_id(self, object new, object now)
    @cython.locals(size="Py_ssize_t", room="Py_ssize_t")
    cdef Py_ssize_t _room(self, NodeBuilder tail) except? -1
    cdef bint _grow(self, NodeBuilder tail, object ms, object seq, list flat) except -1
    cdef NodeBuilder _start_node(self, WriteTransaction txn, object ms, object seq, list flat)
    cdef object _load_tail(self, WriteTransaction txn)
    cdef object _seal_tail(self, WriteTransaction txn, NodeBuilder tail)
    @cython.locals(value=bytes)
    cdef object _put_tail(self, WriteTransaction txn, NodeBuilder tail, object codec)
    cdef object _tail_block(self, NodeBuilder tail, object codec)
    cpdef object flush(self, WriteTransaction txn)
    cpdef bint is_current(self, WriteTransaction txn) except -1

cpdef object after_append(WriteTransaction txn, StreamWriter stream, object now, bint releases=*)

@cython.locals(writer=StreamWriter)
cpdef object append(object name, object limits, object new, object now, list flat, WriteTransaction txn)

@cython.locals(writer=StreamWriter)
cpdef StreamWriter locate(WriteTransaction txn, object name)
