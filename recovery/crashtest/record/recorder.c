/* The recorder: a library loaded before all others, which sees every call that changes one folder.

     workload ── write(fd, …) ──► recorder ──┬─ is fd a file of the folder?  no: libc, and that is all
                                             ├─ the N-th such call?          kill, fail, or do half of it
                                             ├─ libc does it
                                             └─ one record to the log, under one lock for all processes

   Compiled on first use (recorder.py) and preloaded; it sleeps until recorder_begin() is called in
   a forked child, and then watches that process and whatever it forks or executes.

   A record has what was done (KIND below), to which inode, where, and with which bytes. The order
   of the records is the order in which the calls were done: the lock is held from before a call
   until its record is written. A flush is two records, its begin and its end, and the lock is free
   in between: it promises nothing about writes of others in that time.

   Not seen: stores through a memory map (a record notes that a file was mapped for writing), stdio's
   FILE (fopen for writing is recorded), io_uring, and programs without a dynamic libc.            */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "turns.h"

/* The kinds of records; recorder.py has the same list. */
enum { CREATE = 1, WRITE, TRUNCATE, RENAME, UNLINK, MKDIR, RMDIR, LINK, SYMLINK,
       SYNC_BEGIN, SYNC_END, SYNC_ALL_BEGIN, SYNC_ALL_END, ACK, MAPPED, UNSEEN };

/* Classes of calls, as bits: which of them count towards the N-th. */
enum { C_CREATE = 1, C_WRITE = 2, C_SIZE = 4, C_RENAME = 8, C_UNLINK = 16, C_NAME = 32, C_SYNC = 64 };

/* What happens at the N-th call. */
enum { A_NONE, A_KILL, A_KILL_HALF, A_FAIL, A_SHORT, A_FAIL_AFTER };

struct control {               /* shared by all processes; the first 64 bytes are read and set by Python */
    uint64_t calls;            /* counted so far */
    uint64_t target;           /* the call at which the action falls; 0: never */
    uint64_t fired;            /* how often it did */
    uint32_t action;
    uint32_t sticky;           /* the action falls on every later call too */
    int32_t error;
    uint32_t classes;
    uint64_t sequence;         /* records written */
    uint64_t fired_class;
    uint64_t reserved;
    pthread_mutex_t lock;
};

struct record {
    uint32_t kind, pid;
    uint64_t sequence, inode, at, extra;
    uint32_t path_bytes, data_bytes;
};

struct watched { uint64_t inode; uint8_t on, sync; char name[40]; };

#define MOST_FILES 65536
static struct watched files[MOST_FILES];
static struct control *control;
static char folder[PATH_MAX];
static size_t folder_length;
static int log_file = -1, ack_file = -1;
static volatile int active;
static pid_t owner;
static __thread const char *seen; /* the name of the file that watching() or inside() has found last */

