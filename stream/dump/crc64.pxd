# The C types of crc64.py.

cimport cython

@cython.locals(table="unsigned long long[::1]", byte="unsigned char")
cpdef unsigned long long crc64(bytes data, unsigned long long crc=*)
