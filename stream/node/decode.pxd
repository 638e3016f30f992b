# The C types of decode.py.

cimport cython
from .element cimport after, integer_element
from .listpack cimport frame
from .cursor cimport Walk, backward, check_counts, damaged, forward, open_node, skip, take

cdef int DELETED
cdef Py_ssize_t HEADER

@cython.locals(walk=Walk, found=list, live="long long", below=bint, above=bint)
cpdef list decode(bytes listpack, unsigned long long ms, unsigned long long seq,
                  unsigned long long lo_ms, unsigned long long lo_seq,
                  unsigned long long hi_ms, unsigned long long hi_seq,
                  Py_ssize_t limit=*, bint reverse=*)

@cython.locals(walk=Walk)
cpdef tuple counts(bytes listpack)

@cython.locals(walk=Walk, live="long long")
cpdef long long live_before(bytes listpack, unsigned long long ms, unsigned long long seq,
                            unsigned long long id_ms, unsigned long long id_seq) except -1

@cython.locals(walk=Walk, found=list, below=bint)
cpdef list live_ids(bytes listpack, unsigned long long ms, unsigned long long seq,
                    unsigned long long lo_ms, unsigned long long lo_seq,
                    unsigned long long hi_ms, unsigned long long hi_seq)

@cython.locals(walk=Walk, live="long long")
cpdef tuple nth_live(bytes listpack, unsigned long long ms, unsigned long long seq, long long k)

@cython.locals(walk=Walk)
cpdef tuple first_live(bytes listpack, unsigned long long ms, unsigned long long seq)

@cython.locals(walk=Walk)
cpdef tuple last_live(bytes listpack, unsigned long long ms, unsigned long long seq)

@cython.locals(walk=Walk)
cpdef tuple last_entry_id(bytes listpack, unsigned long long ms, unsigned long long seq)

@cython.locals(walk=Walk, parts=list, done=list, copied="Py_ssize_t",
               i="Py_ssize_t", live="long long")
cpdef tuple mark_deleted(bytes listpack, unsigned long long ms, unsigned long long seq, list ids)

@cython.locals(walk=Walk, parts=list, elements="Py_ssize_t", live="long long",
               start="Py_ssize_t")
cpdef bytes compact(bytes listpack, unsigned long long ms, unsigned long long seq)

@cython.locals(walk=Walk, back=Walk, live="long long", starts=list)
cpdef tuple validate_node(bytes listpack, unsigned long long ms, unsigned long long seq)