#define REAL(name, type) ({ static __typeof__(type) *real_##name; \
    if (!real_##name) { real_##name = (__typeof__(type) *)dlsym(RTLD_NEXT, #name); } real_##name; })

/* A call and its twin for offsets of 64 bits. */
#define BOTH(define, name) define(name) define(name##64)

static int here(void) { return active && getpid() == owner; } /* not in a child of vfork, which shares our memory */
static int watching(int fd)
{
    if (!active || fd < 0 || fd >= MOST_FILES || !files[fd].on || !here()) return 0;
    seen = files[fd].name;
    return 1;
}

static void lock(void)
{
    int taken = REAL(pthread_mutex_lock, int(pthread_mutex_t *))(&control->lock);
    if (taken == EOWNERDEAD) pthread_mutex_consistent(&control->lock);
}

static void unlock(void) { REAL(pthread_mutex_unlock, int(pthread_mutex_t *))(&control->lock); }

/* Write one record; the lock is held. Returns its number. */
static uint64_t log_record(uint32_t kind, uint64_t inode, uint64_t at, uint64_t extra, const char *path,
                    const void *data, size_t bytes)
{
    int saved = errno;
    struct record record = { kind, (uint32_t)owner, ++control->sequence, inode, at, extra,
                             path ? (uint32_t)strlen(path) : 0, (uint32_t)bytes };
    if (log_file >= 0) {
        struct iovec parts[3] = { { &record, sizeof record }, { (void *)(path ? path : ""), record.path_bytes },
                                  { (void *)(data ? data : ""), bytes } };
        ssize_t all = (ssize_t)(sizeof record + record.path_bytes + bytes);
        if (syscall(SYS_writev, log_file, parts, 3) != all) { /* the disk of the log is full */
            static const char text[] = "raxlog crashtest: the recorder cannot write its log\n";
            syscall(SYS_write, 2, text, sizeof text - 1);
            abort();
        }
    }
    errno = saved;
    return record.sequence;
}

/* The same for what needs no lock while it is done. */
static uint64_t log_alone(uint32_t kind, uint64_t inode, uint64_t at, uint64_t extra, const char *path,
                          const void *data, size_t bytes)
{
    lock();
    uint64_t sequence = log_record(kind, inode, at, extra, path, data, bytes);
    unlock();
    return sequence;
}

/* Count a call and return what is to be done to it; the lock is held. */
static int turn(uint32_t class)
{
    if (!(control->classes & class)) return A_NONE;
    uint64_t number = ++control->calls;
    if (!control->target || number < control->target || (number > control->target && !control->sticky))
        return A_NONE;
    if (!control->fired++) control->fired_class = class;
    if (control->action == A_KILL || (control->action == A_KILL_HALF && class != C_WRITE)) {
        kill(0, SIGKILL);
        for (;;) pause();
    }
    return (int)control->action;
}

/* Where turn() is all there is to it: fail, or go on. */
#define FAILS(class) ({ int what_ = turn(class); int fails_ = what_ == A_FAIL || what_ == A_SHORT; \
    if (fails_) { unlock(); errno = control->error; } late = what_ == A_FAIL_AFTER; fails_; })
#define LATE(result) do { if (late && (result) >= 0) { errno = control->error; return -1; } } while (0)

/* A call that changes the folder if it is "watched": its turn, the call, and its record where it succeeds. */
#define CHANGE(watched, class, call, record) do { \
    if (!(watched)) return call; \
    turns_before(class, seen, 0); \
    int late; lock(); \
    if (FAILS(class)) return -1; \
    int result = call; \
    if (!result) record; \
    unlock(); turns_gave_up(T_WRITES); LATE(result); return result; } while (0)

/* -- paths ------------------------------------------------------------------------------------ */

static int inside(const char *path)
{
    if (strncmp(path, folder, folder_length) || (path[folder_length] != '/' && path[folder_length])) return 0;
    seen = path[folder_length] ? path + folder_length + 1 : "";
    return 1;
}

/* The path of an open file; 0 where there is none. */
static int path_of(int fd, char *out)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    if (n > 0) out[n] = 0;
    return n > 0;
}

/* The path with every link in its folders followed, not the last name. 0 where there is none. */
static int canonical(int at, const char *path, char *out)
{
    char whole[PATH_MAX * 2 + 2], parent[PATH_MAX];
    int saved = errno;
    if (path[0] == '/' || at == AT_FDCWD) {
        if (strlen(path) >= PATH_MAX) return 0;
        strcpy(whole, path);
    } else {
        if (!path_of(at, whole) || strlen(path) >= PATH_MAX) { errno = saved; return 0; }
        strcat(strcat(whole, "/"), path);
    }
    size_t end = strlen(whole);
    while (end > 1 && whole[end - 1] == '/') whole[--end] = 0;
    char *slash = strrchr(whole, '/');
    const char *name = slash ? slash + 1 : whole, *above = ".";
    if (slash) { *slash = 0; above = slash == whole ? "/" : whole; }
    int found = realpath(above, parent) != NULL;
    errno = saved;
    if (!found) return 0;
    return snprintf(out, PATH_MAX, "%s/%s", strcmp(parent, "/") ? parent : "", name) < PATH_MAX;
}

/* Whether a path that is changed is in the folder; then ``full`` is all of it. */
static int ours(int at, const char *path, char *full) { return here() && canonical(at, path, full) && inside(full); }

static uint64_t inode_of(const char *path)
{
    struct stat about;
    int saved = errno;
    uint64_t inode = lstat(path, &about) ? 0 : about.st_ino;
    errno = saved;
    return inode;
}

/* -- opening and closing ---------------------------------------------------------------------- */

typedef int openat_type(int, const char *, int, ...);

