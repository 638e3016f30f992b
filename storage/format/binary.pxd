# The C twins of binary.py. They become part of each kernel that cimports them.

from libc.string cimport memcpy

cdef extern from "Python.h":
    bytes PyBytes_FromStringAndSize(const char *text, Py_ssize_t size)
    char *PyBytes_AS_STRING(object text)
    Py_ssize_t PyBytes_GET_SIZE(object text)
    bytearray PyByteArray_FromStringAndSize(const char *text, Py_ssize_t size)
    char *PyByteArray_AS_STRING(object text)
    Py_ssize_t PyByteArray_GET_SIZE(object text)
    bint PyByteArray_CheckExact(object text)

cdef inline unsigned char *put_number(unsigned char *at, unsigned long long number, int size) noexcept:
    cdef int i
    for i in range(size):
        at[i] = <unsigned char>(number >> (8 * i))
    return at + size

cdef inline unsigned long long get_number(const unsigned char *at, int size) noexcept:
    cdef unsigned long long number = 0
    cdef int i
    for i in range(size):
        number |= <unsigned long long>at[i] << (8 * i)
    return number

cdef inline unsigned char *place(bytearray record, Py_ssize_t at) noexcept:
    return <unsigned char *>PyByteArray_AS_STRING(record) + at

cdef inline bytearray blank(Py_ssize_t size):
    return PyByteArray_FromStringAndSize(NULL, size)

cdef inline bytes flipped(bytes digest):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(digest), i
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size)
    for i in range(size):
        PyBytes_AS_STRING(made)[i] = PyBytes_AS_STRING(digest)[size - 1 - i]
    return made

cdef inline bytes joined(bytes first, object body):
    cdef bint grows = PyByteArray_CheckExact(body)
    cdef Py_ssize_t head = PyBytes_GET_SIZE(first)
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(body) if grows else PyBytes_GET_SIZE(<bytes?>body)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, head + size)
    memcpy(PyBytes_AS_STRING(made), PyBytes_AS_STRING(first), head)
    memcpy(PyBytes_AS_STRING(made) + head, PyByteArray_AS_STRING(body) if grows else PyBytes_AS_STRING(body), size)
    return made

cdef inline bytes one_number(unsigned long long number):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 8)
    put_number(<unsigned char *>PyBytes_AS_STRING(made), number, 8)
    return made

cdef inline bytes six_numbers(unsigned long long first, unsigned long long second, unsigned long long third,
                              unsigned long long fourth, unsigned long long fifth, unsigned long long sixth):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 48)
    cdef unsigned char *at = <unsigned char *>PyBytes_AS_STRING(made)
    at = put_number(put_number(put_number(at, first, 8), second, 8), third, 8)
    put_number(put_number(put_number(at, fourth, 8), fifth, 8), sixth, 8)
    return made

cdef inline int put_front(bytearray block, Py_ssize_t at, int version, int codec, unsigned long long ordinal,
                          unsigned int span, unsigned int live, unsigned int raw, unsigned int size,
                          unsigned short elements) except -1:
    cdef unsigned char *to = put_number(put_number(place(block, at), version, 1), codec, 1)
    to = put_number(put_number(put_number(to, ordinal, 8), span, 4), live, 4)
    put_number(put_number(put_number(to, raw, 4), size, 4), elements, 2)
    return 0

cdef inline int put_record_head(bytearray record, Py_ssize_t at, unsigned long long checksum, unsigned long long size,
                                unsigned long long lsn, unsigned long long freed,
                                unsigned long long number) noexcept:
    cdef unsigned char *to = put_number(put_number(place(record, at), checksum, 8), size, 4)
    put_number(put_number(put_number(to, lsn, 8), freed, 4), number, 4)
    return 0

cdef inline int put_delete(bytearray record, Py_ssize_t at, int kind, Py_ssize_t key) noexcept:
    put_number(put_number(place(record, at), kind, 1), key, 2)
    return 0

cdef inline int put_put(bytearray record, Py_ssize_t at, int kind, Py_ssize_t key, Py_ssize_t size) noexcept:
    put_number(put_number(put_number(place(record, at), kind, 1), key, 2), size, 4)
    return 0

cdef inline int put_delta(bytearray record, Py_ssize_t at, int kind, Py_ssize_t key, Py_ssize_t kept,
                          Py_ssize_t size) noexcept:
    put_number(put_number(put_number(put_number(place(record, at), kind, 1), key, 2), kept, 4), size, 4)
    return 0

cdef inline int put_checksum(bytearray record, Py_ssize_t at, unsigned long long checksum) noexcept:
    put_number(place(record, at), checksum, 8)
    return 0
