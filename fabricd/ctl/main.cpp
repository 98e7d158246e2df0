// fabricctl: inspects fabricd and steers it.

#include <cstdio>

#include "fabricd/ctl/commands.hpp"

int main(int argc, char** argv) {
    fabricd::CtlOptions options;
    // Help that was asked for is output, and may go through a pager; help that was not is a
    // error message.
    const auto parsed = fabricd::parse_ctl_options(argc, argv, options);
    if (parsed.exit) {
        const bool is_fine = *parsed.exit == fabricd::CtlExit::kOk;
        std::fputs(parsed.text.c_str(), is_fine ? stdout : stderr);
        return static_cast<int>(*parsed.exit);
    }
    const auto code = fabricd::run_command(options);
    // Output that did not arrive (a full disk) is a failure, whatever the daemon said.
    const bool is_lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
    if (is_lost && code == fabricd::CtlExit::kOk) return 1;
    return static_cast<int>(code);
}