static int watch(int fd, int flags)
{
    char path[PATH_MAX];
    struct stat about;
    int saved = errno;
    files[fd].on = path_of(fd, path) && inside(path) && !fstat(fd, &about)
                   && (S_ISREG(about.st_mode) || S_ISDIR(about.st_mode));
    if (files[fd].on) {
        files[fd].inode = about.st_ino;
        files[fd].sync = (flags & O_ACCMODE) != O_RDONLY && (flags & O_DSYNC) != 0; /* O_SYNC has this bit too */
        strncpy(files[fd].name, seen, sizeof files[fd].name - 1);
    }
    errno = saved;
    return files[fd].on;
}

static int do_open(int at, const char *path, int flags, mode_t mode)
{
    openat_type *real = REAL(openat64, openat_type);
    if (!here()) return real(at, path, flags, mode);
    if (!(flags & (O_CREAT | O_TRUNC))) {
        char read_of[PATH_MAX];
        if (turns_on() && ours(at, path, read_of)) turns_before(T_OPEN, seen, 0);
        int fd = real(at, path, flags, mode);
        if (fd >= 0 && fd < MOST_FILES) watch(fd, flags);
        return fd;
    }
    char full[PATH_MAX];
    if (!ours(at, path, full)) return real(at, path, flags, mode);
    turns_before(C_CREATE, seen, 0);
    lock();
    struct stat before;
    int saved = errno, existed = !stat(full, &before), late = 0;
    errno = saved;
    int counts = !existed || (flags & O_TRUNC && before.st_size > 0);
    if (counts && FAILS(existed ? C_SIZE : C_CREATE)) return -1;
    int fd = real(at, path, flags, mode);
    if (fd >= 0 && fd < MOST_FILES && watch(fd, flags)) {
        if (!existed) log_record(CREATE, files[fd].inode, 0, 0, full, NULL, 0);
        else if (flags & O_TRUNC && before.st_size > 0) log_record(TRUNCATE, files[fd].inode, 0, 0, NULL, NULL, 0);
    }
    unlock();
    if (late && fd >= 0) { REAL(close, int(int))(fd); errno = control->error; return -1; }
    return fd;
}

#define MODE(flags, after) mode_t mode = 0; \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list list; va_start(list, after); mode = va_arg(list, mode_t); va_end(list); }

int open(const char *path, int flags, ...) { MODE(flags, flags) return do_open(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags, flags) return do_open(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags, flags) return do_open(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags, flags) return do_open(at, path, flags, mode); }
int creat(const char *path, mode_t mode) { return do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int __open_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __openat_2(int at, const char *path, int flags) { return do_open(at, path, flags, 0); }
int __openat64_2(int at, const char *path, int flags) { return do_open(at, path, flags, 0); }

#define FOPEN(name) FILE *name(const char *path, const char *how) { \
    char full[PATH_MAX]; \
    if (strpbrk(how, "wa+") && ours(AT_FDCWD, path, full)) log_alone(UNSEEN, 0, 0, 0, full, "fopen", 5); \
    return REAL(name, FILE *(const char *, const char *))(path, how); }
BOTH(FOPEN, fopen)

int close(int fd)
{
    if (!watching(fd)) return REAL(close, int(int))(fd);
    files[fd].on = 0;
    int result = REAL(close, int(int))(fd);
    turns_gave_up(T_LOCKS);
    return result;
}

static int copied(int from, int to)
{
    if (to >= 0 && to < MOST_FILES && here()) {
        if (from >= 0 && from < MOST_FILES) files[to] = files[from];
        else files[to].on = 0;
    }
    return to;
}

int dup(int fd) { return copied(fd, REAL(dup, int(int))(fd)); }
int dup2(int fd, int to) { return copied(fd, REAL(dup2, int(int, int))(fd, to)); }
int dup3(int fd, int to, int flags) { return copied(fd, REAL(dup3, int(int, int, int))(fd, to, flags)); }

typedef int fcntl_type(int, int, ...);
static int locks(int what)
{
    return what == F_SETLK || what == F_SETLKW || what == F_GETLK
           || what == F_OFD_SETLK || what == F_OFD_SETLKW || what == F_OFD_GETLK;
}

#define FCNTL(name) int name(int fd, int what, ...) { \
    va_list list; va_start(list, what); void *value = va_arg(list, void *); va_end(list); \
    if (locks(what) && turns_on() && watching(fd)) return turns_fcntl(fd, what, value, seen); \
    int result = REAL(name, fcntl_type)(fd, what, value); \
    return what == F_DUPFD || what == F_DUPFD_CLOEXEC ? copied(fd, result) : result; }
