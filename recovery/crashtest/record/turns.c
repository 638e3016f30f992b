/* Turns: of several processes that share a folder, one runs at a time, and which one is chosen here.

     process 0   ── write ─┐               ┌─ fcntl ─┐                 an actor is a thread: a process' first,
     process 1             └─ open, write ─┘         └─ pwrite …       or another that comes to such a point

   Each call that recorder.c passes on, each lock, each sleep and each crash_point() is a point. An actor that comes to
   one says what it is about to do, chooses who goes on, and sleeps until it is chosen. No process stands above them: the
   choice is made from what is in the shared page, by whichever has the turn. So the same page gives the same run.

     READY     at a point                              BLOCKED   what it asked for is held: it tries again once another
     RUNNING   has the turn                                      has given something up, or its time is over
     AWAY      in a call that waits for a process without turns, such as a read of a pipe; or, after five seconds of the
               real clock, in one that is not seen here

   Which one is chosen, of those that can go on:
     by priorities    the highest; at each of a few steps the one that runs is given the lowest (PCT: Burckhardt et al.,
                      2010)
     by switches      the one that runs, until it ends or blocks, then the first; but where the list says so, another:
                      "before actor 0 has its 17th turn, actor 1". Steps of the whole run would not do for that: without
                      one switch all later ones would stand elsewhere

   Time is the page's: it moves by a microsecond with each look at it and each step, and where all sleep, to the first
   that wakes. So a wait for a lease of 30 seconds takes none, and a run does not depend on the machine's speed.

   Not explored: what threads of one process do between two points, and weak memory: all see all stores in order. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "turns.h"

#define MOST_ACTORS 32
#define MOST_SWITCHES 64
#define MOST_STEPS 32768
#define CLOCKS 12
#define NOBODY UINT32_MAX
#define NEVER UINT64_MAX
#define STEP_NS 1000
#define UNSEEN_NS 5000000000L /* of the real clock, in which the one that has the turn comes to no point */

enum { NONE, READY, RUNNING, BLOCKED, AWAY, ENDED };
enum { BY_SWITCHES, BY_PRIORITIES };
enum { GOES_ON, DEADLOCK, TOO_LONG };

struct switch_to { uint32_t actor, turns, to, done; }; /* by priorities: 0, the step, the new priority */
struct step { uint8_t actor, usual, process, kind; uint32_t pad; uint64_t at; char name[40]; }; /* about to be done */

struct actor {
    uint32_t state, process;
    uint64_t deadline, seen; /* while BLOCKED; ``seen``: how often something of its kind had been given up by then */
    int32_t waits_for;
    uint32_t kind, turns, pad;
    uint64_t at;
    char name[40];
};

struct page {                    /* turns.py has the same layout; it writes the first part, and reads the second */
    uint32_t expected, strategy, switches, most_steps;
    int32_t priorities[MOST_ACTORS];
    struct switch_to switch_list[MOST_SWITCHES];
    uint32_t verdict, steps, actors, unseen;
    /* The rest is of this file alone. */
    uint32_t running, started, arrived, pad;
    uint64_t now, given_up[T_THREADS + MOST_ACTORS];
    int64_t base[CLOCKS];
    uint32_t calls[MOST_ACTORS];  /* futexes: an actor sleeps until its word changes */
    struct actor all[MOST_ACTORS];
    pthread_mutex_t lock;
    struct step trace[MOST_STEPS];
};

static struct page *page;
static int process = -1;         /* of this program, from turns_join() on */
static __thread int actor = -1;
static __thread int inside;      /* in here already */
static pthread_key_t ending;

