# The C types of column_buffers.py, and what buffers.py does, in C.

cimport cython
from libc.string cimport memcmp, memcpy

from ..node.listpack cimport backlen_size, data_size, integer_at, value_at
from ..node.parse_values cimport MOST_MS, Literal, is_utf8

cdef inline void copy(unsigned char *to, Py_ssize_t at, const unsigned char *p, Py_ssize_t pos,
                      Py_ssize_t size) noexcept:
    memcpy(to + at, p + pos, size)

cdef inline void copy_short(unsigned char *to, Py_ssize_t at, const unsigned char *p, Py_ssize_t pos) noexcept:
    memcpy(to + at, p + pos, 16)  # a constant: two moves, and no call

cdef inline bint same(const unsigned char *p, Py_ssize_t pos, const unsigned char *other, Py_ssize_t size) noexcept:
    return memcmp(p + pos, other, size) == 0

cdef inline bint same_within(const unsigned char *p, Py_ssize_t pos, Py_ssize_t other, Py_ssize_t size) noexcept:
    return memcmp(p + pos, p + other, size) == 0

cdef inline bint is_near(const unsigned char *p, Py_ssize_t pos) noexcept:
    cdef unsigned long long word
    memcpy(&word, p + pos, 8)
    return word & 0xFF80FF80FFFFULL == 0x010001000102ULL

cdef inline void put_int32(unsigned char *to, Py_ssize_t place, int value) noexcept:
    memcpy(to + 4 * place, &value, 4)

cdef inline void put_int16(unsigned char *to, Py_ssize_t place, short value) noexcept:
    memcpy(to + 2 * place, &value, 2)

cdef inline int get_int32(const unsigned char *p, Py_ssize_t place) noexcept:
    cdef int value
    memcpy(&value, p + 4 * place, 4)
    return value

cdef inline void put_int64(unsigned char *to, Py_ssize_t place, long long value) noexcept:
    memcpy(to + 8 * place, &value, 8)

cdef inline void put_double(unsigned char *to, Py_ssize_t place, double value) noexcept:
    memcpy(to + 8 * place, &value, 8)

cdef inline void put_float(unsigned char *to, Py_ssize_t place, float value) noexcept:
    memcpy(to + 4 * place, &value, 4)

cdef inline long long get_int64(const unsigned char *p, Py_ssize_t place) noexcept:
    cdef long long value
    memcpy(&value, p + 8 * place, 8)
    return value

cdef int BINARY
cdef int STRING
cdef int INT64
cdef int INT32
cdef int INT16
cdef int INT8
cdef int DOUBLE
cdef int FLOAT
cdef int BOOLEAN
cdef int TIMESTAMP
cdef int DATE
cdef int NESTED
cdef int DECIMAL
cdef int ID_MS
cdef int ID_SEQ
cdef int ID_TIME
cdef int ID_TEXT
cdef int ID_BYTES
cdef int MAP
cdef int CORRUPT
cdef int CONSTANT
cdef Py_ssize_t SHORT
cdef unsigned long long TOP
cdef unsigned long long MASK
cdef long long EXACT
cdef Py_ssize_t LARGEST

@cython.locals(i="Py_ssize_t", b="unsigned char")
cdef bint same_folded(const unsigned char *p, Py_ssize_t pos, const unsigned char *folded, Py_ssize_t size) noexcept

cdef Py_ssize_t head_size(unsigned char b) noexcept

@cython.locals(b="unsigned char")
cdef Py_ssize_t checked_size(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) except -1

@cython.locals(head="Py_ssize_t")
cdef bint is_text(const unsigned char *p, Py_ssize_t pos, Py_ssize_t size) noexcept

@cython.locals(head="Py_ssize_t", other_head="Py_ssize_t")
cdef int same_text(const unsigned char *p, Py_ssize_t pos, Py_ssize_t size, Py_ssize_t other,
                   Py_ssize_t other_size) except -1

