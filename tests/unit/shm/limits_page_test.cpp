#include "libfabricshm/shm/limits_page.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <thread>

TEST_SUITE_BEGIN("shm.limits_page");

using namespace fabricshm;

namespace {

std::unique_ptr<LimitsPage> new_page() {
    auto page = std::make_unique<LimitsPage>();
    format_limits(*page);
    return page;
}

}  // namespace

TEST_CASE("a page without limits yet says nothing") {
    const auto page = new_page();
    CHECK(is_limits_page(*page));
    CHECK(!read_limits(*page));
}

TEST_CASE("what was written is read, and every change raises the serial") {
    const auto page = new_page();
    Limits limits;
    limits.quota_bytes = 100;
    limits.target_bytes = 70;
    limits.context_bytes = 5;
    limits.share_percent = 30;
    limits.configured_bytes = 90;
    limits.configured_percent = 40;
    write_limits(*page, limits);
    write_limits(*page, limits);
    const auto found = read_limits(*page);
    REQUIRE(found);
    CHECK(found->serial == 2);
    CHECK(found->quota_bytes == 100);
    CHECK(found->target_bytes == 70);
    CHECK(found->grant_bytes() == 70);
    CHECK(found->context_bytes == 5);
    CHECK(found->share_percent == 30);
    CHECK(found->configured_bytes == 90);
    CHECK(found->configured_percent == 40);
}

TEST_CASE("a writer that died in the middle of a change leaves the limits of before") {
    const auto page = new_page();
    Limits limits;
    limits.quota_bytes = limits.target_bytes = 100;
    write_limits(*page, limits);
    // The next image is the other one; half of it is there when the daemon dies.
    page->image[0][0].store(7);
    const auto found = read_limits(*page);
    REQUIRE(found);
    CHECK(found->quota_bytes == 100);
    limits.quota_bytes = 200;
    write_limits(*page, limits);  // its successor
    CHECK(read_limits(*page)->quota_bytes == 200);
}

TEST_CASE("a reader never sees half of a change") {
    const auto page = new_page();
    Limits limits;
    write_limits(*page, limits);
    std::atomic<bool> stop{false};
    std::thread writer([&] {
        for (std::uint64_t i = 1; !stop.load(); ++i) {
            limits.quota_bytes = limits.target_bytes = limits.context_bytes = i;
            limits.share_percent = limits.configured_bytes = i;
            limits.configured_percent = i;
            write_limits(*page, limits);
        }
    });
    int torn = 0;
    int seen = 0;
    for (int i = 0; i < 20000; ++i) {
        const auto found = read_limits(*page);
        if (!found) continue;
        ++seen;
        // The first image has the default share of 100.
        const bool is_whole = found->quota_bytes == found->target_bytes &&
                              found->quota_bytes == found->context_bytes &&
                              found->quota_bytes == found->configured_bytes &&
                              found->quota_bytes == found->configured_percent;
        torn += is_whole ? 0 : 1;
    }
    stop = true;
    writer.join();
    CHECK(torn == 0);
    CHECK(seen > 0);
}

TEST_SUITE_END();