#define REAL(name, type) ({ static __typeof__(type) *real_##name; \
    if (!real_##name) { real_##name = (__typeof__(type) *)dlsym(RTLD_NEXT, #name); } real_##name; })

static int real_clock(clockid_t clock, struct timespec *out) { return REAL(clock_gettime, int(clockid_t, struct timespec *))(clock, out); }
static int64_t in_ns(const struct timespec *t) { return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec; }
static struct timespec of_ns(int64_t ns) { struct timespec t = { ns / 1000000000, ns % 1000000000 }; return t; }
static int64_t real_ns(clockid_t clock) { struct timespec t; return real_clock(clock, &t) ? 0 : in_ns(&t); }

static void lock_page(void)
{
    if (REAL(pthread_mutex_lock, int(pthread_mutex_t *))(&page->lock) == EOWNERDEAD) pthread_mutex_consistent(&page->lock);
}

static void unlock_page(void) { REAL(pthread_mutex_unlock, int(pthread_mutex_t *))(&page->lock); }

static long futex(uint32_t *word, int what, uint32_t value, const struct timespec *wait)
{
    return REAL(syscall, long(long, ...))(SYS_futex, word, what, value, wait, NULL, 0);
}

/* -- choosing ----------------------------------------------------------------------------------- */

static int goes_on(const struct actor *a)
{
    return a->state == READY || a->state == RUNNING
           || (a->state == BLOCKED && (page->now >= a->deadline
                                        || (a->waits_for >= 0 && page->given_up[a->waits_for] > a->seen)));
}

/* The first to wake, where all sleep: time moves on. Not while one is away, which may come back at once. */
static void skip_sleep(int beside_away)
{
    uint64_t first = NEVER;
    for (uint32_t i = 0; i < page->actors; i++) {
        if (goes_on(&page->all[i]) || (page->all[i].state == AWAY && !beside_away)) return;
        if (page->all[i].state == BLOCKED && page->all[i].deadline < first) first = page->all[i].deadline;
    }
    if (first != NEVER) page->now = first;
}

static uint32_t usual(void)
{
    if (page->running != NOBODY && goes_on(&page->all[page->running])) return page->running;
    for (uint32_t i = 0; i < page->actors; i++)
        if (goes_on(&page->all[i])) return i;
    return NOBODY;
}

static uint32_t chosen(uint32_t usual_one)
{
    uint32_t best = usual_one;
    for (uint32_t i = 0; i < page->switches; i++) {
        struct switch_to *to = &page->switch_list[i];
        if (page->strategy == BY_PRIORITIES) {
            if (to->turns == page->steps) page->priorities[usual_one] = -(int32_t)to->to;
        } else if (!to->done && to->actor == usual_one && to->turns == page->all[usual_one].turns
                   && to->to < page->actors && goes_on(&page->all[to->to])) {
            to->done = 1;
            best = to->to;
            break; /* another may stand for the next time that the actor has had no turn since */
        }
    }
    if (page->strategy == BY_PRIORITIES)
        for (uint32_t i = 0; i < page->actors; i++)
            if (goes_on(&page->all[i]) && page->priorities[i] > page->priorities[best]) best = i;
    return best;
}

static void give_up(uint32_t verdict)
{
    page->verdict = verdict;
    unlock_page();
    kill(0, SIGKILL);
    for (;;) pause();
}

/* Give the turn to the next; the lock is held. ``late``: for five seconds of the real clock none has had it. */
static void choose(int late)
{
    skip_sleep(late);
    uint32_t usual_one = usual();
    if (usual_one == NOBODY) {
        page->running = NOBODY;
        for (uint32_t i = 0; i < page->actors; i++)
            if (page->all[i].state == AWAY) return;     /* it may give something up */
        for (uint32_t i = 0; i < page->actors; i++)     /* a thread that waits for work is none that is stuck */
            if (page->all[i].state == BLOCKED && i < page->expected) give_up(DEADLOCK);
        return;
    }
    uint32_t next = chosen(usual_one);
    struct actor *a = &page->all[next];
    if (page->steps < MOST_STEPS) {
        struct step *step = &page->trace[page->steps];
        *step = (struct step){ (uint8_t)next, (uint8_t)usual_one, (uint8_t)a->process, (uint8_t)a->kind, 0, a->at, { 0 } };
        memcpy(step->name, a->name, sizeof step->name);
    }
    if (++page->steps > page->most_steps) give_up(TOO_LONG);
    page->now += STEP_NS;
    page->running = next;
    a->state = RUNNING;
    a->turns++;
    __atomic_add_fetch(&page->calls[next], 1, __ATOMIC_SEQ_CST);
    futex(&page->calls[next], FUTEX_WAKE, INT_MAX, NULL);
}

/* Sleep until this actor has the turn; the lock is held, and held again afterwards. */
static void await_turn(void)
{
    struct timespec most = of_ns(UNSEEN_NS);
    while (page->running != (uint32_t)actor) {
        uint32_t word = page->calls[actor], steps = page->steps;
        unlock_page();
        long slept = futex(&page->calls[actor], FUTEX_WAIT, word, &most);
        int late = slept && errno == ETIMEDOUT;
        lock_page();
        if (late && page->started && page->steps == steps && page->running != (uint32_t)actor) {
            if (page->running != NOBODY) { page->all[page->running].state = AWAY; page->unseen++; }
            choose(1);
        }
    }
}

/* -- actors ------------------------------------------------------------------------------------- */

static int has_interpreter(void)
{
    static int (*has)(void);
    static int asked;
    if (!asked) { has = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check"); asked = 1; }
    return has && has();
}

/* A thread that has the interpreter's lock must not sleep for its turn: another of its process could not take it. */
static int keeps_interpreter(void)
{
    int several = 0;
    for (uint32_t i = 0; i < page->actors; i++)
        several += page->all[i].process == (uint32_t)process && page->all[i].state != ENDED;
    return several > 1 && has_interpreter();
}

static int enter(void)
{
    if (process < 0 || inside) return 0;
    if (actor < 0 || keeps_interpreter()) return 0;
    inside = 1;
    return 1;
}

static void describe(int kind, const char *name, uint64_t at)
{
    struct actor *a = &page->all[actor];
    a->kind = (uint32_t)kind;
    a->at = at;
    memset(a->name, 0, sizeof a->name);
    if (name) strncpy(a->name, name, sizeof a->name - 1);
}

void turns_before(int kind, const char *name, uint64_t at)
{
    if (!enter()) return;
    int saved = errno;
    lock_page();
    describe(kind, name, at);
    struct actor *a = &page->all[actor];
    int has_turn = a->state == RUNNING;
    a->state = READY;
    if (!page->started && (uint32_t)actor < page->expected) { /* the first step is taken once all have come so far */
        page->arrived += !has_turn;
        if (page->arrived >= page->expected) { page->started = 1; choose(0); }
    } else if (has_turn) {
        choose(0);
    } else if (page->running == NOBODY && page->started) {
        choose(0); /* one comes back that was away, or a thread is new, where none could go on */
    }
    await_turn();
    unlock_page();
    errno = saved;
    inside = 0;
}

/* What was asked for is held. Returns once it is to be asked for again, 0; or, past the deadline, 1. */
int turns_blocked(uint64_t deadline, int waits_for)
{
    if (!enter()) return -1;
    int saved = errno;
    lock_page();
    struct actor *a = &page->all[actor];
    a->state = BLOCKED;
    a->deadline = deadline;
    a->waits_for = waits_for == T_THREADS ? T_THREADS + process : waits_for;
    a->seen = waits_for >= 0 ? page->given_up[a->waits_for] : 0;
    if (page->running == (uint32_t)actor || page->running == NOBODY) choose(0);
    await_turn();
    int late = page->now >= deadline;
    unlock_page();
    errno = saved;
    inside = 0;
    return late;
}

void turns_gave_up(int what)
{
    if (process < 0) return;
    __atomic_add_fetch(&page->given_up[what == T_THREADS ? T_THREADS + process : what], 1, __ATOMIC_SEQ_CST);
}

/* Into a call that waits for a process which has no turns: the others go on. turns_before() comes back from it. */
void turns_away(void)
{
    if (!enter()) return;
    lock_page();
    page->all[actor].state = AWAY;
    if (page->running == (uint32_t)actor) choose(0);
    unlock_page();
    inside = 0;
}

int turns_on(void) { return process >= 0 && !inside; }
uint64_t turns_until(int64_t ns) { return ns < 0 ? NEVER : page->now + (uint64_t)ns; }

static void ended(void *which)
{
    if (process < 0) return;
    inside = 1;
    lock_page();
    ((struct actor *)which)->state = ENDED;
    if (page->running == (uint32_t)actor) choose(0);
    unlock_page();
}

struct start { void *(*routine)(void *); void *argument; int actor; };

static void *started(void *given)
{
    struct start start = *(struct start *)given;
    free(given);
    actor = start.actor;
    pthread_setspecific(ending, &page->all[actor]);
    turns_before(T_POINT, "thread", 0);
    return start.routine(start.argument);
}

/* A new thread of Python's is an actor from here on, so its number does not depend on when the system lets it run. One
   of a library's (LMDB copies with two) runs freely: its caller waits for it in ways that are not seen here. */
int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*routine)(void *), void *argument)
{
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        REAL(pthread_create, int(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *));
    struct start *start = turns_on() && page->started && has_interpreter() ? malloc(sizeof *start) : NULL;
    if (!start) return real(thread, how, routine, argument);
    lock_page();
    int number = page->actors < MOST_ACTORS ? (int)page->actors++ : -1;
    if (number >= 0) {
        page->all[number].process = (uint32_t)process;
        page->all[number].state = READY;
    }
    unlock_page();
    if (number < 0) { free(start); return real(thread, how, routine, argument); }
    *start = (struct start){ routine, argument, number };
    int result = real(thread, how, started, start);
    if (result) { page->all[number].state = ENDED; free(start); }
    return result;
}

