// libfabricshm-isatty.so, to be preloaded: a regular file is no terminal.
//
// Python asks isatty() of each file that it opens, and the kernel asks the server of a FUSE mount,
// each time again: half of the time of reading a small file. What a file is the kernel knows by
// itself. Everything else is asked as before.

#include <errno.h>
#include <sys/stat.h>
#include <termios.h>

__attribute__((visibility("default"))) int isatty(int descriptor) {
    const int saved_errno = errno;
    struct stat status;
    if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) {
        errno = ENOTTY;
        return 0;
    }
    errno = saved_errno;
    struct termios settings;
    return tcgetattr(descriptor, &settings) == 0;  // what the C library's isatty() is
}
