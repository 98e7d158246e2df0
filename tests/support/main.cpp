// The main() of every doctest program. Exit code 77 reports missing hardware to ctest.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/skip.hpp"

namespace {

const char* g_skip_reason = nullptr;

// A filter that no test case passes is a test that was renamed or not built, and no success.
int g_cases_run = -1;

struct CaseCount : doctest::IReporter {
    explicit CaseCount(const doctest::ContextOptions&) {}
    void report_query(const doctest::QueryData&) override {}
    void test_run_start() override {}
    void test_run_end(const doctest::TestRunStats& stats) override {
        g_cases_run = static_cast<int>(stats.numTestCasesPassingFilters);
    }
    void test_case_start(const doctest::TestCaseData&) override {}
    void test_case_reenter(const doctest::TestCaseData&) override {}
    void test_case_end(const doctest::CurrentTestCaseStats&) override {}
    void test_case_exception(const doctest::TestCaseException&) override {}
    void subcase_start(const doctest::SubcaseSignature&) override {}
    void subcase_end() override {}
    void log_assert(const doctest::AssertData&) override {}
    void log_message(const doctest::MessageData&) override {}
    void test_case_skipped(const doctest::TestCaseData&) override {}
};
DOCTEST_REGISTER_LISTENER("count", 1, CaseCount);

}  // namespace

namespace test_support {
void skip(const char* reason) {
    g_skip_reason = reason;
}
}  // namespace test_support

int main(int argc, char** argv) {
    doctest::Context context;
    context.applyCommandLine(argc, argv);
    const int result = context.run();
    if (g_cases_run == 0) {
        std::fputs("no test case of this program passes the filters that were given\n", stderr);
        return 1;
    }
    if (result != 0 || g_skip_reason == nullptr) return result;
    std::printf("skipped: %s\n", g_skip_reason);
    const char* strict = std::getenv("FABRIC_TESTS_FAIL_ON_SKIP");
    return strict != nullptr && *strict == '1' ? 1 : 77;
}
