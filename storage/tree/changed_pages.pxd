# The C types of changed_pages.py.

cimport cython
from libc.string cimport memcmp, memcpy

cdef class Walk:
    cdef object file
    cdef unsigned long long last_page
    cdef list keys
    cdef list changes
    cdef set seen

    @cython.locals(page=bytes, key=bytes, stop=bytes, at="Py_ssize_t", last="Py_ssize_t", place="Py_ssize_t",
                   upto="Py_ssize_t", beside="Py_ssize_t", kind="Py_ssize_t", below="int", found="int")
    cdef int look(self, unsigned long long number, bytes low, bytes high, Py_ssize_t begin, Py_ssize_t end, int depth,
                  int side) except -1

    @cython.locals(start=bytes, stop=bytes)
    cdef int look_below(self, bytes page, Py_ssize_t place, Py_ssize_t last, bytes low, bytes high, Py_ssize_t begin,
                        Py_ssize_t end, int depth, int side) except -1

    @cython.locals(place="Py_ssize_t")
    cdef bint has_deletions(self, Py_ssize_t begin, Py_ssize_t end) except -1

@cython.locals(p="const unsigned char*", one="const unsigned char*", other="const unsigned char*", at="Py_ssize_t",
               found="int")
cdef int outside(bytes page, bytes first, bytes last) except -1

@cython.locals(p="const unsigned char*", lower="Py_ssize_t")
cdef Py_ssize_t end_of_pointers(unsigned long long number, bytes page) except -1

@cython.locals(p="const unsigned char*", bound="const unsigned char*", begin="Py_ssize_t", size="Py_ssize_t",
               lower="Py_ssize_t", upper="Py_ssize_t", last="Py_ssize_t", last_length="Py_ssize_t",
               place="Py_ssize_t", at="Py_ssize_t", length="Py_ssize_t", key="Py_ssize_t")
cdef Py_ssize_t require_branch(unsigned long long number, bytes page, bytes low, bytes high) except -1

@cython.locals(p="const unsigned char*", q="const unsigned char*", head="Py_ssize_t", low="Py_ssize_t",
               high="Py_ssize_t", middle="Py_ssize_t", at="Py_ssize_t")
cdef Py_ssize_t child_of(bytes page, Py_ssize_t last, bytes key) except -1

@cython.locals(p="const unsigned char*", at="Py_ssize_t")
cdef bytes start_of(bytes page, Py_ssize_t place)

@cython.locals(p="const unsigned char*", at="Py_ssize_t")
cdef unsigned long long number_of_child(bytes page, Py_ssize_t place) except? 0

@cython.locals(p="const unsigned char*", bound="const unsigned char*", begin="Py_ssize_t", size="Py_ssize_t",
               lower="Py_ssize_t", upper="Py_ssize_t", found=list, filled="Py_ssize_t", last="Py_ssize_t",
               last_length="Py_ssize_t", place="Py_ssize_t", at="Py_ssize_t", flags="Py_ssize_t",
               is_long="Py_ssize_t", length="Py_ssize_t", data="Py_ssize_t", key="Py_ssize_t", taken="Py_ssize_t")
cdef list long_values(unsigned long long number, bytes page, bytes low, bytes high)

cdef inline bint is_less(const unsigned char *p, Py_ssize_t one, Py_ssize_t one_length, const unsigned char *q,
                         Py_ssize_t other, Py_ssize_t other_length) noexcept:
    cdef int found = memcmp(p + one, q + other, min(one_length, other_length))
    return found < 0 or (found == 0 and one_length < other_length)

cdef inline Py_ssize_t two_bytes(const unsigned char *p, Py_ssize_t at) noexcept:
    cdef unsigned short number
    memcpy(&number, p + at, 2)
    return number

cdef inline Py_ssize_t four_bytes(const unsigned char *p, Py_ssize_t at) noexcept:
    cdef unsigned int number
    memcpy(&number, p + at, 4)
    return number

cdef inline unsigned long long eight_bytes(const unsigned char *p, Py_ssize_t at) noexcept:
    cdef unsigned long long number
    memcpy(&number, p + at, 8)
    return number
