#include "fabricd/kubernetes/pool_devices.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "libfabricshm/base/reason.hpp"

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::kGiB;
using fabricshm::kMiB;

namespace {

PoolState pool_of(fabricshm::Bytes bytes) {
    return {bytes, false};
}

Errc code_of(const PoolDevices& devices, const std::vector<DeviceIds>& containers) {
    const auto checked = devices.check_allocation(containers);
    return checked.ok() ? Errc::kOk : checked.error().code;
}

}  // namespace

TEST_SUITE("kubernetes.pool_devices") {
    TEST_CASE("there is a device for each whole GiB above the reserve") {
        struct Case {
            fabricshm::Bytes capacity, reserve;
            int count;
        };
        for (const Case& one :
             {Case{0, 0, 0}, Case{kGiB - 1, 0, 0}, Case{kGiB, 0, 1}, Case{3 * kGiB - 1, 0, 2},
              Case{3 * kGiB, kMiB, 2}, Case{3 * kGiB, 2 * kGiB, 1}, Case{3 * kGiB, 4 * kGiB, 0},
              Case{~0ULL, 0, kMaxPoolDevices}, Case{kGiB, ~0ULL, 0}}) {
            PoolDevices devices(one.reserve);
            CHECK(devices.update(pool_of(one.capacity)) == (one.count != 0));
            CHECK(devices.healthy() == one.count);
            CHECK(devices.list().size() == static_cast<std::size_t>(one.count));
        }
    }

    TEST_CASE("devices that were offered stay in the list, and those not backed are unhealthy") {
        PoolDevices devices(0);
        CHECK_FALSE(devices.update(std::nullopt));
        CHECK(devices.update(pool_of(3 * kGiB)));
        CHECK_FALSE(devices.update(pool_of(3 * kGiB + kMiB)));
        CHECK(devices.update(pool_of(2 * kGiB)));
        const auto list = devices.list();
        REQUIRE(list.size() == 3);
        CHECK(list[1].is_healthy);
        CHECK_FALSE(list[2].is_healthy);
        CHECK(list[2].id == "gib-2");
        CHECK(devices.update(std::nullopt));
        CHECK(devices.healthy() == 0);
        CHECK(devices.count() == 3);
        CHECK(devices.update(pool_of(4 * kGiB)));
        CHECK(devices.healthy() == 4);
    }

    TEST_CASE("a draining daemon backs none") {
        PoolDevices devices(0);
        devices.update(pool_of(2 * kGiB));
        CHECK(devices.update(PoolState{2 * kGiB, true}));
        CHECK(devices.healthy() == 0);
        CHECK(code_of(devices, {{"gib-0"}}) == Errc::kDaemon);
    }

    TEST_CASE("an allocation has known, healthy devices, each once, and some for each container") {
        PoolDevices devices(0);
        CHECK(code_of(devices, {{"gib-0"}}) == Errc::kInvalid);
        devices.update(pool_of(3 * kGiB));
        CHECK(code_of(devices, {{"gib-2", "gib-0"}, {"gib-1"}}) == Errc::kOk);
        CHECK(code_of(devices, {}) == Errc::kOk);
        CHECK(code_of(devices, {{}}) == Errc::kInvalid);
        CHECK(code_of(devices, {{"gib-0", "gib-0"}}) == Errc::kInvalid);
        CHECK(code_of(devices, {{"gib-0"}, {"gib-0"}}) == Errc::kInvalid);
        for (const char* id : {"gib-3", "gib-", "gib-00", "gib--0", "gib-+1", "gib-1 ", " gib-1",
                               "gib-1x", "1", "", "gib-2147483648", "gib-18446744073709551616"}) {
            CHECK(code_of(devices, {{id}}) == Errc::kInvalid);
        }
        devices.update(pool_of(kGiB));
        CHECK(code_of(devices, {{"gib-0"}}) == Errc::kOk);
        CHECK(code_of(devices, {{"gib-0", "gib-1"}}) == Errc::kDaemon);
    }

    TEST_CASE("an error names what of an id can be printed") {
        PoolDevices devices(0);
        const auto checked = devices.check_allocation(std::vector<DeviceIds>{{"a\nb"}});
        CHECK(explanation_of(checked.error()) == "no device 'a?b': there are 0, gib-0 onwards");
    }

    TEST_CASE("what must be included comes first, then the lowest numbers") {
        PoolDevices devices(0);
        devices.update(pool_of(20 * kGiB));
        const auto chosen = [&](const DeviceIds& available, const DeviceIds& must, int size) {
            const auto ids = devices.preferred(available, must, size);
            return ids.ok() ? *ids : DeviceIds{"error"};
        };
        const DeviceIds some{"gib-12", "gib-3", "gib-9"};
        CHECK(chosen(some, {}, 0).empty());
        CHECK(chosen(some, {}, 2) == DeviceIds{"gib-3", "gib-9"});
        CHECK(chosen(some, {"gib-12"}, 2) == DeviceIds{"gib-12", "gib-3"});
        CHECK(chosen(some, some, 3) == some);
        for (const auto& [must, size] : std::vector<std::pair<DeviceIds, int>>{
                 {{}, 4}, {{}, -1}, {{"gib-3"}, 0}, {{"gib-1"}, 1}, {{"gib-3", "gib-3"}, 2}}) {
            CHECK(chosen(some, must, size) == DeviceIds{"error"});
        }
        CHECK(chosen({"gib-3", "gib-3"}, {}, 1) == DeviceIds{"error"});
        CHECK(chosen({"gib-20"}, {}, 1) == DeviceIds{"error"});
    }
}
