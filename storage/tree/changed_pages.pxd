# The C types of changed_pages.py.

cimport cython
from libc.string cimport memcmp, memcpy

cdef class Walk:
    cdef object file
    cdef unsigned long long last_page
    cdef list keys
    cdef list changes
    cdef set seen

    @cython.locals(page=bytes, starts=list, children=list, key=bytes, stop=bytes, at="Py_ssize_t", last="Py_ssize_t",
                   place="Py_ssize_t", upto="Py_ssize_t", beside="Py_ssize_t", kind="Py_ssize_t")
    cdef object look(self, unsigned long long number, bytes low, bytes high, Py_ssize_t begin, Py_ssize_t end, int depth)

    @cython.locals(place="Py_ssize_t")
    cdef bint has_deletions(self, Py_ssize_t begin, Py_ssize_t end) except -1

@cython.locals(p="const unsigned char*", size="Py_ssize_t", lower="Py_ssize_t", upper="Py_ssize_t", starts=list,
               children=list, last="Py_ssize_t", last_length="Py_ssize_t", place="Py_ssize_t", at="Py_ssize_t",
               length="Py_ssize_t", key="Py_ssize_t", begin="Py_ssize_t")
cdef tuple children_of(unsigned long long number, bytes page, bytes low, bytes high)

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
