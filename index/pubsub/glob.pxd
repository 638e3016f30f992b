# The C types of glob.py.

cimport cython

cdef unsigned char STAR
cdef unsigned char ANY
cdef unsigned char OPEN
cdef unsigned char CLOSE
cdef unsigned char NOT
cdef unsigned char RANGE
cdef unsigned char QUOTE
cdef Py_ssize_t MOST_STARS

@cython.locals(
    p="const unsigned char *", s="const unsigned char *", plen="Py_ssize_t", slen="Py_ssize_t",
    i="Py_ssize_t", j="Py_ssize_t", after_star="Py_ssize_t", retry="Py_ssize_t", stars="Py_ssize_t",
    step="Py_ssize_t")
cpdef bint glob_matches_bytes(bytes pattern, bytes string)

@cython.locals(c="unsigned char")
cdef Py_ssize_t step_over(const unsigned char *p, Py_ssize_t plen, Py_ssize_t i, unsigned char byte)

@cython.locals(negated="bint", found="bint", signed="int", low="int", high="int")
cdef Py_ssize_t class_over(const unsigned char *p, Py_ssize_t plen, Py_ssize_t i, unsigned char byte)

@cython.locals(p="const unsigned char *", plen="Py_ssize_t", i="Py_ssize_t", c="unsigned char")
cpdef tuple literal_ends(bytes pattern)
