# The C types of entry.py.

cimport cython
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject *cls, Py_ssize_t items)
    object PySequence_GetItem(object sid, Py_ssize_t place)
    bint PyTuple_Check(object made)
    Py_ssize_t PyTuple_GET_SIZE(object made)
    PyObject *PyTuple_GET_ITEM(object made, Py_ssize_t place)
    void PyTuple_SET_ITEM(object made, Py_ssize_t place, object item)
    void PyObject_GC_UnTrack(void *made)

# The twins of id_of(), put_id() and half_of() in id.py. To make a tuple of a class of ours takes four objects by
# way of tuple.__new__(), and one this way. It can be part of no circle: the collector need not see it.

cdef inline object id_of(object cls, unsigned long long ms, unsigned long long seq):
    cdef object made = PyType_GenericAlloc(<PyTypeObject *>cls, 2)
    cdef object half = ms
    Py_INCREF(half)
    PyTuple_SET_ITEM(made, 0, half)
    half = seq
    Py_INCREF(half)
    PyTuple_SET_ITEM(made, 1, half)
    PyObject_GC_UnTrack(<void *>made)
    return made

cdef inline unsigned long long half_of(object sid, Py_ssize_t place) except? 3:
    if PyTuple_Check(sid) and place < PyTuple_GET_SIZE(sid):  # Cython's own index goes the long way for a subclass
        return <object>PyTuple_GET_ITEM(sid, place)
    return PySequence_GetItem(sid, place)

cdef inline int put_id(unsigned char *row, Py_ssize_t at, unsigned long long ms, unsigned long long seq) noexcept:
    cdef int i
    for i in range(8):
        row[at + i] = <unsigned char>(ms >> (56 - 8 * i))
        row[at + 8 + i] = <unsigned char>(seq >> (56 - 8 * i))
    return 0

cdef class Entry:
    cdef readonly unsigned long long ms
    cdef readonly unsigned long long seq
    cdef readonly list names
    cdef readonly list values
    cdef public unsigned long long deliveries
    cdef public object idle

@cython.locals(fields=dict, size="Py_ssize_t", i="Py_ssize_t")
cdef dict as_dict(list names, list values)

@cython.locals(text=str)
cdef bytes as_bytes(object value, object name, str role)

cdef list checked(list flat, Py_ssize_t total)

@cython.locals(flat=list, total="Py_ssize_t", raw=bytes)
cdef list flatten_dict(dict fields)

@cython.locals(flat=list, total="Py_ssize_t", raw=bytes)
cpdef list flatten(object fields)

@cython.locals(flats=list, flat=list, keys=list, names=list)
cpdef list flatten_all(object entries)

@cython.locals(flat=list, total="Py_ssize_t", raw=bytes, i="Py_ssize_t")
cdef list flatten_like(dict fields, list keys, list names)
