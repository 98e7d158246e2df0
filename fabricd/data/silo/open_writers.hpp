// Which files are open for writing: of file systems whose times do not say when it is written.

#pragma once

namespace fabricd {

/// Whether times of change say less there than elsewhere (tmpfs, ramfs): they are set when a
/// write(2) begins, which may take long, and not by stores through a mapping that has its pages.
bool has_late_times(int fd) noexcept;

enum class OpenWriters {
    kNone,
    kSome,     // a process has it open for writing, or mapped so
    kUnknown,  // the file is another user's, or its file system can't say
};

/// Of a file that is open for reading alone. Asks by a lease that is given back at once: a process
/// that opens the file for writing just then waits for that, and gets EWOULDBLOCK if it does not
/// want to (O_NONBLOCK).
OpenWriters open_writers(int fd) noexcept;

}  // namespace fabricd
