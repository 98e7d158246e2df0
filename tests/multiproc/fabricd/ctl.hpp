// fabricctl as a test runs it: against the daemon of the test.

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/multiproc/fabricd/ready.hpp"
#include "tests/support/program.hpp"

namespace test_support {

inline Output ctl(const ReadyDaemon& daemon, std::vector<std::string> words) {
    words.insert(words.begin(), FABRICCTL_PATH);
    words.push_back("--socket=" + daemon.folder() + "/admin.sock");
    return run_program(words);
}

}  // namespace test_support
