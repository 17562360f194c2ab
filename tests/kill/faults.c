/* Preloaded into the process under test: counts the operations that change files below a folder, and lets the n-th of them fail, or
   kill the process before it is done. Operations of a save: create, write, resize, sync, rename, make a folder. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char below[PATH_MAX];
static size_t below_length;
static long at, count;
static int error_number;
static char last[PATH_MAX + 64];

/* error > 0: the operation number `nth` fails with it; error < 0: the process is killed there; nth 0: only counted. */
void faults_arm(const char *folder, long nth, int error) {
    strncpy(below, folder, sizeof below - 1);
    below_length = strlen(below);
    at = nth, count = 0, error_number = error, last[0] = 0;
}

long faults_count(void) { return count; }
const char *faults_last(void) { return last; }

static int fails(const char *name, const char *path) {
    if (!below_length || !path || strncmp(path, below, below_length)) return 0;
    if (++count != at) return 0;
    snprintf(last, sizeof last, "%s %s", name, path + below_length);
    if (error_number < 0) kill(getpid(), SIGKILL);
    errno = error_number;
    return 1;
}

static int fails_at(const char *name, int folder, const char *path) {
    char whole[2 * PATH_MAX], link[64];
    ssize_t length = 0;
    if (!below_length) return 0;
    if (path[0] != '/') {
        snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
        length = readlink(link, whole, PATH_MAX);
        if (length < 0) return 0;
        whole[length++] = '/';
    }
    strncpy(whole + length, path, PATH_MAX - 1);
    whole[length + PATH_MAX - 1] = 0;
    return fails(name, whole);
}

static int fails_on(const char *name, int file) {
    char link[64], path[PATH_MAX];
    if (!below_length) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(name, path);
}

#define NEXT(function) \
    static __typeof__(&function) next; \
    if (!next) next = (__typeof__(&function))dlsym(RTLD_NEXT, #function)

/* A file without a name: whoever is refused one makes one with a name. */
#define NAME(flags) ((flags & O_TMPFILE) == O_TMPFILE ? "unnamed" : "open")

#define OPEN(function) \
    int function(const char *path, int flags, ...) { \
        NEXT(function); \
        va_list arguments; \
        va_start(arguments, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0; \
        va_end(arguments); \
        if (flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR) && fails_at(NAME(flags), AT_FDCWD, path)) return -1; \
        return next(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(function) \
    int function(int folder, const char *path, int flags, ...) { \
        NEXT(function); \
        va_list arguments; \
        va_start(arguments, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0; \
        va_end(arguments); \
        if (flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR) && fails_at(NAME(flags), folder, path)) return -1; \
        return next(folder, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int file, const void *bytes, size_t size) {
    NEXT(write);
    return fails_on("write", file) ? -1 : next(file, bytes, size);
}

#define PWRITE(function, offset_type) \
    ssize_t function(int file, const void *bytes, size_t size, offset_type offset) { \
        NEXT(function); \
        return fails_on("pwrite", file) ? -1 : next(file, bytes, size, offset); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int file, const struct iovec *parts, int number) {
    NEXT(writev);
    return fails_on("writev", file) ? -1 : next(file, parts, number);
}

#define RESIZE(function, offset_type) \
    int function(int file, offset_type size) { \
        NEXT(function); \
        return fails_on("resize", file) ? -1 : next(file, size); \
    }
RESIZE(ftruncate, off_t)
RESIZE(ftruncate64, off64_t)

#define ALLOCATE(function, offset_type) \
    int function(int file, offset_type offset, offset_type size) { \
        NEXT(function); \
        return fails_on("allocate", file) ? errno : next(file, offset, size); \
    }
ALLOCATE(posix_fallocate, off_t)
ALLOCATE(posix_fallocate64, off64_t)

int fsync(int file) {
    NEXT(fsync);
    return fails_on("sync", file) ? -1 : next(file);
}

int fdatasync(int file) {
    NEXT(fdatasync);
    return fails_on("sync", file) ? -1 : next(file);
}

int rename(const char *from, const char *to) {
    NEXT(rename);
    return fails_at("rename", AT_FDCWD, to) ? -1 : next(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    NEXT(renameat);
    return fails_at("rename", to_folder, to) ? -1 : next(from_folder, from, to_folder, to);
}

int mkdir(const char *path, mode_t mode) {
    NEXT(mkdir);
    return fails_at("mkdir", AT_FDCWD, path) ? -1 : next(path, mode);
}
