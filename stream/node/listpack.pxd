# The C types of listpack.py.

cimport cython
from libc.string cimport memcpy
from cpython.bytes cimport PyBytes_FromStringAndSize

cdef extern from "Python.h":
    int PyByteArray_Resize(object text, Py_ssize_t size) except -1
    Py_ssize_t PyByteArray_GET_SIZE(object text)

cdef inline int lengthen(bytearray p, Py_ssize_t size) except -1:
    return PyByteArray_Resize(p, PyByteArray_GET_SIZE(p) + size)

cdef inline int cut_off(bytearray p, Py_ssize_t size) except -1:
    return PyByteArray_Resize(p, size)

cdef inline void copy(unsigned char *to, Py_ssize_t at, const unsigned char *p, Py_ssize_t pos,
                      Py_ssize_t size) noexcept:
    memcpy(to + at, p + pos, size)

cdef inline bytes decimal(long long value):
    cdef char text[20]
    cdef int at = 20
    cdef unsigned long long rest = <unsigned long long>value
    if value < 0:
        rest = 0 - rest
    while True:
        at -= 1
        text[at] = <char>(48 + rest % 10)
        rest //= 10
        if not rest:
            break
    if value < 0:
        at -= 1
        text[at] = 45
    return PyBytes_FromStringAndSize(&text[at], 20 - at)

cdef Py_ssize_t HEADER
cdef Py_ssize_t UNKNOWN
cdef int SAMEFIELDS
cdef unsigned long long SIGN
cdef unsigned long long TOP
cdef list SMALL
cdef list ONE

cdef Py_ssize_t backlen_size(Py_ssize_t size) noexcept

cdef int damaged(str what, Py_ssize_t offset) except -1

@cython.locals(b="unsigned char", size="Py_ssize_t")
cdef Py_ssize_t data_size(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) except -1

@cython.locals(size="Py_ssize_t", k="Py_ssize_t", at="Py_ssize_t", rest="Py_ssize_t", i="Py_ssize_t")
cdef Py_ssize_t element_size(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) except -1

@cython.locals(size="Py_ssize_t")
cdef Py_ssize_t after(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) except -1

@cython.locals(size="Py_ssize_t", shift="int", at="Py_ssize_t", start="Py_ssize_t", b="unsigned char",
               group="Py_ssize_t")
cdef Py_ssize_t before(const unsigned char *p, Py_ssize_t pos, Py_ssize_t end) except -1

cdef bint is_integer(unsigned char b) noexcept

@cython.locals(b="unsigned char", value="long long", width="int", i="int",
               word="unsigned long long", sign="unsigned long long")
cdef long long integer_at(const unsigned char *p, Py_ssize_t pos) noexcept

@cython.locals(b="unsigned char")
cdef bytes value_at(const unsigned char *p, Py_ssize_t pos, Py_ssize_t size)

@cython.locals(i="Py_ssize_t", digits="Py_ssize_t", word="unsigned long long", b="unsigned char")
cdef bint is_canonical(const unsigned char *p, Py_ssize_t size) noexcept

@cython.locals(i="Py_ssize_t", at="Py_ssize_t", word="unsigned long long")
cdef long long canonical(const unsigned char *p, Py_ssize_t size) noexcept

cdef int integer_width(long long value) noexcept

@cython.locals(p=bytearray)
cdef bytes integer_element(long long value)

cdef Py_ssize_t integer_size(long long value) noexcept

cdef Py_ssize_t room_for(Py_ssize_t size, Py_ssize_t values) noexcept

@cython.locals(width="int", i="int")
cdef Py_ssize_t put_integer(unsigned char *p, Py_ssize_t at, long long value) noexcept

cdef Py_ssize_t put_value(unsigned char *p, Py_ssize_t at, bytes value) except -1

cdef inline Py_ssize_t put_text(unsigned char *p, Py_ssize_t at, const unsigned char *texts, Py_ssize_t pos,
                                Py_ssize_t size) noexcept:
    return put_bytes(p, at, texts + pos, size)

@cython.locals(i="Py_ssize_t", start="Py_ssize_t")
cdef Py_ssize_t put_bytes(unsigned char *p, Py_ssize_t at, const unsigned char *value, Py_ssize_t size) noexcept

@cython.locals(size="Py_ssize_t", i="Py_ssize_t")
cdef Py_ssize_t put_entry(unsigned char *p, Py_ssize_t at, long long ms, long long seq, list flat,
                          bint same) except -1

cdef Py_ssize_t check_frame(bytes lp) except -1

@cython.locals(total="Py_ssize_t")
cdef Py_ssize_t checked_end(const unsigned char *p, Py_ssize_t size) except -1

@cython.locals(size="unsigned long long", count="unsigned long long")
cdef bytes frame(bytes head, object body, Py_ssize_t elements)

@cython.locals(p="const unsigned char *", pos="Py_ssize_t", count="Py_ssize_t")
cdef Py_ssize_t walk(bytes lp, Py_ssize_t start, Py_ssize_t end) except -1
