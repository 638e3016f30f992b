# The C types of subject.py.

cimport cython

cdef int DISJOINT
cdef int OVERLAP
cdef int COVERED
cdef int _EMPTY
cdef int _EMPTY_TOKEN
cdef int _MISPLACED
cdef int _FORBIDDEN
cdef int _NOT_ASCII

@cython.locals(p="const unsigned char *", n="Py_ssize_t", i="Py_ssize_t", start="Py_ssize_t",
               wildcards="int", forbidden="int", high="int")
cpdef int examine(bytes raw) except -100

@cython.locals(p="const unsigned char *", q="const unsigned char *", m="Py_ssize_t", n="Py_ssize_t",
               i="Py_ssize_t", j="Py_ssize_t", result="int")
cpdef int relation(bytes a, bytes b, bint literal) except -100

@cython.locals(p="const unsigned char *", w="const unsigned char *", n="Py_ssize_t", m="Py_ssize_t",
               i="Py_ssize_t", j="Py_ssize_t", way="Py_ssize_t", fork="Py_ssize_t", start="Py_ssize_t",
               at="Py_ssize_t")
cpdef object advance(bytes row, Py_ssize_t skip, bytes wanted)
