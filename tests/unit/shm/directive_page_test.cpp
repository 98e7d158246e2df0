#include "libfabricshm/shm/directive_page.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>

using namespace fabricshm;

namespace {

struct DirectiveStorage {
    alignas(4096) std::byte bytes[kPageFileBytes];

    DirectiveStorage() {
        std::memset(bytes, 0xff, sizeof bytes);
        format_directives(bytes);
    }
    DirectivePage& page() { return *reinterpret_cast<DirectivePage*>(bytes); }
};

DirectiveImage halves(std::uint64_t serial) {
    DirectiveImage image{};
    image.serial = serial;
    image.decision = 17;
    image.group_id = 4;
    image.world = 2;
    image.sync_interval = 8;
    image.batch_share[0] = image.batch_share[1] = 0.5;
    image.work_units[0] = 3;
    return image;
}

}  // namespace

TEST_SUITE("shm.directive_page") {
    TEST_CASE("what the daemon writes is what the session reads, once") {
        DirectiveStorage page;
        CHECK(check_directive_page(page.bytes).ok());
        DirectiveImage read{};
        std::uint64_t seen = 0;
        CHECK(read_directives(page.bytes, read, seen) == PageRead::kUnchanged);
        const DirectiveImage written = halves(1);
        write_directives(page.bytes, written);
        CHECK(read_directives(page.bytes, read, seen) == PageRead::kFresh);
        CHECK(std::memcmp(&read, &written, sizeof read) == 0);
        CHECK(read_directives(page.bytes, read, seen) == PageRead::kUnchanged);
    }

    TEST_CASE("quotas are read as written, and impossible ones not at all") {
        DirectiveStorage page;
        QuotaImage read{};
        std::uint64_t seen = 0;
        CHECK(read_quotas(page.bytes, read, seen) == PageRead::kUnchanged);
        const QuotaImage written{3, {100, 60, 80, 7'000}, {kNoLimit, kNoLimit, 5, 0}};
        write_quotas(page.bytes, written);
        CHECK(read_quotas(page.bytes, read, seen) == PageRead::kFresh);
        CHECK(std::memcmp(&read, &written, sizeof read) == 0);
        CHECK(read_quotas(page.bytes, read, seen) == PageRead::kUnchanged);
        QuotaImage bad = written;
        bad.user.limit_bytes = 10;
        write_quotas(page.bytes, bad);
        CHECK(read_quotas(page.bytes, read, seen) == PageRead::kTorn);
        CHECK(read.user.limit_bytes == kNoLimit);
        // The directives next to them are not touched.
        DirectiveImage directives{};
        std::uint64_t none = 0;
        CHECK(read_directives(page.bytes, directives, none) == PageRead::kUnchanged);
    }

    TEST_CASE("a page of another kind or version is refused") {
        DirectiveStorage page;
        page.page().version = kDirectiveVersion + 1;
        CHECK(check_directive_page(page.bytes).error().code == Errc::kVersion);
        page.page().magic = 0;
        CHECK(check_directive_page(page.bytes).error().code == Errc::kCorrupt);
    }

    TEST_CASE("impossible directives are refused, and a reader keeps what it had") {
        const std::function<void(DirectiveImage&)> damages[] = {
            [](DirectiveImage& image) { image.world = -1; },
            [](DirectiveImage& image) { image.world = kPeersMax + 1; },
            [](DirectiveImage& image) { image.batch_share[0] = NAN; },
            [](DirectiveImage& image) { image.batch_share[0] = -0.5; },
            [](DirectiveImage& image) { image.batch_share[0] = 0.6; },
            [](DirectiveImage& image) { image.batch_share[1] = INFINITY; },
            [](DirectiveImage& image) { image.batch_share[2] = 1e-9; },
            [](DirectiveImage& image) { image.work_units[2] = 1; },
        };
        CHECK(check_directives(halves(1)).ok());
        CHECK(check_directives(DirectiveImage{}).ok());
        for (const auto& damage : damages) {
            DirectiveImage image = halves(2);
            damage(image);
            CHECK(check_directives(image).error().code == Errc::kInvalid);
            DirectiveStorage page;
            write_directives(page.bytes, image);
            DirectiveImage read = halves(1);
            std::uint64_t seen = 0;
            CHECK(read_directives(page.bytes, read, seen) == PageRead::kTorn);
            CHECK(read.serial == 1);
        }
    }
}
