/* What recorder.c knows of turns.c; turns.py has the same kinds. */

#include <stdint.h>

enum { T_POINT = 128, T_OPEN, T_READ, T_LOCK, T_UNLOCK, T_ASK, T_SLEEP, T_WAIT, T_WAKE }; /* below: recorder.c's classes */
enum { T_NOTHING = -1, T_LOCKS, T_WRITES, T_THREADS }; /* what is waited for; of threads, one a process */

void turns_before(int kind, const char *name, uint64_t at); /* a point: others may have their turn here */
int turns_blocked(uint64_t deadline, int waits_for);
void turns_gave_up(int what);
void turns_away(void);
int turns_would_wait(int fd);
int turns_on(void);
int turns_fcntl(int fd, int what, void *value, const char *name);
