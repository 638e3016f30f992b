# The C types of records.py.

from .binary cimport flipped, joined

cpdef bytes pack(object value)

cpdef bytes seal(bytes key, object row)
