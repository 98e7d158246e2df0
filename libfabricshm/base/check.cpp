#include "libfabricshm/base/check.hpp"

#include <cstdio>
#include <cstdlib>

namespace fabricshm::detail {

void check_failed(const char* condition, const char* file, int line) noexcept {
    std::fprintf(stderr, "fabric: bug: check failed: %s at %s:%d\n", condition, file, line);
    std::abort();
}

}  // namespace fabricshm::detail