static void forked(void) { process = actor = -1; } /* what a workload forks runs freely */

/* -- for Python ----------------------------------------------------------------------------------- */

int turns_begin(const char *path)
{
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return errno;
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (page == MAP_FAILED) return errno;
    page->running = NOBODY;
    page->actors = page->expected;
    for (int i = 0; i < CLOCKS; i++) page->base[i] = real_ns(i);
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&page->lock, &kind);
    pthread_key_create(&ending, ended);
    pthread_atfork(NULL, NULL, forked);
    return 0;
}

/* This process is number ``number``, and this thread its first. */
void turns_join(int number)
{
    actor = process = number;
    page->all[number].process = (uint32_t)number;
}

/* A process has ended: by the one that has waited for it. */
void turns_gone(int number)
{
    lock_page();
    int had_turn = page->running == NOBODY;
    for (uint32_t i = 0; i < page->actors; i++)
        if (page->all[i].process == (uint32_t)number && (i >= page->expected || i == (uint32_t)number)) {
            if (page->all[i].state == NONE) page->arrived++;
            page->all[i].state = ENDED;
            had_turn |= page->running == i;
        }
    for (int i = 0; i < T_THREADS; i++) page->given_up[i]++; /* its locks, its ends of pipes */
    if (page->arrived >= page->expected) page->started = 1;
    if (page->started && had_turn) choose(0);
    unlock_page();
}

