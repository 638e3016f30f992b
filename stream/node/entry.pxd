# The C types of entry.py.

cimport cython
from cpython.dict cimport PyDict_SetItem
from .stream_id cimport begin_row, end_row, id_of, put_id

@cython.freelist(64)
cdef class Entry:
    cdef readonly unsigned long long ms
    cdef readonly unsigned long long seq
    cdef readonly list names
    cdef readonly list values
    cdef public unsigned long long deliveries
    cdef public object idle
    cdef public object _encoding
    cdef public object _model

@cython.final
cdef class Fields(dict):
    pass

cdef inline bint has_own(list names):
    cdef object first
    if not names:
        return False
    first = names[0]
    return first == b"$entry" if type(first) is bytes else first == "$entry"

cdef inline Fields as_dict(list names, list values):
    cdef Fields fields = Fields.__new__(Fields)
    cdef Py_ssize_t i
    for i in range(len(names)):
        PyDict_SetItem(fields, names[i], values[i])  # which needs no look-up of the class's own
    return fields

@cython.locals(text=str)
cpdef bytes as_bytes(object value, object name, str role)

@cython.locals(total="Py_ssize_t", raw=bytes, first=bytes)
cpdef list checked(list flat)

@cython.locals(flat=list)
cdef list flatten_dict(dict fields)

@cython.locals(flat=list)
cpdef list flatten(object fields)

@cython.locals(stop="Py_ssize_t", flat=list, keys=list, names=list)
cpdef bint flatten_all(object entries, list flats, Py_ssize_t limit) except -1

@cython.locals(flat=list, i="Py_ssize_t")
cdef list flatten_like(dict fields, list keys, list names)

@cython.locals(entry=Entry)
cpdef Entry copied(Entry given)

@cython.locals(raw=list, names=list, plain=bint, entry=Entry, values=list, i="Py_ssize_t", part=bytes)
cpdef list into_texts(list entries, str encoding, str errors, object model)

@cython.locals(given=list, row=bytes, at="Py_ssize_t", entry=Entry)
cpdef bytes delivered(object entries)