BOTH(FCNTL, fcntl)

/* -- writing ---------------------------------------------------------------------------------- */

enum { NO_OFFSET = -1 };

/* The parts as one, in new memory if they are several. */
static struct iovec as_one(const struct iovec *parts, int count)
{
    if (count == 1) return parts[0];
    struct iovec all = { NULL, 0 };
    for (int i = 0; i < count; i++) all.iov_len += parts[i].iov_len;
    char *at = all.iov_base = malloc(all.iov_len + 1);
    if (!at) abort();
    for (int i = 0; i < count; i++) { memcpy(at, parts[i].iov_base, parts[i].iov_len); at += parts[i].iov_len; }
    return all;
}

static ssize_t put(int fd, const struct iovec *part, off_t at, int flags)
{
    if (at == NO_OFFSET) return syscall(SYS_writev, fd, part, 1);
    if (flags) return REAL(pwritev64v2, ssize_t(int, const struct iovec *, int, off_t, int))(fd, part, 1, at, flags);
    return REAL(pwritev64, ssize_t(int, const struct iovec *, int, off_t))(fd, part, 1, at);
}

#ifndef RWF_DSYNC
#define RWF_DSYNC 2
#define RWF_SYNC 4
#endif

/* Every kind of write ends here: parts to a place, or to the file's position. */
static ssize_t do_write(int fd, const struct iovec *parts, int count, off_t at, int flags)
{
    turns_before(C_WRITE, seen, at == NO_OFFSET ? 0 : (uint64_t)at);
    struct iovec all = as_one(parts, count);
    lock();
    int what = turn(C_WRITE);
    ssize_t done = -1;
    if (what == A_SHORT || what == A_KILL_HALF) { /* half of it, on whole sectors where it has several */
        struct iovec half = { all.iov_base, all.iov_len / 2 };
        if (half.iov_len > 512) half.iov_len &= ~(size_t)511;
        if (what == A_KILL_HALF && all.iov_len <= 512) half.iov_len = 0; /* no kill cuts a write that small */
        if (half.iov_len) done = put(fd, &half, at, flags);
        else errno = control->error;
        if (what == A_KILL_HALF) { kill(0, SIGKILL); for (;;) pause(); }
    } else if (what == A_FAIL) {
        errno = control->error;
    } else {
        done = put(fd, &all, at, flags);
    }
    int saved = errno;
    if (done > 0) {
        off_t start = at;
        if (at == NO_OFFSET) start = lseek(fd, 0, SEEK_CUR) - done; /* right for O_APPEND too */
        uint64_t synced = files[fd].sync || flags & (RWF_DSYNC | RWF_SYNC);
        log_record(WRITE, files[fd].inode, (uint64_t)start, synced, NULL, all.iov_base, (size_t)done);
    }
    unlock();
    turns_gave_up(T_WRITES);
    if (count != 1) free(all.iov_base);
    errno = saved;
    if (what == A_FAIL_AFTER && done >= 0) { errno = control->error; return -1; }
    return done;
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    if (active && fd == ack_file && here()) { /* under the lock, so that the word has its place among the writes */
        lock();
        ssize_t done = syscall(SYS_write, fd, data, bytes);
        if (done > 0) log_record(ACK, 0, 0, 0, NULL, data, (size_t)done);
        unlock();
        return done;
    }
    if (!watching(fd)) {
        ssize_t done = REAL(write, ssize_t(int, const void *, size_t))(fd, data, bytes);
        turns_gave_up(T_WRITES); /* to a pipe, say */
        return done;
    }
    struct iovec one = { (void *)data, bytes };
    return do_write(fd, &one, 1, NO_OFFSET, 0);
}

#define PWRITE(name) ssize_t name(int fd, const void *data, size_t bytes, off_t at) { \
    if (!watching(fd)) return REAL(name, ssize_t(int, const void *, size_t, off_t))(fd, data, bytes, at); \
    struct iovec one = { (void *)data, bytes }; \
    return do_write(fd, &one, 1, at, 0); }
BOTH(PWRITE, pwrite)

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    if (!watching(fd)) return REAL(writev, ssize_t(int, const struct iovec *, int))(fd, parts, count);
    return do_write(fd, parts, count, NO_OFFSET, 0);
}