void turns_point(const char *name) { turns_before(T_POINT, name, 0); }
int turns_page_bytes(void) { return (int)sizeof *page; }
int turns_trace_at(void) { return (int)offsetof(struct page, trace); }

/* -- time ------------------------------------------------------------------------------------------ */

static int is_ours(clockid_t clock)
{
    return process >= 0 && clock >= 0 && clock < CLOCKS
           && clock != CLOCK_PROCESS_CPUTIME_ID && clock != CLOCK_THREAD_CPUTIME_ID;
}

static int64_t shown_ns(clockid_t clock) { return page->base[clock] + (int64_t)page->now; }

int clock_gettime(clockid_t clock, struct timespec *out)
{
    if (!is_ours(clock)) return real_clock(clock, out);
    if (page->started) page->now += STEP_NS;
    *out = of_ns(shown_ns(clock));
    return 0;
}

int gettimeofday(struct timeval *out, void *zone)
{
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    out->tv_sec = t.tv_sec;
    out->tv_usec = t.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}

/* A moment of the page's clock as nanoseconds from now. */
static int64_t from_now(clockid_t clock, const struct timespec *when)
{
    int64_t left = in_ns(when) - shown_ns(clock);
    return left > 0 ? left : 0;
}

static int sleep_for(int64_t ns)
{
    turns_before(T_SLEEP, "", (uint64_t)ns);
    return turns_blocked(turns_until(ns), T_NOTHING) >= 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *t, struct timespec *left)
{
    int64_t ns = flags & TIMER_ABSTIME && page && clock >= 0 && clock < CLOCKS ? from_now(clock, t) : in_ns(t);
    if (turns_on() && sleep_for(ns)) return 0;
    return REAL(clock_nanosleep, int(clockid_t, int, const struct timespec *, struct timespec *))(clock, flags, t, left);
}

int nanosleep(const struct timespec *t, struct timespec *left)
{
    if (turns_on() && sleep_for(in_ns(t))) return 0;
    return REAL(nanosleep, int(const struct timespec *, struct timespec *))(t, left);
}

int usleep(useconds_t us)
{
    struct timespec t = of_ns((int64_t)us * 1000);
    return nanosleep(&t, NULL);
}

