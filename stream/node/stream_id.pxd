# The C twins of five functions of stream_id.py. They become part of each kernel that cimports them.

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
    bint PyLong_Check(object item)

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030E0000  /* a tuple keeps its hash: -1 is none yet, the 0 of new memory would be one */
    #define FORGET_HASH(made) (((PyTupleObject *)(made))->ob_hash = -1)
    #else
    #define FORGET_HASH(made) ((void)0)
    #endif
    """
    void FORGET_HASH(object made)

# An ID can be part of no circle: the collector need not see it.
cdef inline object id_of(object cls, unsigned long long ms, unsigned long long seq):
    cdef object made = PyType_GenericAlloc(<PyTypeObject *>cls, 2)
    cdef object half = ms
    Py_INCREF(half)
    PyTuple_SET_ITEM(made, 0, half)
    half = seq
    Py_INCREF(half)
    PyTuple_SET_ITEM(made, 1, half)
    FORGET_HASH(made)
    PyObject_GC_UnTrack(<void *>made)
    return made

cdef inline unsigned long long half_of(object sid, Py_ssize_t place) except? 3:
    cdef object half
    if PyTuple_Check(sid) and place < PyTuple_GET_SIZE(sid):  # Cython's own index goes the long way for a subclass
        half = <object>PyTuple_GET_ITEM(sid, place)
    else:
        half = PySequence_GetItem(sid, place)
    if not PyLong_Check(half):
        raise TypeError("the halves of an ID are integers")  # a float would be cut off to one
    return half

# A row is written where it stays: no other has it yet.
cdef inline bytes begin_row(Py_ssize_t count):
    return PyBytes_FromStringAndSize(NULL, 16 * count)

cdef inline int put_id(unsigned char *row, Py_ssize_t at, unsigned long long ms, unsigned long long seq) noexcept:
    cdef int i
    for i in range(8):
        row[at + i] = <unsigned char>(ms >> (56 - 8 * i))
        row[at + 8 + i] = <unsigned char>(seq >> (56 - 8 * i))
    return 0

cdef inline bytes end_row(bytes row):
    return row
