# The C twins of system_calls.py. They become part of each kernel that cimports them.
#
# The interpreter's lock is given up where a call writes, which may wait for the disk. The others answer at once.

from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EINTR, errno
from libc.string cimport memcpy

cdef extern from "Python.h":
    char *PyBytes_AS_STRING(object text)
    Py_ssize_t PyBytes_GET_SIZE(object text)

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pwrite(int descriptor, const void *data, size_t size, long long place)
    long long lseek(int descriptor, long long place, int whence)

cdef extern from "<fcntl.h>" nogil:
    struct flock:
        short l_type
        short l_whence
        long long l_start
        long long l_len
        int l_pid
    const short F_WRLCK
    const short F_UNLCK
    const int F_OFD_SETLK
    const int F_OFD_GETLK
    int fcntl(int descriptor, int what, ...)

cdef extern from "<unistd.h>" nogil:
    long syscall(long number, ...)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long long tv_sec
        long tv_nsec

cdef extern from "<poll.h>" nogil:
    short POLLIN
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *asked, unsigned long count, int timeout)

# After a signal whose handler does not raise each goes on, as Python's own do.
cdef inline Py_ssize_t write_at(int descriptor, bytes data, long long place) except -1:
    cdef const char *text = PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), count
    while True:
        with nogil:
            count = pwrite(descriptor, text, size, place)
        if count >= 0:
            return count
        if errno != EINTR:
            PyErr_SetFromErrno(OSError)
        PyErr_CheckSignals()

cdef inline long long seek(int descriptor, long long place, int whence) except -1:
    cdef long long end = lseek(descriptor, place, whence)
    if end < 0:
        PyErr_SetFromErrno(OSError)
    return end

cdef inline int ask_lock(int descriptor, int what, flock *asked) except -1:
    while fcntl(descriptor, what, asked) < 0:
        if errno != EINTR:
            PyErr_SetFromErrno(OSError)
        PyErr_CheckSignals()
    return 0

cdef inline int set_lock(int descriptor, int what, bytes prepared) except -1:
    cdef flock asked
    memcpy(&asked, PyBytes_AS_STRING(prepared), sizeof(flock))
    return ask_lock(descriptor, what, &asked)

# What it answers is not looked at: a sleep ends by a wake-up, by the time, or because the word is another by now.
cdef inline int futex(long call, unsigned long long address, int what, unsigned int number, double seconds) except -1:
    cdef timespec time
    time.tv_sec = <long long>seconds
    time.tv_nsec = <long>((seconds - time.tv_sec) * 1e9)
    with nogil:
        syscall(call, <void *>address, what, number, &time, NULL, 0)
    return PyErr_CheckSignals()