/* -- waiting for descriptors ------------------------------------------------------------------------- */

/* Ask without waiting, again after each step in which something was given up, until the time is over. */
#define WAITS(name, ns, ask, wait) do { \
    if (!turns_on() || (ns) == 0) return wait; \
    turns_before(T_WAIT, name, 0); \
    uint64_t until = turns_until(ns); \
    for (;;) { \
        int found = ask; \
        if (found) return found; \
        int late = turns_blocked(until, T_WRITES); \
        if (late < 0) return wait; \
        if (late) return ask; \
    } } while (0)

#define POLL(fds, count, ms) REAL(poll, int(struct pollfd *, nfds_t, int))(fds, count, ms)
int poll(struct pollfd *fds, nfds_t count, int ms)
{
    WAITS("poll", ms < 0 ? -1 : (int64_t)ms * 1000000, POLL(fds, count, 0), POLL(fds, count, ms));
}

#define EPOLL(fd, events, most, ms) REAL(epoll_wait, int(int, struct epoll_event *, int, int))(fd, events, most, ms)
int epoll_wait(int fd, struct epoll_event *events, int most, int ms)
{
    WAITS("epoll", ms < 0 ? -1 : (int64_t)ms * 1000000, EPOLL(fd, events, most, 0), EPOLL(fd, events, most, ms));
}

static int select_now(int n, fd_set *r, fd_set *w, fd_set *e, const fd_set *wanted)
{
    fd_set *sets[3] = { r, w, e };
    struct timeval none = { 0, 0 };
    for (int i = 0; i < 3; i++) if (sets[i]) *sets[i] = wanted[i];
    return REAL(select, int(int, fd_set *, fd_set *, fd_set *, struct timeval *))(n, r, w, e, &none);
}

int select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *t)
{
    fd_set wanted[3];
    fd_set *sets[3] = { r, w, e };
    for (int i = 0; i < 3; i++) if (sets[i]) wanted[i] = *sets[i];
    int64_t ns = t ? (int64_t)t->tv_sec * 1000000000 + t->tv_usec * 1000 : -1;
    WAITS("select", ns, select_now(n, r, w, e, wanted),
          REAL(select, int(int, fd_set *, fd_set *, fd_set *, struct timeval *))(n, r, w, e, t));
}

int turns_would_wait(int fd)
{
    struct pollfd asked = { fd, POLLIN, 0 };
    return turns_on() && actor >= 0 && POLL(&asked, 1, 0) == 0
           && !(REAL(fcntl64, int(int, int, ...))(fd, F_GETFL) & O_NONBLOCK);
}

pid_t waitpid(pid_t pid, int *status, int how)
{
    pid_t (*real)(pid_t, int *, int) = REAL(waitpid, pid_t(pid_t, int *, int));
    if (!turns_on() || actor < 0 || how & WNOHANG) return real(pid, status, how);
    turns_away();
    pid_t ended = real(pid, status, how);
    turns_before(T_WAIT, "process", 0);
    return ended;
}

/* -- locks between processes ----------------------------------------------------------------------------- */

int turns_fcntl(int fd, int what, void *value, const char *name)
{
    int (*real)(int, int, ...) = REAL(fcntl64, int(int, int, ...));
    struct flock *lock = value;
    int waits = what == F_SETLKW || what == F_OFD_SETLKW, asks = what == F_GETLK || what == F_OFD_GETLK;
    int at_once = what == F_SETLKW ? F_SETLK : what == F_OFD_SETLKW ? F_OFD_SETLK : what;
    turns_before(asks ? T_ASK : lock->l_type == F_UNLCK ? T_UNLOCK : T_LOCK, name, (uint64_t)lock->l_start);
    for (;;) {
        int result = real(fd, at_once, value);
        if (!asks && !result && lock->l_type != F_WRLCK) turns_gave_up(T_LOCKS); /* a shared lock may be one that was not */
        if (!waits || !result || (errno != EAGAIN && errno != EACCES)) return result;
        if (turns_blocked(NEVER, T_LOCKS) < 0) return real(fd, what, value);
    }
}

