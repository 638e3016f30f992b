# The C types of whole.py.

cimport cython

cdef unsigned char STAR
cdef unsigned char DOLLAR
cdef unsigned char ZERO
cdef unsigned char NINE
cdef unsigned char CR
cdef unsigned char LF
cdef Py_ssize_t LONGEST

@cython.locals(p="const unsigned char *", size="Py_ssize_t", found=list, words=list, many="Py_ssize_t", i="Py_ssize_t",
               length="Py_ssize_t")
cpdef tuple cut(bytearray data, Py_ssize_t at, Py_ssize_t most, Py_ssize_t limit)
