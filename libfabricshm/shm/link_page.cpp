#include "libfabricshm/shm/link_page.hpp"

#include <cmath>
#include <cstring>
#include <new>

namespace fabricshm {

namespace {

// Far beyond any memory that could be called a pool: a second of latency, 1 MB/s.
constexpr std::uint32_t kMaxLatency = 1'000'000'000;
constexpr double kMaxPerByte = 1000.0;

bool is_name(const char (&name)[kLinkNameBytes]) noexcept {
    if (name[0] == '\0' || name[kLinkNameBytes - 1] != '\0') return false;
    for (const char* c = name; *c != '\0'; ++c) {
        const bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                           (*c >= '0' && *c <= '9') || *c == '_' || *c == '-';
        // It becomes part of a file's name (tuning), so no dot and no slash.
        if (!plain) return false;
    }
    return true;
}

bool is_cost(double ns_per_byte) noexcept {
    return std::isfinite(ns_per_byte) && ns_per_byte >= 0 && ns_per_byte <= kMaxPerByte;
}

bool is_route(const LinkRoute& route, std::uint32_t channels) noexcept {
    bool good = route.read_latency_ns <= kMaxLatency && route.write_latency_ns <= kMaxLatency &&
                route.hop_count <= kLinkHops && route.tail_permille <= 1000 &&
                route.tail_latency_ns <= kMaxLatency;
    for (std::uint32_t i = 0; good && i < route.hop_count; ++i) {
        good = route.hops[i].channel < channels && route.hops[i].permille <= 1000;
    }
    return good;
}

bool is_channel(const LinkChannel& channel) noexcept {
    return is_name(channel.name) && is_cost(channel.read_ns_per_byte) &&
           is_cost(channel.write_ns_per_byte) && channel.knee_loss_permille <= 1000;
}

}  // namespace

Result<void> check_links(const LinkImage& image) noexcept {
    const Error bad{Errc::kCorrupt, 0, "link page"};
    const bool counts = image.node_count >= 1 && image.node_count <= kLinkNodes &&
                        image.channel_count <= kLinkChannels && image.slow_motion >= 1;
    if (!counts || !is_name(image.name)) return bad;
    for (std::uint32_t i = 0; i < image.node_count; ++i) {
        if (!is_route(image.routes[i], image.channel_count)) return bad;
    }
    for (std::uint32_t i = 0; i < image.channel_count; ++i) {
        if (!is_channel(image.channels[i])) return bad;
    }
    return {};
}

void format_links(std::byte* page, const LinkImage& image) noexcept {
    auto* links = ::new (static_cast<void*>(page)) LinkPage{};
    links->image = image;
    links->version = kLinkVersion;
    links->magic = kLinkMagic;
}

Result<LinkImage> read_links(const std::byte* page) noexcept {
    const auto* links = reinterpret_cast<const LinkPage*>(page);
    if (links->magic != kLinkMagic) return Error{Errc::kCorrupt, 0, "link page"};
    if (links->version != kLinkVersion) return Error{Errc::kVersion, 0, "link page"};
    // Copied first: what is checked is what is used, whatever a peer writes meanwhile.
    LinkImage image;
    std::memcpy(&image, &links->image, sizeof image);
    FABRIC_TRY_VOID(check_links(image));
    return image;
}

}  // namespace fabricshm
