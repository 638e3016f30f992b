# The C twins of inlined.py. They become part of each kernel that cimports them.

from cpython.bytes cimport PyBytes_FromStringAndSize
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

# An ID can be part of no circle: the collector need not see it.
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

cdef inline bytes decimal(long long value):
    cdef char text[20]
    cdef int at = 20
    cdef unsigned long long rest = <unsigned long long>value
    if value < 0:
        rest = 0 - rest
    while True:
        at -= 1
        text[at] = <char>(48 + rest % 10)
        rest //= 10
        if not rest:
            break
    if value < 0:
        at -= 1
        text[at] = 45
    return PyBytes_FromStringAndSize(&text[at], 20 - at)
