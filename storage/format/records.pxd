# The C types of records.py.

cpdef bytes pack(object value)

cpdef bytes seal(bytes key, object row)