#define PWRITEV(name) ssize_t name(int fd, const struct iovec *parts, int count, off_t at) { \
    if (!watching(fd)) return REAL(name, ssize_t(int, const struct iovec *, int, off_t))(fd, parts, count, at); \
    return do_write(fd, parts, count, at, 0); }
BOTH(PWRITEV, pwritev)

#define PWRITEV2(name) ssize_t name(int fd, const struct iovec *parts, int count, off_t at, int flags) { \
    if (!watching(fd)) return REAL(name, ssize_t(int, const struct iovec *, int, off_t, int))(fd, parts, count, at, flags); \
    return do_write(fd, parts, count, at, flags); }
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2)

#define PREAD(name) ssize_t name(int fd, void *data, size_t bytes, off_t at) { \
    if (turns_on() && watching(fd)) turns_before(T_READ, seen, (uint64_t)at); \
    return REAL(name, ssize_t(int, void *, size_t, off_t))(fd, data, bytes, at); }
BOTH(PREAD, pread)

ssize_t read(int fd, void *data, size_t bytes)
{
    ssize_t (*real)(int, void *, size_t) = REAL(read, ssize_t(int, void *, size_t));
    if (turns_on() && watching(fd)) turns_before(T_READ, seen, 0);
    else if (turns_would_wait(fd)) {
        turns_away();
        ssize_t done = real(fd, data, bytes);
        turns_before(T_WAIT, "pipe", 0);
        return done;
    }
    return real(fd, data, bytes);
}

/* A copy inside the kernel is read and written instead, so that its bytes are seen. */
static ssize_t copy_through(int from, off_t *from_at, int to, off_t *to_at, size_t bytes)
{
    size_t piece = bytes < (1 << 20) ? bytes : 1 << 20;
    char *data = malloc(piece + 1);
    if (!data) { errno = ENOMEM; return -1; }
    ssize_t got = from_at ? pread(from, data, piece, *from_at) : read(from, data, piece);
    ssize_t done = got;
    if (got > 0) {
        struct iovec one = { data, (size_t)got };
        done = do_write(to, &one, 1, to_at ? *to_at : NO_OFFSET, 0);
        off_t back = done < 0 ? got : got - done;
        if (from_at) *from_at += got - back;
        else if (back) lseek(from, -back, SEEK_CUR);
        if (to_at && done > 0) *to_at += done;
    }
    free(data);
    return done;
}

#define SENDFILE(name) ssize_t name(int to, int from, off_t *at, size_t bytes) { \
    if (!watching(to)) return REAL(name, ssize_t(int, int, off_t *, size_t))(to, from, at, bytes); \
    return copy_through(from, at, to, NULL, bytes); }
BOTH(SENDFILE, sendfile)

ssize_t copy_file_range(int from, off_t *from_at, int to, off_t *to_at, size_t bytes, unsigned flags)
{
    if (!watching(to))
        return REAL(copy_file_range, ssize_t(int, off_t *, int, off_t *, size_t, unsigned))(from, from_at, to, to_at, bytes, flags);
    return copy_through(from, from_at, to, to_at, bytes);
}

/* -- sizes ------------------------------------------------------------------------------------ */

#define FTRUNCATE(name) int name(int fd, off_t size) { \
    CHANGE(watching(fd), C_SIZE, REAL(name, int(int, off_t))(fd, size), \
           log_record(TRUNCATE, files[fd].inode, (uint64_t)size, 0, NULL, NULL, 0)); }
BOTH(FTRUNCATE, ftruncate)

#define TRUNCATE_PATH(name) int name(const char *path, off_t size) { \
    char full[PATH_MAX]; \
    CHANGE(ours(AT_FDCWD, path, full), C_SIZE, REAL(name, int(const char *, off_t))(path, size), \
           log_record(TRUNCATE, inode_of(full), (uint64_t)size, 0, NULL, NULL, 0)); }
BOTH(TRUNCATE_PATH, truncate)

static void say_allocated(int fd, int how, off_t at, off_t bytes)
{
    struct stat about;
    if (how & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE) && bytes < 1 << 28) {
        char *zeros = calloc(1, (size_t)bytes);
        if (!zeros) abort();
        if (how & FALLOC_FL_KEEP_SIZE && !fstat(fd, &about) && at + bytes > about.st_size)
            bytes = about.st_size > at ? about.st_size - at : 0;
        if (bytes) log_record(WRITE, files[fd].inode, (uint64_t)at, 0, NULL, zeros, (size_t)bytes);
        free(zeros);
    } else if (how & ~FALLOC_FL_KEEP_SIZE) {
        log_record(UNSEEN, files[fd].inode, 0, 0, NULL, "fallocate", 9);
    } else if (!fstat(fd, &about) && !(how & FALLOC_FL_KEEP_SIZE)) {
        log_record(TRUNCATE, files[fd].inode, (uint64_t)about.st_size, 0, NULL, NULL, 0);
    }
}

