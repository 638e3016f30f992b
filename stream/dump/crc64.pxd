# The C types of crc64.py.

cimport cython

cdef extern from "Python.h":
    char *PyBytes_AS_STRING(object text)

cdef inline const unsigned long long *numbers_of(bytes table) noexcept:
    return <const unsigned long long *>PyBytes_AS_STRING(table)

@cython.locals(table="const unsigned long long*", byte="unsigned char")
cpdef unsigned long long crc64(bytes data, unsigned long long crc=*)