int flock(int fd, int how)
{
    int (*real)(int, int) = REAL(flock, int(int, int));
    if (!turns_on()) return real(fd, how);
    turns_before(how & LOCK_UN ? T_UNLOCK : T_LOCK, "flock", 0);
    for (;;) {
        int result = real(fd, how & LOCK_UN ? how : how | LOCK_NB);
        if (!result) turns_gave_up(T_LOCKS);
        if (!result || how & (LOCK_NB | LOCK_UN) || errno != EWOULDBLOCK) return result;
        if (turns_blocked(NEVER, T_LOCKS) < 0) return real(fd, how);
    }
}

static int is_shared(pthread_mutex_t *m) { return m->__data.__kind & 128; } /* glibc's bit of PTHREAD_PROCESS_SHARED */

int pthread_mutex_lock(pthread_mutex_t *m)
{
    int (*real)(pthread_mutex_t *) = REAL(pthread_mutex_lock, int(pthread_mutex_t *));
    if (!turns_on() || !is_shared(m) || !page->started) return real(m);
    turns_before(T_LOCK, "mutex", 0);
    for (;;) {
        int result = pthread_mutex_trylock(m);
        if (result != EBUSY) return result;
        if (turns_blocked(NEVER, T_LOCKS) < 0) return real(m);
    }
}

int pthread_mutex_unlock(pthread_mutex_t *m)
{
    int (*real)(pthread_mutex_t *) = REAL(pthread_mutex_unlock, int(pthread_mutex_t *));
    if (!turns_on() || !is_shared(m) || !page->started) return real(m);
    turns_before(T_UNLOCK, "mutex", 0);
    int result = real(m);
    turns_gave_up(T_LOCKS);
    return result;
}

static long wait_word(uint32_t *word, uint32_t value, const struct timespec *t)
{
    turns_before(T_WAIT, "futex", 0);
    uint64_t until = turns_until(t ? in_ns(t) : -1);
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value) {
        int late = turns_blocked(until, T_LOCKS);
        if (late) { errno = late < 0 ? EINTR : ETIMEDOUT; return -1; }
    }
    return 0;
}

long syscall(long number, ...)
{
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_futex && turns_on() && page->started) {
        int what = (int)a[1] & ~(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME);
        if (what == FUTEX_WAIT) return wait_word((uint32_t *)a[0], (uint32_t)a[2], (const struct timespec *)a[3]);
        if (what == FUTEX_WAKE) { turns_before(T_WAKE, "futex", 0); turns_gave_up(T_LOCKS); }
    }
    return REAL(syscall, long(long, ...))(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* -- locks between threads: Python's are semaphores ------------------------------------------------------- */

static int await_semaphore(sem_t *s, int64_t ns)
{
    uint64_t until = turns_until(ns);
    for (;;) {
        if (!sem_trywait(s)) return 0;
        if (actor >= 0) describe(T_WAIT, "thread", 0);
        int late = turns_blocked(until, T_THREADS);
        if (late < 0) { errno = EINTR; return -1; }
        if (late) { errno = ETIMEDOUT; return sem_trywait(s) ? (errno = ETIMEDOUT, -1) : 0; }
    }
}

int sem_wait(sem_t *s)
{
    return turns_on() && page->started ? await_semaphore(s, -1) : REAL(sem_wait, int(sem_t *))(s);
}

int sem_timedwait(sem_t *s, const struct timespec *t)
{
    if (turns_on() && page->started) return await_semaphore(s, from_now(CLOCK_REALTIME, t));
    return REAL(sem_timedwait, int(sem_t *, const struct timespec *))(s, t);
}

int sem_clockwait(sem_t *s, clockid_t clock, const struct timespec *t)
{
    if (turns_on() && page->started && is_ours(clock)) return await_semaphore(s, from_now(clock, t));
    return REAL(sem_clockwait, int(sem_t *, clockid_t, const struct timespec *))(s, clock, t);
}

int sem_post(sem_t *s)
{
    int result = REAL(sem_post, int(sem_t *))(s);
    turns_gave_up(T_THREADS);
    return result;
}

/* The interpreter's lock waits by the real clock, for moments that it has learnt from ours. */
int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) { /* there is an older form of the same name */
        *(void **)&real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    }
    if (process < 0) return real(c, m, t);
    clockid_t clock = t->tv_sec > 1000000000 ? CLOCK_REALTIME : CLOCK_MONOTONIC;
    struct timespec when = of_ns(real_ns(clock) + from_now(clock, t));
    return real(c, m, &when);
}
