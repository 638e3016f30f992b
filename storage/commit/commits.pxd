# The C types of commits.py.

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from ..folder.store_files cimport StoreFiles
from ..format.binary cimport one_number
from ..locks.writer_lock cimport WriterLock
from ..log.log cimport Log
from ..log.transaction cimport WriteTransaction, mark_of
from ..system_calls cimport write_at

cdef class Call:
    cdef public object operation
    cdef public object result
    cdef public object error
    cdef public bint done
    cdef public bint gone
    cdef public object thread
    cdef public object waiter
    cdef public double deadline
    cdef public Call then
    cdef public double woken
    cdef public list group

cdef inline Call call_of(object operation):
    cdef Call made = Call.__new__(Call)
    made.operation = operation
    made.thread = PyThread_get_thread_ident()
    return made

cdef class Commits:
    cdef readonly object env
    cdef readonly StoreFiles files
    cdef readonly object map
    cdef readonly object leading
    cdef readonly object writing
    cdef readonly object mutex
    cdef readonly object queue
    cdef readonly Call leader
    cdef readonly list batch
    cdef readonly Py_ssize_t last_batch
    cdef readonly double last_commit
    cdef readonly Py_ssize_t crowded
    cdef readonly Py_ssize_t wanted
    cdef readonly object gathered
    cdef readonly bint locked
    cdef public tuple suspect
    cdef public object on_waiter
    cdef readonly dict leads
    cdef readonly set apart
    cdef public object open_write
    cdef public tuple committing
    cdef public dict warm
    cdef public long long warm_id
    cdef readonly long long epoch

    cpdef bint in_own_transaction(self) except -1
    cpdef object forget_warm(self)
    cpdef object refuse_inside_transaction(self)
    @cython.locals(log=Log)
    cpdef bint is_at_checkpoint(self) except -1
    cpdef bint is_apart(self) except -1
    cpdef bint is_awaited(self) except -1

    @cython.locals(is_enough=bint)
    cdef bint _queue_up(self, Call call) except -1
    @cython.locals(log=Log, leads=dict)
    cdef bint _takes_over(self, Call call, object timeout) except -1
    @cython.locals(now=double, nap=double, leader=Call, is_own=bint)
    cdef bint _wait(self, Call call, object timeout) except -1
    @cython.locals(call=Call, batch=list, lock=WriterLock)
    cpdef object hand_on(self, Call own, bint calm)
    @cython.locals(call=Call, then=Call)
    cdef object _wake_done(self, Call own, bint calm)
    @cython.locals(then=Call)
    cpdef object _pass_on(self, Call call)
    @cython.locals(leads=bint)
    cdef object _share(self, Call call, object timeout)
    @cython.locals(wanted="Py_ssize_t", batch=list, begun=double)
    cdef object _commit_batch(self, Call own)
    cdef object _gather(self, Py_ssize_t wanted)
    @cython.locals(call=Call, alone=bint)
    cdef object _apply_all(self, list batch)
    cdef object _end(self, Call call, object error, object outside)
    cdef object reported(self, object error)
    @cython.locals(count="Py_ssize_t", refused=list, txn=WriteTransaction)
    cdef object _attempt(self, list calls)
    @cython.locals(txn=WriteTransaction, log=Log)
    cpdef WriteTransaction begin(self)
    cdef bint _is_in_force(self, object txn) except -1
    @cython.locals(call=Call)
    cdef object run(self, WriteTransaction txn, list calls, list refused)
    @cython.locals(before="long long")
    cdef bint is_spoiled(self, WriteTransaction txn, Call call) except -1
    @cython.locals(call=Call, log=Log)
    cdef object commit(self, WriteTransaction txn, list calls)
    cdef object abort(self, WriteTransaction txn)
    cpdef object wake_readers(self, object transaction_id)

cdef object wake(Call call)
