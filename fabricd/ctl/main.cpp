// fabricctl: inspects fabricd and steers it.

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "fabricd/ctl/commands.hpp"

namespace {

/// Output that did not arrive (a full disk) is a failure, whatever the daemon said.
int end_with(fabricd::CtlExit code) {
    errno = 0;
    const bool is_lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
    if (!is_lost) return static_cast<int>(code);
    // A watch that flushed before knows the reason no more.
    std::fprintf(stderr, "fabricctl: can't write all of the output%s%s\n", errno != 0 ? ": " : "",
                 errno != 0 ? std::strerror(errno) : "");
    return static_cast<int>(code == fabricd::CtlExit::kOk ? fabricd::CtlExit::kFailed : code);
}

}  // namespace

int main(int argc, char** argv) {
    fabricd::CtlOptions options;
    // Help that was asked for is output, and may go through a pager; help that was not is a
    // error message.
    const auto parsed = fabricd::parse_ctl_options(argc, argv, options);
    if (parsed.exit) {
        const bool is_fine = *parsed.exit == fabricd::CtlExit::kOk;
        std::fputs(parsed.text.c_str(), is_fine ? stdout : stderr);
        return end_with(*parsed.exit);
    }
    return end_with(fabricd::run_command(options));
}
