# The C twins of functions of ofd_lock.py, for a descriptor. They become part of each kernel that cimports them.

from ..system_calls cimport ask_first, set_bytes

cdef inline object find(int descriptor, long long start, long long length):
    return ask_first(descriptor, start, length)

cdef inline int take(int descriptor, long long start, long long length) except -1:
    return set_bytes(descriptor, start, length)
