# The C types of changed_pages.py.

cimport cython
from libc.string cimport memcmp

cdef class Walk:
    cdef object file
    cdef unsigned long long last_page
    cdef list keys
    cdef list changes
    cdef set seen

    @cython.locals(page=bytes, starts=list, children=list, key=bytes, stop=bytes, at="Py_ssize_t", last="Py_ssize_t",
                   place="Py_ssize_t", upto="Py_ssize_t", beside="Py_ssize_t")
    cdef object look(self, unsigned long long number, bytes low, bytes high, Py_ssize_t begin, Py_ssize_t end, int depth)

@cython.locals(starts=list, last="Py_ssize_t", place="Py_ssize_t")
cdef tuple children_of(unsigned long long number, bytes page, bytes low, bytes high)

@cython.locals(p="const unsigned char*", less="Py_ssize_t", more="Py_ssize_t", size="Py_ssize_t", lower="Py_ssize_t",
               upper="Py_ssize_t", found=list, filled="Py_ssize_t", last="Py_ssize_t", last_length="Py_ssize_t",
               place="Py_ssize_t", at="Py_ssize_t", flags="Py_ssize_t", length="Py_ssize_t", data="Py_ssize_t",
               high_byte="Py_ssize_t", key="Py_ssize_t", taken="Py_ssize_t")
cdef list long_values(unsigned long long number, bytes page, bytes low, bytes high)

cdef inline bint is_less(const unsigned char *p, Py_ssize_t one, Py_ssize_t one_length, Py_ssize_t other,
                         Py_ssize_t other_length) noexcept:
    cdef int found = memcmp(p + one, p + other, min(one_length, other_length))
    return found < 0 or (found == 0 and one_length < other_length)
