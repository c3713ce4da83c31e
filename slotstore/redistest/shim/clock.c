/* Moves the clock of the process it is preloaded into. The file CLOCK_FILE holds two int64: where the clock stands still,
 * in ms since 1970 (0: it goes on), and by how many ms it is moved; a test writes there. Only the time of day moves, as on
 * a host whose clock is wrong. It asks the kernel itself: looking the real functions up would allocate, and Redis's allocator asks for the time
 * before that works (why libfaketime hangs). */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct clock {
    int64_t still_ms, moved_ms;
};

static volatile struct clock untouched;
static volatile struct clock *wanted;

static volatile struct clock *look(void) {
    if (!wanted) {
        const char *path = getenv("CLOCK_FILE");
        int fd = path ? open(path, O_RDONLY) : -1;
        void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct clock), PROT_READ, MAP_SHARED, fd, 0);
        if (fd >= 0)
            close(fd);
        wanted = map == MAP_FAILED ? &untouched : map;
    }
    return wanted;
}

int clock_gettime(clockid_t clock, struct timespec *ts) {
    int rc = (int)syscall(SYS_clock_gettime, clock, ts);
    if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        volatile struct clock *to = look();
        int64_t ns = (int64_t)ts->tv_sec * 1000000000 + ts->tv_nsec;
        if (to->still_ms)
            ns = to->still_ms * 1000000;
        ns += to->moved_ms * 1000000;
        ts->tv_sec = ns / 1000000000;
        ts->tv_nsec = ns % 1000000000;
    }
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
