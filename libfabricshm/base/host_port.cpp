#include "libfabricshm/base/host_port.hpp"

#include <charconv>

namespace fabricshm {

std::optional<HostPort> parse_host_port(std::string_view text) {
    const std::size_t colon = text.rfind(':');
    if (colon == text.npos) return std::nullopt;
    std::string_view host = text.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
        host = host.substr(1, host.size() - 2);
    } else if (host.empty() || host.find_first_of(":[]") != host.npos) {
        return std::nullopt;
    }
    std::uint16_t port = 0;
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + colon + 1, end, port);
    if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
    return HostPort{std::string(host), port};
}

}  // namespace fabricshm
