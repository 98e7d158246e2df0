#include "libfabricshm/torch/environment.hpp"

#include <c10/util/Exception.h>

#include <charconv>
#include <cstdlib>
#include <limits>
#include <system_error>

namespace fabricshm::torch_backend {

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
}

std::uint64_t bytes_in_environment(const char* name) {
    const std::string text = environment(name);
    if (text.empty()) return 0;
    // Not strtoull(): that takes "-1" for a number, and the largest one for what is larger.
    std::uint64_t count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    const std::string unit(end);
    unsigned shift = 0;
    for (const char* known : {"K", "M", "G", "T"}) {
        shift += 10;
        if (unit == known || unit == std::string(known) + "iB") break;
        if (*known == 'T') shift = 0;
    }
    const bool has_unit = unit.empty() || shift != 0;
    const bool fits = count <= std::numeric_limits<std::uint64_t>::max() >> shift;
    TORCH_CHECK(error == std::errc{} && has_unit && fits, name, " is \"", text,
                "\"; expected bytes, as 1073741824, 512M or 2G");
    return count << shift;
}

}  // namespace fabricshm::torch_backend
