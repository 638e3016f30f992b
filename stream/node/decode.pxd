# The C types of decode.py.

cimport cython
from libc.string cimport memcmp

from .entry cimport Entry
from .listpack cimport after, before, checked_end, element_size, frame, integer_at, integer_element, is_integer
from .listpack cimport value_at

cdef int DELETED
cdef int SAMEFIELDS
cdef Py_ssize_t HEADER
cdef unsigned long long MASK

cdef inline bint same_part(const unsigned char *p, Py_ssize_t pos, const unsigned char *other, Py_ssize_t at,
                           Py_ssize_t size) noexcept:
    return memcmp(p + pos, other + at, size) == 0

cdef inline const unsigned char *bytes_from(bytes data, Py_ssize_t begin):
    return <const unsigned char *>data + begin

cdef int damaged(str what, Py_ssize_t offset) except -1

@cython.final
cdef class Walk:
    cdef bytes data
    cdef const unsigned char *p
    cdef Py_ssize_t end
    cdef Py_ssize_t body
    cdef Py_ssize_t first
    cdef Py_ssize_t pos
    cdef Py_ssize_t start
    cdef Py_ssize_t behind
    cdef Py_ssize_t tail
    cdef long long seen
    cdef long long met
    cdef long long live
    cdef long long dead
    cdef long long width
    cdef long long own
    cdef int flags
    cdef list names
    cdef unsigned long long master_ms
    cdef unsigned long long master_seq
    cdef unsigned long long ms
    cdef unsigned long long seq

@cython.locals(walk=Walk)
cdef Walk open_frame(bytes data, unsigned long long ms, unsigned long long seq, Py_ssize_t begin=*)

@cython.locals(walk=Walk, size="Py_ssize_t")
cdef Walk open_alike(bytes data, unsigned long long ms, unsigned long long seq, Walk like, Py_ssize_t begin=*)

@cython.locals(walk=Walk, count="long long", names=list)
cdef Walk open_node(bytes data, unsigned long long ms, unsigned long long seq, Py_ssize_t begin=*)

@cython.locals(p="const unsigned char *", pos="Py_ssize_t", b="unsigned char", following="Py_ssize_t")
cdef long long integer(Walk walk) except? -1

@cython.locals(p="const unsigned char *", pos="Py_ssize_t", size="Py_ssize_t")
cdef bytes value(Walk walk)

@cython.locals(flags="long long", own="long long")
cdef int enter(Walk walk) except -1

@cython.locals(at="Py_ssize_t", expected="long long")
cdef int leave(Walk walk) except -1

@cython.locals(ms="unsigned long long", seq="unsigned long long")
cdef bint forward(Walk walk) except -1

@cython.locals(p="const unsigned char *", pos="Py_ssize_t", steps="long long",
               ms="unsigned long long", seq="unsigned long long")
cdef bint backward(Walk walk) except -1

@cython.locals(p="const unsigned char *", pos="Py_ssize_t", end="Py_ssize_t", count="long long")
cdef int skip(Walk walk) except -1

@cython.locals(p="const unsigned char *", pos="Py_ssize_t", end="Py_ssize_t", count="long long",
               own="long long", b="unsigned char", size="Py_ssize_t", values=list, entry=Entry)
cdef Entry take(Walk walk)

cdef int check_counts(Walk walk, long long live) except -1

@cython.locals(walk=Walk, found=list, live="long long", below=bint, above=bint)
cpdef list decode(bytes listpack, unsigned long long ms, unsigned long long seq,
                  unsigned long long lo_ms, unsigned long long lo_seq,
                  unsigned long long hi_ms, unsigned long long hi_seq,
                  Py_ssize_t limit=*, bint reverse=*)

@cython.locals(walk=Walk, found=list, size="Py_ssize_t", below=bint)
cpdef tuple read_on(bytes listpack, unsigned long long ms, unsigned long long seq,
                    unsigned long long lo_ms, unsigned long long lo_seq, Py_ssize_t limit, Walk before)

@cython.locals(walk=Walk)
cpdef tuple counts(bytes listpack)

@cython.locals(walk=Walk, live="long long")
cpdef long long live_before(bytes listpack, unsigned long long ms, unsigned long long seq,
                            unsigned long long id_ms, unsigned long long id_seq) except -1

@cython.locals(walk=Walk, found=list, below=bint)
cpdef list live_ids(bytes listpack, unsigned long long ms, unsigned long long seq,
                    unsigned long long lo_ms, unsigned long long lo_seq,
                    unsigned long long hi_ms, unsigned long long hi_seq)

@cython.locals(walk=Walk, live="long long")
cpdef tuple nth_live(bytes listpack, unsigned long long ms, unsigned long long seq, long long k)

@cython.locals(walk=Walk)
cpdef tuple first_live(bytes listpack, unsigned long long ms, unsigned long long seq)

@cython.locals(walk=Walk)
cpdef tuple last_live(bytes listpack, unsigned long long ms, unsigned long long seq)

@cython.locals(walk=Walk)
cpdef tuple last_entry_id(bytes listpack, unsigned long long ms, unsigned long long seq)

@cython.locals(walk=Walk, parts=list, done=list, copied="Py_ssize_t",
               i="Py_ssize_t", live="long long")
cpdef tuple mark_deleted(bytes listpack, unsigned long long ms, unsigned long long seq, list ids)

@cython.locals(walk=Walk, parts=list, elements="Py_ssize_t", live="long long",
               start="Py_ssize_t")
cpdef bytes compact(bytes listpack, unsigned long long ms, unsigned long long seq)

@cython.locals(walk=Walk, back=Walk, live="long long", starts=list)
cpdef tuple validate_node(bytes listpack, unsigned long long ms, unsigned long long seq)
