# The C types of deliver.py.

cimport cython
from ...storage.log.transaction cimport WriteTransaction
from ..entries.writer cimport StreamWriter, locate
from ..node.decode cimport Walk
from ..node.decode cimport read_on as walk_on
from ..node.entry cimport Entry, delivered
from ..node.packed_ids cimport pack_ids
from ..pel.pending_list cimport PendingList
from .state cimport ConsumerState, GroupState, locate_group, require_group

@cython.locals(stream=StreamWriter, group=GroupState, consumer=ConsumerState, changes="long long", entries=list,
               found=list)
cpdef tuple _attempt(object wanted, object targets, WriteTransaction txn)

@cython.locals(entries=list, ids=bytes, last=Entry, pel=PendingList)
cpdef list read_new(WriteTransaction txn, StreamWriter stream, GroupState group, ConsumerState consumer, object count,
                    object noack, object now, object takes=*)

@cython.locals(walk=Walk, ended=Entry, found=list)
cdef list _behind(WriteTransaction txn, StreamWriter stream, GroupState group, object last, object count)

@cython.locals(found=list, passed=list, some=list, entry=Entry)
cpdef tuple _read_by_key(WriteTransaction txn, StreamWriter stream, GroupState group, object turns, object count,
                         object takes)

@cython.locals(writer=StreamWriter, group=GroupState)
cpdef object ack_named(object stream, object name, bytes ids, WriteTransaction txn)

cpdef object ack(WriteTransaction txn, GroupState group, bytes ids)

@cython.locals(gone="long long", count="long long")
cdef object _count_gone(WriteTransaction txn, GroupState group, dict owners)

cpdef object advance(GroupState group, object header, object count, object last, object ids)

cpdef bint tombstones(object header, object start) except -1
