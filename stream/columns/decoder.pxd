# The C types of decoder.py.

cimport cython

from .column_buffers cimport (Column, Run, checked_size, followed, get_int32, get_int64, head_size, is_near, is_text, put_int32,
                              put_int64, same, same_folded)
from ..node.listpack cimport backlen_size, element_size, value_at
from ..node.parse_values cimport Literal, is_utf8
from ..node.decode cimport Walk, check_counts, forward, integer, leave, open_alike, open_node, skip

cdef Py_ssize_t HEAVY
cdef int DELETED
cdef int SAMEFIELDS
cdef unsigned long long MASK
cdef long long MANY
cdef Py_ssize_t RUN
cdef int DECIMAL
cdef int MAP
cdef int CORRUPT

@cython.final
cdef class Decoder:
    cdef readonly Py_ssize_t rows
    cdef readonly Py_ssize_t malformed
    cdef readonly bint full
    cdef Py_ssize_t weight
    cdef Py_ssize_t count
    cdef bytearray ids
    cdef unsigned char *id
    cdef bytearray places
    cdef unsigned char *place
    cdef bytearray bad_rows
    cdef unsigned char *bad
    cdef list every
    cdef list columns
    cdef list fields
    cdef Column map
    cdef Column corrupt
    cdef Py_ssize_t turn
    cdef Walk walk
    cdef Walk like
    cdef long long live
    cdef list names
    cdef bytearray slots
    cdef unsigned char *slot
    cdef bytearray steps
    cdef unsigned char *step
    cdef bytearray spots
    cdef unsigned char *spot
    cdef Py_ssize_t missing
    cdef bytearray kept
    cdef unsigned char *keep
    cdef bytes kept_names
    cdef bytes marks
    cdef bint names_good
    cdef Py_ssize_t limit
    cdef str stream
    cdef bint failfast
    cdef Literal literal
    cdef unsigned long long lo_ms
    cdef unsigned long long lo_seq
    cdef unsigned long long hi_ms
    cdef unsigned long long hi_seq

    @cython.locals(column=Column)
    cdef object start(self)

    @cython.locals(column=Column)
    cpdef list take(self)

    cpdef object between(self, str stream, unsigned long long lo_ms, unsigned long long lo_seq,
                         unsigned long long hi_ms, unsigned long long hi_seq)

    @cython.locals(walk=Walk, like=Walk)
    cpdef bint add(self, bytes listpack, unsigned long long ms, unsigned long long seq,
                   Py_ssize_t begin=*) except -1

    @cython.locals(column=Column, kept=bytearray, slots=bytearray)
    cdef object plan(self, list names)

    @cython.locals(walk=Walk, more=bint)
    cpdef bint fill(self) except -1

    @cython.locals(limit="Py_ssize_t", at="Py_ssize_t", start="Py_ssize_t")
    cdef bint collect(self, Walk walk) except -1

    @cython.locals(p="const unsigned char *", end="Py_ssize_t", begin="Py_ssize_t", pos="Py_ssize_t",
                   master_ms="unsigned long long", master_seq="unsigned long long",
                   ms="unsigned long long", seq="unsigned long long", seen="long long", last="unsigned int",
                   next_ms="unsigned long long", next_seq="unsigned long long", step="const unsigned char *",
                   spot="unsigned char *", at="Py_ssize_t", weight="Py_ssize_t", extra="Py_ssize_t",
                   start="Py_ssize_t", i="Py_ssize_t", b="unsigned int", size="Py_ssize_t", after="Py_ssize_t",
                   remaining="int", place="Py_ssize_t")
    cdef Py_ssize_t stride(self, Walk walk, Py_ssize_t limit) except -1

    cdef inline int note(self, Py_ssize_t at, unsigned long long ms, unsigned long long seq, Py_ssize_t start,
                         long long own) noexcept

    @cython.locals(place="Py_ssize_t")
    cdef int forget(self, Py_ssize_t at) except -1

    @cython.locals(count="Py_ssize_t", row="Py_ssize_t", wrong="Py_ssize_t", column=Column, at="Py_ssize_t",
                   place="Py_ssize_t")
    cdef int add_run(self, Walk walk) except -1

    @cython.locals(p="const unsigned char *", end="Py_ssize_t", pos="Py_ssize_t", own="long long", count="long long",
                   column=Column, found="Py_ssize_t", i="Py_ssize_t", b="unsigned char", size="Py_ssize_t",
                   after="Py_ssize_t")
    cdef int find(self, Walk walk, Py_ssize_t at) except -1

    @cython.locals(head="Py_ssize_t", text=bytes, column=Column, limit="Py_ssize_t", place="Py_ssize_t",
                   remaining="Py_ssize_t")
    cdef Py_ssize_t named(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t size) except -2

    @cython.locals(wrong="Py_ssize_t", at="Py_ssize_t")
    cdef Py_ssize_t add_maps(self, Walk walk, Column column, Py_ssize_t row, Py_ssize_t count) except -1

    @cython.locals(pos="Py_ssize_t", own="long long", keys=Run, values=Run,
                   keys_used="Py_ssize_t", values_used="Py_ssize_t", good=bint)
    cdef int add_map(self, Walk walk, Py_ssize_t at, Column column, Py_ssize_t row) except -1

    @cython.locals(p="const unsigned char *", i="Py_ssize_t", width="Py_ssize_t",
                   size="Py_ssize_t")
    cdef int add_common(self, Walk walk, Py_ssize_t pos, int texts, Run keys, Run values) except -1

    @cython.locals(p="const unsigned char *", size="Py_ssize_t", name="Py_ssize_t", name_size="Py_ssize_t",
                   after="Py_ssize_t", first="Py_ssize_t")
    cdef int add_own(self, Walk walk, Py_ssize_t pos, long long remaining, int texts, Run keys, Run values) except -1

    @cython.locals(column=Column, row="Py_ssize_t")
    cpdef object add_damaged(self, unsigned long long ms, unsigned long long seq, bytes what)

    @cython.locals(name=bytes, value=bytes, start="Py_ssize_t")
    cdef int add_many(self, Walk walk, Py_ssize_t pos, long long own, int texts, Run keys, Run values) except -1

    @cython.locals(p="const unsigned char *", count="long long", size="Py_ssize_t", found=list)
    cdef tuple texts(self, Walk walk, Py_ssize_t pos, long long own)

    cdef tuple id_at(self, Py_ssize_t at)

    @cython.locals(column=Column, spot="Py_ssize_t", place="Py_ssize_t")
    cdef int refuse(self, Walk walk, Py_ssize_t at, Py_ssize_t row) except -1
