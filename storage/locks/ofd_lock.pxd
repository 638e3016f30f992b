# The C twins of two functions of ofd_lock.py, for a descriptor. They become part of each kernel that cimports them.

from libc.string cimport memset
from ..system_calls cimport F_OFD_GETLK, F_OFD_SETLK, F_UNLCK, F_WRLCK, ask_lock, flock

cdef inline flock bytes_of(long long start, long long length) noexcept:
    cdef flock asked
    memset(&asked, 0, sizeof(flock))
    asked.l_type = F_WRLCK
    asked.l_start = start
    asked.l_len = length
    return asked

cdef inline int take(int descriptor, long long start, long long length) except -1:
    cdef flock asked = bytes_of(start, length)
    return ask_lock(descriptor, F_OFD_SETLK, &asked)

cdef inline object find(int descriptor, long long start, long long length):
    cdef flock asked = bytes_of(start, length)
    ask_lock(descriptor, F_OFD_GETLK, &asked)
    return None if asked.l_type == F_UNLCK else (asked.l_start, asked.l_start + asked.l_len - 1)
