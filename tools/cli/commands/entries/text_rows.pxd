# The C types of text_rows.py.

cimport cython
from libc.string cimport memcmp

cdef unsigned char LF
cdef unsigned char CR
cdef unsigned char TAB
cdef unsigned char SPACE
cdef unsigned char QUOTE
cdef unsigned char BACKSLASH
cdef unsigned char OPEN
cdef unsigned char CLOSE
cdef unsigned char COLON
cdef unsigned char COMMA
cdef unsigned char MINUS
cdef unsigned char PLUS
cdef unsigned char POINT
cdef unsigned char ZERO
cdef unsigned char NINE
cdef unsigned char SMALL_E
cdef unsigned char LARGE_E
cdef list CONSTANTS
cdef bytes ITSELF

cdef inline bint is_same(const unsigned char *p, Py_ssize_t i, Py_ssize_t size, bytes other) noexcept:
    return size == len(other) and memcmp(p + i, <const unsigned char *>other, size) == 0

@cython.locals(p="const unsigned char *", end="Py_ssize_t", i="Py_ssize_t")
cpdef Py_ssize_t plain_rows(bytes name, bytes block, Py_ssize_t at, Py_ssize_t line, list flats,
                            list numbers) except -1

@cython.locals(p="const unsigned char *", end="Py_ssize_t", width="Py_ssize_t", flat=list, i="Py_ssize_t",
               k="Py_ssize_t", start="Py_ssize_t", doubled=bint, cell=bytes)
cpdef Py_ssize_t csv_rows(list names, unsigned char comma, bytes block, Py_ssize_t at, Py_ssize_t line, list flats,
                          list numbers) except -1

@cython.locals(p="const unsigned char *", end="Py_ssize_t", before=list, flat=list, i="Py_ssize_t")
cpdef Py_ssize_t json_rows(bytes block, Py_ssize_t at, Py_ssize_t line, list flats, list numbers) except -1

cdef Py_ssize_t after_space(const unsigned char *p, Py_ssize_t i) noexcept

@cython.locals(start="Py_ssize_t", word=bytes)
cdef Py_ssize_t put_json(const unsigned char *p, Py_ssize_t i, list flat, list before) except -1

@cython.locals(start="Py_ssize_t")
cdef Py_ssize_t after_digits(const unsigned char *p, Py_ssize_t i) except -1

@cython.locals(start="Py_ssize_t", k="Py_ssize_t", itself="const unsigned char *", text=str)
cdef Py_ssize_t put_string(const unsigned char *p, Py_ssize_t i, list flat, list before) except -1
