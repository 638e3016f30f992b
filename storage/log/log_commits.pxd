# The C types of log_commits.py.

cimport cython
from raxlog.storage.commit.commits cimport Call, Commits
from raxlog.storage.commit.write_transaction cimport WriteTransaction
from .log cimport Log
from .overlay cimport Overlay, Version, View
from .room cimport Room

cdef class LogTransaction(WriteTransaction):
    cdef public View view
    cdef public Log log
    cdef public Overlay overlay
    cdef public dict touched

    cpdef bint put(self, bytes key, bytes value, bint overwrite=*) except -1
    cpdef bint delete(self, bytes key) except -1
    cpdef object pages(self)

cdef class LogCommits(Commits):
    cdef public object log
    cdef public object transaction

    cpdef object drop(self, LogTransaction txn)
    @cython.locals(mine=LogTransaction, log=Log, call=Call, room=Room, freed="long long")
    cdef object commit(self, WriteTransaction txn, list calls)
    cdef object abort(self, WriteTransaction txn)
    cpdef object pay_flush(self)
    cdef bint age_free_pages(self) except -1
