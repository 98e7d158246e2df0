// The main() of every doctest program. Exit code 77 tells ctest that hardware was missing.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/skip.hpp"

namespace {
const char* g_skip_reason = nullptr;
}

namespace test_support {
void skip(const char* reason) {
    g_skip_reason = reason;
}
}  // namespace test_support

int main(int argc, char** argv) {
    doctest::Context context;
    context.applyCommandLine(argc, argv);
    const int result = context.run();
    if (result != 0 || g_skip_reason == nullptr) return result;
    std::printf("skipped: %s\n", g_skip_reason);
    const char* strict = std::getenv("FABRIC_TESTS_FAIL_ON_SKIP");
    return strict != nullptr && *strict == '1' ? 1 : 77;
}
