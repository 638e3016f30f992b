/* Memory that runs out: the N-th allocation of a process fails, once. For libraries such as LMDB, and what Python takes
   from the C library; its small objects come from an allocator of its own, which _testcapi.set_nomemory() lets fail.

     recorder_fail_allocation(5) ── malloc 1 ─ malloc 2 ─ calloc 3 ─ malloc 4 ─ realloc 5: ENOMEM ─ malloc 6 …    */

#include <errno.h>
#include <stddef.h>

extern void *__libc_malloc(size_t); /* glibc's own names: dlsym() would allocate itself */
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

static volatile long until; /* allocations up to the one that fails; 0: none does */

/* From now on the n-th fails; 0: none. Returns how many were left before it. */
long recorder_fail_allocation(long n)
{
    long left = until;
    until = n;
    return left;
}

static int fails(void)
{
    if (!until || __atomic_sub_fetch(&until, 1, __ATOMIC_SEQ_CST) != 0) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t bytes) { return fails() ? NULL : __libc_malloc(bytes); }
void *calloc(size_t many, size_t bytes) { return fails() ? NULL : __libc_calloc(many, bytes); }
void *realloc(void *old, size_t bytes) { return bytes && fails() ? NULL : __libc_realloc(old, bytes); }