@cython.locals(size="Py_ssize_t")
cdef int followed(const unsigned char *p, Py_ssize_t end, Py_ssize_t name, Py_ssize_t name_size, Py_ssize_t pos,
                  long long pairs) except -1

@cython.final
cdef class Run:
    cdef bytearray data
    cdef unsigned char *out
    cdef Py_ssize_t used
    cdef Py_ssize_t room
    cdef bytearray ends
    cdef unsigned char *edge
    cdef Py_ssize_t count
    cdef Py_ssize_t limit

    @cython.locals(data=bytearray, ends=bytearray)
    cdef int begin(self, Py_ssize_t rows) except -1

    @cython.locals(need="Py_ssize_t", room="Py_ssize_t", data=bytearray)
    cdef int reserve(self, Py_ssize_t size) except -1

    cdef int close(self) except -1

    @cython.locals(ends=bytearray)
    cdef int lengthen(self, Py_ssize_t more) except -1

    cdef int add(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t size) except -1

    @cython.locals(digits="Py_ssize_t", limit="unsigned long long", pair="unsigned int", out="unsigned char *",
                   at="Py_ssize_t")
    cdef int add_word(self, unsigned long long word) except -1

    @cython.locals(edge="unsigned char *", i="Py_ssize_t")
    cdef int add_all(self, bytes texts, const unsigned char *marks, Py_ssize_t count) except -1

    @cython.locals(b="unsigned char", head="Py_ssize_t", value="long long", word="unsigned long long")
    cdef int add_element(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t size, Py_ssize_t end) except -1

    @cython.locals(out="unsigned char *", at="Py_ssize_t", count="int", word="unsigned long long")
    cdef int add_id(self, unsigned long long ms, unsigned long long seq) except -1

    cdef tuple take(self)

@cython.final
cdef class Column:
    cdef int kind
    cdef bytes name
    cdef bint folded
    cdef int precision
    cdef int scale
    cdef Py_ssize_t wide
    cdef bytearray valid
    cdef unsigned char *bits
    cdef Py_ssize_t nulls
    cdef bytearray data
    cdef unsigned char *out
    cdef Run run
    cdef Run keys
    cdef bytearray ends
    cdef unsigned char *edge
    cdef Py_ssize_t pairs
    cdef object nested
    cdef list values

    @cython.locals(valid=bytearray, data=bytearray, ends=bytearray)
    cdef int begin(self, Py_ssize_t rows) except -1

    cdef tuple take(self, Py_ssize_t rows)

    cdef int pass_over(self, Py_ssize_t row) except -1

    cdef int add_string(self, bytes text, Py_ssize_t row) except -1

    @cython.locals(kind="int", short=bint, wrong="Py_ssize_t", at="Py_ssize_t", pos="Py_ssize_t", b="unsigned char")
    cdef Py_ssize_t add_values(self, const unsigned char *p, Py_ssize_t end, const unsigned char *spot,
                               Py_ssize_t first, Py_ssize_t row, Py_ssize_t count, Literal literal,
                               unsigned char *bad) except -1

    @cython.locals(b="unsigned char", head="Py_ssize_t", size="Py_ssize_t")
    cdef inline int add(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t end, Py_ssize_t row,
                        Literal literal) except -1

    @cython.locals(kind="int", text=bytes)
    cdef int add_integer(self, long long value, Py_ssize_t row, Literal literal) except -2

    @cython.locals(kind="int", good="int")
    cdef int add_text(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t size, Py_ssize_t row,
                      Literal literal) except -2

    @cython.locals(whole=bytes)
    cdef inline int put_decimal(self, Py_ssize_t row, Literal literal) except -1

    @cython.locals(kind="int", wrong="Py_ssize_t", at="Py_ssize_t", word="unsigned long long")
    cdef Py_ssize_t add_ids(self, const unsigned char *ids, Py_ssize_t row, Py_ssize_t count,
                            unsigned char *bad) except -1

    @cython.locals(kind="int", run=Run, word="unsigned long long")
    cdef int add_id(self, unsigned long long ms, unsigned long long seq, Py_ssize_t row) except -1
