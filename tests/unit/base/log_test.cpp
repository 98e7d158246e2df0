#include "libfabricshm/base/log.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <string>

using namespace fabricshm;

namespace {

// What comes to standard error, where the library writes.
std::string written(const char* text) {
    std::FILE* file = std::tmpfile();
    const int kept = ::dup(2);
    ::dup2(::fileno(file), 2);
    log(LogLevel::kError, "audit: %s", text);
    ::dup2(kept, 2);
    ::close(kept);
    std::string found(256, '\0');
    found.resize(static_cast<std::size_t>(::pread(::fileno(file), found.data(), found.size(), 0)));
    std::fclose(file);
    return found;
}

}  // namespace

TEST_SUITE("base.log") {
    TEST_CASE("a text of others neither begins a line of its own nor commands a terminal") {
        CHECK(written("host\n[info] audit: forged by \x1b[2Jroot\r\x7f") ==
              "fabric: error: audit: host?[info] audit: forged by ?[2Jroot??\n");
    }

    TEST_CASE("what is no control character stays as it is") {
        CHECK(written("h\xc3\xb6st ~ 5 %") == "fabric: error: audit: h\xc3\xb6st ~ 5 %\n");
    }
}
