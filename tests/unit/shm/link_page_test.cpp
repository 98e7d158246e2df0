#include "libfabricshm/shm/link_page.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "tests/support/link_fixture.hpp"

using namespace fabricshm;

TEST_SUITE("shm.link_page") {
    TEST_CASE("what is formatted over anything is read back") {
        const LinkImage links = shared_link(2, 640, 700, 0.1, 0.2);
        TestPage page(links);
        std::memset(page.data(), 0xff, kLinkPageBytes);
        format_links(page.data(), links);
        const auto read = read_links(page.data());
        REQUIRE(read.ok());
        CHECK(std::memcmp(&*read, &links, sizeof links) == 0);
        CHECK(page.page().live[0].read_until.load() == 0);
        CHECK(page.page().slots[kLinkNodes * kNodeSlots - 1].load() == 0);
    }

    TEST_CASE("a page of another kind or version is refused") {
        TestPage page(shared_link(1, 1, 1, 1, 1));
        page.page().version = kLinkVersion + 1;
        CHECK(read_links(page.data()).error().code == Errc::kVersion);
        page.page().magic = 0;
        CHECK(read_links(page.data()).error().code == Errc::kCorrupt);
    }

    TEST_CASE("every number that a client could have scribbled is checked") {
        const std::function<void(LinkImage&)> damages[] = {
            [](LinkImage& links) { links.node_count = 0; },
            [](LinkImage& links) { links.node_count = kLinkNodes + 1; },
            [](LinkImage& links) { links.channel_count = kLinkChannels + 1; },
            [](LinkImage& links) { links.slow_motion = 0; },
            [](LinkImage& links) { std::strcpy(links.name, "../evil"); },
            [](LinkImage& links) { links.name[0] = '\0'; },
            [](LinkImage& links) { std::memset(links.name, 'a', sizeof links.name); },
            [](LinkImage& links) { links.routes[0].read_latency_ns = 2'000'000'000; },
            [](LinkImage& links) { links.routes[0].write_latency_ns = 2'000'000'000; },
            [](LinkImage& links) { links.routes[0].hop_count = kLinkHops + 1; },
            [](LinkImage& links) { links.routes[0].hops[0].channel = 1; },
            [](LinkImage& links) { links.routes[0].hops[0].permille = 1001; },
            [](LinkImage& links) { links.channels[0].name[0] = '\0'; },
            [](LinkImage& links) { links.channels[0].read_ns_per_byte = NAN; },
            [](LinkImage& links) { links.channels[0].write_ns_per_byte = -1; },
            [](LinkImage& links) { links.channels[0].write_ns_per_byte = INFINITY; },
            [](LinkImage& links) { links.channels[0].knee_loss_permille = 1001; },
        };
        CHECK(check_links(shared_link(1, 1, 1, 1, 1)).ok());
        int number = 0;
        for (const auto& damage : damages) {
            CAPTURE(number++);
            LinkImage links = shared_link(1, 1, 1, 1, 1);
            damage(links);
            CHECK(check_links(links).error().code == Errc::kCorrupt);
        }
    }
}
