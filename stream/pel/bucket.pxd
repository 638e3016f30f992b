# The C types of bucket.py, and five of its functions in C; a record with its checksum, for these and other modules.

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.string cimport memcmp, memcpy

cdef object checksum

cdef inline bytes sealed(bytes body, object seed):
    cdef bytes digest = checksum(body, seed)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, size + 8)
    cdef char *to = PyBytes_AS_STRING(made)
    cdef int at
    for at in range(8):
        to[at] = PyBytes_AS_STRING(digest)[7 - at]
    memcpy(to + 8, PyBytes_AS_STRING(body), size)
    return made

cdef inline bytes cut_out(bytes row, Py_ssize_t begin, Py_ssize_t end):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(row)
    if not 0 <= begin <= end <= size:
        raise IndexError("these places are not in the row")
    cdef bytes rest = PyBytes_FromStringAndSize(NULL, size - (end - begin))
    memcpy(PyBytes_AS_STRING(rest), PyBytes_AS_STRING(row), begin)
    memcpy(PyBytes_AS_STRING(rest) + begin, PyBytes_AS_STRING(row) + end, size - end)
    return rest

cdef inline object least_of(list times):
    cdef object least = times[0]
    cdef unsigned long long value = least, other
    for time in times:
        other = time
        if other < value:
            value, least = other, time
    return least

cdef inline Py_ssize_t place_of(bytes ids, bytes packed) noexcept:
    cdef const char *here = PyBytes_AS_STRING(ids)
    cdef const char *wanted = PyBytes_AS_STRING(packed)
    cdef Py_ssize_t low = 0, high = PyBytes_GET_SIZE(ids) // 16, many = PyBytes_GET_SIZE(packed) // 16, at
    cdef Py_ssize_t last = high - many
    while low < high:
        at = (low + high) // 2
        if memcmp(here + 16 * at, wanted, 16) < 0:
            low = at + 1
        else:
            high = at
    return low if low <= last and memcmp(here + 16 * low, wanted, 16 * many) == 0 else -1

cdef inline bint is_behind(bytes packed, bytes ids) noexcept:
    return memcmp(PyBytes_AS_STRING(packed), PyBytes_AS_STRING(ids) + PyBytes_GET_SIZE(ids) - 16, 16) > 0

# What follows writes msgpack as its own packer would.

cdef inline unsigned char *put_high_first(unsigned char *to, unsigned long long number, int size) noexcept:
    cdef int at
    for at in range(size):
        to[at] = <unsigned char>(number >> 8 * (size - 1 - at))
    return to + size

cdef inline unsigned char *put_number(unsigned char *to, unsigned long long number) noexcept:
    if number < 0x80:
        to[0] = <unsigned char>number
        return to + 1
    if number < 0x100:
        to[0] = 0xCC
        return put_high_first(to + 1, number, 1)
    if number < 0x10000:
        to[0] = 0xCD
        return put_high_first(to + 1, number, 2)
    if number < 0x100000000ULL:
        to[0] = 0xCE
        return put_high_first(to + 1, number, 4)
    to[0] = 0xCF
    return put_high_first(to + 1, number, 8)

cdef inline unsigned char *put_column(unsigned char *to, object values, unsigned long long base) except NULL:
    cdef Py_ssize_t size
    if not isinstance(values, list):
        return put_number(to, <unsigned long long>values - base)
    size = len(<list>values)
    if size < 16:
        to[0] = <unsigned char>(0x90 | size)
        to += 1
    elif size < 0x10000:
        to[0] = 0xDC
        to = put_high_first(to + 1, size, 2)
    else:
        to[0] = 0xDD
        to = put_high_first(to + 1, size, 4)
    for value in <list>values:
        to = put_number(to, <unsigned long long>value - base)
    return to

cdef inline Py_ssize_t room_for(object values) noexcept:
    return 5 + 9 * len(<list>values) if isinstance(values, list) else 9

cdef inline bytes record_of(object seed, bytes together, object consumers, unsigned long long base, object times,
                            object counts, object numbers, bint has_keys):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(together)
    cdef Py_ssize_t room = 17 + size + room_for(consumers) + room_for(times) + room_for(counts) + room_for(numbers)
    cdef unsigned char *begin = <unsigned char *>PyMem_Malloc(room)
    cdef unsigned char *to = begin
    if begin is NULL:
        raise MemoryError
    try:
        to[0] = 1  # the format
        to[1] = 0x97 if has_keys else 0x96
        to[2] = 0xC4 if size < 0x100 else 0xC5 if size < 0x10000 else 0xC6
        to = put_high_first(to + 3, size, 1 if size < 0x100 else 2 if size < 0x10000 else 4)
        memcpy(to, PyBytes_AS_STRING(together), size)
        to = put_column(to + size, consumers, 0)
        to = put_number(to, base)
        to = put_column(to, times, base)
        to = put_column(to, counts, 0)
        to = put_column(to, numbers, 0)
        if has_keys:
            to[0] = 17
            to += 1
        return sealed(PyBytes_FromStringAndSize(<char *>begin, to - begin), seed)
    finally:
        PyMem_Free(begin)

@cython.final
cdef class Bucket:
    cdef readonly bytes at
    cdef readonly bytes ids
    cdef readonly object consumers
    cdef readonly object times
    cdef readonly object counts
    cdef readonly object numbers
    cdef readonly bytes keys
    cdef readonly bytes value
    cdef object seed
    cdef tuple _row
    cdef object _least
    cdef bytes _joined

    @cython.locals(bucket=Bucket)
    cdef Bucket _like(self, bytes ids, object consumers, object times, object counts, object numbers, bytes keys)
    @cython.locals(value=bytes, together=bytes)
    cpdef bytes encode(self)
    cpdef tuple owner_row(self, bytes family)
    cpdef Py_ssize_t position(self, bytes packed) except? -2
    cpdef object owners(self)
    cpdef object oldest(self)
    cpdef object _least_time(self)
    @cython.locals(bucket=Bucket, old="Py_ssize_t", new="Py_ssize_t")
    cpdef Bucket extended(self, bytes ids, object consumer, object time, object count, bytes keys)
    cpdef Bucket not_after(self, object now)
    @cython.locals(bucket=Bucket, keys=bytes)
    cpdef Bucket without_span(self, Py_ssize_t low, Py_ssize_t high)

cpdef object column(list values)
cdef object longer(object values, Py_ssize_t old, object value, Py_ssize_t new)
cdef object without_some(object values, Py_ssize_t low, Py_ssize_t high)
