# The C types of parse_values.py.

cimport cython
from libc.string cimport memcpy

cdef int GOOD
cdef int BAD
cdef unsigned long long TOP
cdef long long MOST_MS
cdef Py_ssize_t PLAIN
cdef int NONE
cdef long long ERAS
cdef long long ERA
cdef unsigned long long ONE
cdef unsigned long long T
cdef unsigned long long TRUE
cdef unsigned long long Y
cdef unsigned long long YES
cdef unsigned long long ZERO
cdef unsigned long long F
cdef unsigned long long FALSE
cdef unsigned long long N
cdef unsigned long long NO

@cython.final
cdef class Literal:
    cdef long long number
    cdef double real
    cdef object big
    cdef Py_ssize_t start
    cdef Py_ssize_t stop
    cdef bint negative
    cdef Py_ssize_t digits
    cdef unsigned long long word
    cdef Py_ssize_t exponent
    cdef object local

    @cython.locals(end="Py_ssize_t")
    cdef bint trim(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t size) noexcept

    @cython.locals(at="Py_ssize_t", stop="Py_ssize_t", negative=bint, word="unsigned long long", b="unsigned char")
    cdef int read_integer(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t size) noexcept

    @cython.locals(at="Py_ssize_t", stop="Py_ssize_t", word="unsigned long long", digits="Py_ssize_t",
                   seen="Py_ssize_t", point="Py_ssize_t", exponent="Py_ssize_t", b="unsigned char", minus=bint,
                   written="Py_ssize_t")
    cdef bint scan(self, const unsigned char *p) noexcept

    @cython.locals(stop="Py_ssize_t", first="Py_ssize_t", word="unsigned long long", digit="int", point="Py_ssize_t")
    cdef inline bint plain(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t size) noexcept

    @cython.locals(text=bytes, power="double", real="double")
    cdef int read_double(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t size) except -2

    @cython.locals(real="double", near="double")
    cdef int read_float(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t size) except -2

    @cython.locals(stop="Py_ssize_t", negative=bint, year="long long", month="int", day="int")
    cdef int read_date(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t size) noexcept

    @cython.locals(first="Py_ssize_t", number="int")
    cdef int part(self, const unsigned char *p, Py_ssize_t at, int least, int most) noexcept

    @cython.locals(shift="Py_ssize_t", digits="Py_ssize_t", word="unsigned long long")
    cdef int read_decimal(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t size, int precision,
                     int scale) except -2

    @cython.locals(limit="unsigned long long")
    cdef int fits(self, unsigned long long word, int precision) noexcept

    @cython.locals(word="unsigned long long")
    cdef int scaled(self, long long value, int precision, int scale) except -2

    cdef int long_decimal(self, bytes text, int precision, int scale) except -2

    @cython.locals(word="unsigned long long", at="Py_ssize_t", b="unsigned char")
    cdef int read_boolean(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t size) noexcept

    @cython.locals(tens="int", ones="int")
    cdef int pair(self, const unsigned char *p, Py_ssize_t at) noexcept

    @cython.locals(zoned=bint, at="Py_ssize_t", stop="Py_ssize_t", century="int", years="int", month="int", day="int",
                   year="int", hour="int", minute="int", second="int", micros="long long", offset="int",
                   first="Py_ssize_t", count="Py_ssize_t", seconds="long long")
    cdef int read_timestamp(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t size, bint naive) except -2

    @cython.locals(century="int", year="int", month="int", day="int", hour="int", minute="int", second="int",
                   micros="long long", at="Py_ssize_t", digit="int", seconds="long long")
    cdef bint plain_timestamp(self, const unsigned char *p, Py_ssize_t pos, Py_ssize_t size) noexcept

    @cython.locals(stop="Py_ssize_t", hours="int", minutes="int", after="Py_ssize_t", offset="int")
    cdef int zone(self, const unsigned char *p, Py_ssize_t at) except -32768

cdef inline bint is_ascii(const unsigned char *p, Py_ssize_t pos) noexcept:
    cdef unsigned long long word
    memcpy(&word, p + pos, 8)
    return word & 0x8080808080808080ULL == 0

cdef inline double single(double value) noexcept:
    return <double><float>value

@cython.locals(tens="int", ones="int")
cdef inline int two(const unsigned char *p, Py_ssize_t pos) noexcept

cdef int days_in(int year, int month) noexcept

cdef long long days_before(long long year, int month, int day) noexcept

@cython.locals(end="Py_ssize_t", b="unsigned char", more="int", low="unsigned char", high="unsigned char")
cdef bint is_utf8(const unsigned char *p, Py_ssize_t pos, Py_ssize_t size) noexcept
