# The C types of whole.py.

cimport cython

cdef unsigned char STAR
cdef unsigned char DOLLAR
cdef unsigned char ZERO
cdef unsigned char NINE
cdef unsigned char CR
cdef unsigned char LF
cdef Py_ssize_t LONGEST
cdef Py_ssize_t MOST

@cython.locals(p="const unsigned char *", size="Py_ssize_t", found=list, words=list, words_left="Py_ssize_t",
               i="Py_ssize_t", length="Py_ssize_t")
cpdef tuple cut(bytearray data, Py_ssize_t at, Py_ssize_t count, Py_ssize_t limit)

@cython.locals(flats=list, key=bytes, words=list, word=bytes, size="Py_ssize_t")
cpdef list plain_appends(list requests, Py_ssize_t at)

@cython.locals(parts=list, text=bytes)
cpdef bytes id_replies(list ids)