#define FALLOCATE(name) int name(int fd, int how, off_t at, off_t bytes) { \
    CHANGE(watching(fd), C_SIZE, REAL(name, int(int, int, off_t, off_t))(fd, how, at, bytes), \
           say_allocated(fd, how, at, bytes)); }
BOTH(FALLOCATE, fallocate)

#define POSIX_FALLOCATE(name) int name(int fd, off_t at, off_t bytes) { \
    if (!watching(fd)) return REAL(name, int(int, off_t, off_t))(fd, at, bytes); \
    turns_before(C_SIZE, seen, 0); \
    lock(); \
    int what = turn(C_SIZE); \
    if (what == A_FAIL || what == A_SHORT) { unlock(); return control->error; } \
    int result = REAL(name, int(int, off_t, off_t))(fd, at, bytes); \
    if (!result) say_allocated(fd, 0, at, bytes); \
    unlock(); return what == A_FAIL_AFTER && !result ? control->error : result; }
BOTH(POSIX_FALLOCATE, posix_fallocate)

/* -- names ------------------------------------------------------------------------------------ */

static void say_renamed(const char *old, const char *new, unsigned flags)
{
    if (inside(old) && inside(new) && !(flags & ~1u)) log_record(RENAME, 0, 0, 0, old, new, strlen(new));
    else log_record(UNSEEN, 0, 0, 0, old, "rename", 6); /* across the border of the folder, or an exchange */
}

static int do_rename(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    char old[PATH_MAX], new[PATH_MAX];
    CHANGE(here() && canonical(from_at, from, old) && canonical(to_at, to, new) && (inside(old) || inside(new)),
           C_RENAME,
           REAL(renameat2, int(int, const char *, int, const char *, unsigned))(from_at, from, to_at, to, flags),
           say_renamed(old, new, flags));
}

