/* Moves the clock of the process it is preloaded into by CLOCK_OFFSET_SECONDS. Only the time of day
 * moves, as on a host whose clock is wrong. It asks the kernel itself: looking the real functions up
 * would allocate, and Redis's allocator asks for the time before that works (why libfaketime hangs). */
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t offset(void) {
    const char *seconds = getenv("CLOCK_OFFSET_SECONDS");
    return seconds ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *ts) {
    int rc = (int)syscall(SYS_clock_gettime, clock, ts);
    if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        ts->tv_sec += offset();
    return rc;
}

int gettimeofday(struct timeval *tv, void *zone) {
    struct timespec ts;
    int rc;
    (void)zone;
    rc = clock_gettime(CLOCK_REALTIME, &ts);
    if (rc == 0) {
        tv->tv_sec = ts.tv_sec;
        tv->tv_usec = ts.tv_nsec / 1000;
    }
    return rc;
}

time_t time(time_t *result) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    if (result)
        *result = ts.tv_sec;
    return ts.tv_sec;
}
