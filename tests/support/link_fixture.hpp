// A clock that tests move, and links of simple machines.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "libfabricshm/shm/link_clock.hpp"
#include "libfabricshm/shm/link_page.hpp"

/// Time stands still but for waits and for what a test adds to it.
struct TestClock final : fabricshm::LinkClock {
    std::uint64_t now() noexcept override { return time; }
    std::uint64_t wait(std::uint64_t until) noexcept override {
        time = std::max(time, until + late);
        return time;
    }
    std::uint64_t time = 1'000'000'000;
    std::uint64_t late = 0;  // how much too long every wait takes
};

/// `nodes` nodes with one link to the pool that they share.
inline fabricshm::LinkImage shared_link(std::uint32_t nodes, std::uint32_t read_ns,
                                        std::uint32_t write_ns, double read_ns_per_byte,
                                        double write_ns_per_byte) {
    fabricshm::LinkImage links{};
    std::strcpy(links.name, "test");
    links.node_count = nodes;
    links.channel_count = 1;
    links.slow_motion = 1;
    std::strcpy(links.channels[0].name, "link");
    links.channels[0].read_ns_per_byte = read_ns_per_byte;
    links.channels[0].write_ns_per_byte = write_ns_per_byte;
    for (std::uint32_t node = 0; node < nodes; ++node) {
        links.routes[node].read_latency_ns = read_ns;
        links.routes[node].write_latency_ns = write_ns;
        links.routes[node].hop_count = 1;
        links.routes[node].hops[0] = {0, 1000};
        links.channels[0].nodes |= 1u << node;
    }
    return links;
}

/// A formatted page.
struct TestPage {
    explicit TestPage(const fabricshm::LinkImage& links) : memory(std::make_unique<Memory>()) {
        fabricshm::format_links(memory->bytes, links);
    }
    std::byte* data() const { return memory->bytes; }
    fabricshm::LinkPage& page() const {
        return *reinterpret_cast<fabricshm::LinkPage*>(memory->bytes);
    }

    struct Memory {
        alignas(4096) std::byte bytes[fabricshm::kLinkPageBytes];
    };
    std::unique_ptr<Memory> memory;
};
