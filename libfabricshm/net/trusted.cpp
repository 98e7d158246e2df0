#include "libfabricshm/net/trusted.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <charconv>
#include <memory>
#include <optional>
#include <vector>

#include "libfabricshm/base/reason.hpp"

namespace fabricshm::net {

namespace {

struct Parsed {
    int family = 0;
    std::array<std::uint8_t, 16> bytes{};
    int bits() const noexcept { return family == AF_INET ? 32 : 128; }
};

std::optional<Parsed> parse(const std::string& text) {
    for (const int family : {AF_INET, AF_INET6}) {
        Parsed parsed{family, {}};
        if (::inet_pton(family, text.c_str(), parsed.bytes.data()) == 1) return parsed;
    }
    return std::nullopt;
}

bool same_prefix(const Parsed& a, const Parsed& b, int bits) noexcept {
    for (int bit = 0; bit < bits; ++bit) {
        const auto byte = static_cast<std::size_t>(bit / 8);
        if (((a.bytes[byte] ^ b.bytes[byte]) >> (7 - bit % 8) & 1) != 0) return false;
    }
    return true;
}

std::vector<std::string> split(const std::string& list) {
    std::vector<std::string> parts;
    std::size_t from = 0;
    while (from <= list.size()) {
        const std::size_t comma = std::min(list.find(',', from), list.size());
        std::string part = list.substr(from, comma - from);
        std::erase(part, ' ');
        if (!part.empty()) parts.push_back(part);
        from = comma + 1;
    }
    return parts;
}

std::vector<std::string> own_addresses() {
    std::vector<std::string> found;
    ifaddrs* all = nullptr;
    if (::getifaddrs(&all) != 0) return found;
    const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> held(all, ::freeifaddrs);
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
        if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
        char text[INET6_ADDRSTRLEN] = "";
        const int family = one->ifa_addr->sa_family;
        const void* bytes = nullptr;
        if (family == AF_INET) {
            bytes = &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
        } else if (family == AF_INET6) {
            bytes = &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
        }
        if (bytes != nullptr && ::inet_ntop(family, bytes, text, sizeof text) != nullptr) {
            found.emplace_back(text);
        }
    }
    return found;
}

}  // namespace

Result<bool> lies_in(const std::string& address, const std::string& network) {
    const std::size_t slash = network.find('/');
    const auto wanted = parse(network.substr(0, slash));
    const auto given = parse(address);
    if (!wanted || !given) return Error{Errc::kInvalid, 0, "trusted network"};
    int bits = wanted->bits();
    if (slash != std::string::npos) {
        const char* end = network.data() + network.size();
        const auto [at, error] = std::from_chars(network.data() + slash + 1, end, bits);
        if (error != std::errc{} || at != end || bits < 0 || bits > wanted->bits()) {
            return Error{Errc::kInvalid, 0, "trusted network"};
        }
    }
    return wanted->family == given->family && same_prefix(*wanted, *given, bits);
}

Result<std::string> trusted_address(const std::string& networks) {
    const std::vector<std::string> wanted = split(networks);
    if (wanted.empty()) {
        return explain(
            {Errc::kDenied, 0, "network"},
            "no network is allowed: set %s (fabricrun --trusted) to those between the hosts, as "
            "10.0.0.0/8, or name them in the call (trusted); what crosses them is not encrypted",
            kTrustedVariable);
    }
    const std::vector<std::string> own = own_addresses();
    for (const std::string& network : wanted) {
        for (const std::string& address : own) {
            const auto inside = lies_in(address, network);
            if (!inside.ok()) {
                return explain({Errc::kInvalid, 0, "network"},
                               "%s: '%s' is no network as 10.0.0.0/8", kTrustedVariable,
                               network.c_str());
            }
            if (*inside) return address;
        }
    }
    return explain({Errc::kDenied, 0, "network"},
                   "no interface of this host that is up has an address in %s (%s, or fabricrun "
                   "--trusted)",
                   networks.c_str(), kTrustedVariable);
}

}  // namespace fabricshm::net