int rename(const char *old, const char *new) { return do_rename(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int a, const char *old, int b, const char *new) { return do_rename(a, old, b, new, 0); }
int renameat2(int a, const char *old, int b, const char *new, unsigned flags) { return do_rename(a, old, b, new, flags); }

static int do_unlink(int at, const char *path, int flags)
{
    char full[PATH_MAX];
    CHANGE(ours(at, path, full), C_UNLINK, REAL(unlinkat, int(int, const char *, int))(at, path, flags),
           log_record(flags & AT_REMOVEDIR ? RMDIR : UNLINK, 0, 0, 0, full, NULL, 0));
}

int unlink(const char *path) { return do_unlink(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return do_unlink(AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int at, const char *path, int flags) { return do_unlink(at, path, flags); }
int remove(const char *path)
{
    struct stat about;
    return do_unlink(AT_FDCWD, path, !lstat(path, &about) && S_ISDIR(about.st_mode) ? AT_REMOVEDIR : 0);
}

static int do_mkdir(int at, const char *path, mode_t mode)
{
    char full[PATH_MAX];
    CHANGE(ours(at, path, full), C_NAME, REAL(mkdirat, int(int, const char *, mode_t))(at, path, mode),
           log_record(MKDIR, inode_of(full), 0, 0, full, NULL, 0));
}

int mkdir(const char *path, mode_t mode) { return do_mkdir(AT_FDCWD, path, mode); }
int mkdirat(int at, const char *path, mode_t mode) { return do_mkdir(at, path, mode); }

static void say_linked(const char *from, const char *to)
{
    if (inside(from)) log_record(LINK, inode_of(to), 0, 0, from, to, strlen(to));
    else log_record(UNSEEN, 0, 0, 0, to, "link", 4);
}

static int do_link(int a, const char *old, int b, const char *new, int flags)
{
    char from[PATH_MAX], to[PATH_MAX];
    CHANGE(ours(b, new, to) && canonical(a, old, from), C_NAME,
           REAL(linkat, int(int, const char *, int, const char *, int))(a, old, b, new, flags), say_linked(from, to));
}

int link(const char *old, const char *new) { return do_link(AT_FDCWD, old, AT_FDCWD, new, 0); }
int linkat(int a, const char *old, int b, const char *new, int flags) { return do_link(a, old, b, new, flags); }

static int do_symlink(const char *target, int at, const char *path)
{
    char full[PATH_MAX];
    CHANGE(ours(at, path, full), C_NAME, REAL(symlinkat, int(const char *, int, const char *))(target, at, path),
           log_record(SYMLINK, inode_of(full), 0, 0, full, target, strlen(target)));
}

int symlink(const char *target, const char *path) { return do_symlink(target, AT_FDCWD, path); }
int symlinkat(const char *target, int at, const char *path) { return do_symlink(target, at, path); }

/* -- flushes ---------------------------------------------------------------------------------- */

#define FLUSH(name, full_) int name(int fd) { \
    if (!watching(fd)) return REAL(name, int(int))(fd); \
    uint64_t inode = files[fd].inode; \
    turns_before(C_SYNC, seen, 0); \
    int late; lock(); \
    if (FAILS(C_SYNC)) return -1; \
    uint64_t begun = log_record(SYNC_BEGIN, inode, 0, full_, NULL, NULL, 0); \
    unlock(); \
    int result = REAL(name, int(int))(fd); \
    if (!result) log_alone(SYNC_END, inode, begun, full_, NULL, NULL, 0); \
    LATE(result); return result; }
FLUSH(fsync, 1)
FLUSH(fdatasync, 0)

void sync(void)
{
    void (*real)(void) = REAL(sync, void(void));
    if (!here()) { real(); return; }
    uint64_t begun = log_alone(SYNC_ALL_BEGIN, 0, 0, 0, NULL, NULL, 0);
    real();
    log_alone(SYNC_ALL_END, 0, begun, 0, NULL, NULL, 0);
}

int syncfs(int fd)
{
    int (*real)(int) = REAL(syncfs, int(int));
    if (!watching(fd)) return real(fd);
    uint64_t begun = log_alone(SYNC_ALL_BEGIN, 0, 0, 0, NULL, NULL, 0);
    int result = real(fd);
    if (!result) log_alone(SYNC_ALL_END, 0, begun, 0, NULL, NULL, 0);
    return result;
}

typedef void *mmap_type(void *, size_t, int, int, int, off_t);
#define MMAP(name) void *name(void *where, size_t bytes, int how, int flags, int fd, off_t at) { \
    char path[PATH_MAX]; \
    if (how & PROT_WRITE && flags & MAP_SHARED && watching(fd) && path_of(fd, path)) \
        log_alone(MAPPED, files[fd].inode, 0, 0, path, NULL, 0); \
    return REAL(name, mmap_type)(where, bytes, how, flags, fd, at); }
BOTH(MMAP, mmap)

/* -- beginning -------------------------------------------------------------------------------- */

static void forked(void) { owner = getpid(); }

/* Watch a folder from now on. The process that creates the control file sets it up; the others join. 0, or an errno. */
int recorder_begin(const char *where, const char *control_path, const char *log_path, int acks, int make)
{
    int fd = (int)syscall(SYS_openat, AT_FDCWD, control_path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return errno;
    control = REAL(mmap64, mmap_type)(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (control == MAP_FAILED) return errno;
    if (!realpath(where, folder)) return errno;
    folder_length = strlen(folder);
    if (log_path && *log_path) {
        int low = (int)syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (low < 0) return errno;
        log_file = REAL(fcntl64, fcntl_type)(low, F_DUPFD_CLOEXEC, (void *)900L); /* out of the workload's way */
        if (log_file < 0) log_file = low; else syscall(SYS_close, low);
    }
    if (make) {
        pthread_mutexattr_t kind;
        pthread_mutexattr_init(&kind);
        pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&control->lock, &kind);
    }
    ack_file = acks;
    owner = getpid();
    pthread_atfork(NULL, NULL, forked);
    active = 1;
    return 0;
}

__attribute__((constructor)) static void joined(void)
{
    const char *where = getenv("RAXLOG_CRASHTEST_FOLDER"), *control_path = getenv("RAXLOG_CRASHTEST_CONTROL");
    if (where && control_path) recorder_begin(where, control_path, getenv("RAXLOG_CRASHTEST_LOG"), -1, 0);
}
