# The C types of ring.py.

cimport cython
from libc.string cimport memcmp, memcpy
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from ..format.binary cimport blank, get_number, put_checksum, put_delete, put_delta, put_put, put_record_head
from .transaction cimport Version

cdef extern from "Python.h":
    bytes PyBytes_FromStringAndSize(const char *text, Py_ssize_t size)
    char *PyBytes_AS_STRING(object text)
    Py_ssize_t PyBytes_GET_SIZE(object text)
    char *PyByteArray_AS_STRING(object text)

cdef class Ring:
    cdef public object path
    cdef public tuple owner
    cdef public unsigned long long size
    cdef public unsigned long long epoch
    cdef public object locks
    cdef public object shared
    cdef public unsigned long long[::1] words
    cdef public list files
    cdef public object file
    cdef public object synced
    cdef public object map
    cdef object __weakref__

    @cython.locals(record=bytes)
    cpdef bytes record_at(self, unsigned long long place, unsigned long long lsn, object chain)
    cpdef bytes record_after(self, unsigned long long lsn, object chain)
    cpdef unsigned long long lsn_at(self, unsigned long long place) except? 0
    cpdef unsigned long long first_epoch(self, unsigned long long lsn, unsigned long long written) except? 1

cdef inline Py_ssize_t put_part(bytearray record, Py_ssize_t at, bytes whole, Py_ssize_t start,
                                Py_ssize_t stop) noexcept:
    memcpy(PyByteArray_AS_STRING(record) + at, PyBytes_AS_STRING(whole) + start, stop - start)
    return at + stop - start

cdef inline bytes part_of(bytearray record, Py_ssize_t start, Py_ssize_t stop):
    return PyBytes_FromStringAndSize(PyByteArray_AS_STRING(record) + start, stop - start)

# 28 bytes are HEAD, 48 DELTA_HEAD. The buffer is given back before anything else can run, so close() is never kept from it.
cdef inline bytes record_in(object ring, Py_ssize_t at, Py_ssize_t room, unsigned long long lsn):
    cdef Py_buffer shown
    cdef const unsigned char *head
    cdef Py_ssize_t length
    cdef bytes made = None
    if room < 28:
        return None
    PyObject_GetBuffer(ring, &shown, PyBUF_SIMPLE)
    head = <const unsigned char *>shown.buf + at
    length = get_number(head + 8, 4)
    if get_number(head + 12, 8) == lsn and 0 < length <= room - 28:
        made = PyBytes_FromStringAndSize(<const char *>head, 28 + length)
    PyBuffer_Release(&shown)
    return made

cdef inline bytes cut(bytes whole, Py_ssize_t start, Py_ssize_t stop):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(whole)
    stop = min(stop, size)
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(whole) + min(start, size), max(0, stop - start))

cdef inline bytes grown(bytes base, Py_ssize_t front, bytes record, Py_ssize_t at, Py_ssize_t middle):
    cdef Py_ssize_t there = PyBytes_GET_SIZE(record) - at
    cdef Py_ssize_t head = max(0, min(48, there))
    cdef bytes made
    front = max(0, min(front, PyBytes_GET_SIZE(base) - 48))
    middle = max(0, min(middle, there - 48))
    made = PyBytes_FromStringAndSize(NULL, head + front + middle)
    memcpy(PyBytes_AS_STRING(made), PyBytes_AS_STRING(record) + at, head)
    memcpy(PyBytes_AS_STRING(made) + head, PyBytes_AS_STRING(base) + 48, front)
    memcpy(PyBytes_AS_STRING(made) + head + front, PyBytes_AS_STRING(record) + at + 48, middle)
    return made

cdef inline unsigned long long read_u64(bytes body, Py_ssize_t at) noexcept:
    return get_number(<const unsigned char *>PyBytes_AS_STRING(body) + at, 8)

cdef inline bint is_same(const unsigned char *left, const unsigned char *right, Py_ssize_t at, Py_ssize_t size) noexcept:
    return memcmp(left + at, right + at, size) == 0

@cython.locals(size="Py_ssize_t", front="Py_ssize_t", klen="Py_ssize_t")
cpdef Py_ssize_t put_change(bytearray record, Py_ssize_t at, bytes key, bytes value, bytes base) except -1
cpdef Py_ssize_t room_for(bytes key, bytes value) except -1
@cython.locals(size="Py_ssize_t", key=bytes, before=Version, version=Version)
cpdef bytearray encode_record(dict touched, dict rows, Py_ssize_t most)
cpdef object seal_record(bytearray record, unsigned long long lsn, unsigned long long freed, unsigned long long number,
                         object chain)

@cython.locals(limit="Py_ssize_t", at="Py_ssize_t", left="const unsigned char*", right="const unsigned char*")
cdef Py_ssize_t common_front(bytes value, bytes base) except -1

@cython.locals(raw="const unsigned char*", kind="int", size="Py_ssize_t", klen="Py_ssize_t", vlen="Py_ssize_t",
               front="Py_ssize_t", middle="Py_ssize_t", key=bytes, value=bytes, base=bytes, found=list)
cpdef list decode(bytes record, Py_ssize_t at, object base_of)

@cython.locals(left="const unsigned char*", high="Py_ssize_t")
cdef Py_ssize_t read_u32(bytes body, Py_ssize_t at) except -1
