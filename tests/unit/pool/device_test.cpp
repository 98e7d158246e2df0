#include "fabricd/pool/device.hpp"

#include <doctest/doctest.h>

#include "tests/support/registry_host.hpp"

using namespace test_support;

namespace {

DeviceSpec spec(const char* name, Bytes quota) {
    DeviceSpec device;
    device.name = name;
    device.kind = "gpu";
    device.memory_bytes = 1 << 20;
    device.quota_bytes = quota;
    return device;
}

/// A registry that knows gpu0 with a quota of four units of memory.
struct Host : RegistryHost {
    Host() { begin({spec("gpu0", 4 * 4096), spec("fpga0", 1 << 20)}); }

    void begin(std::vector<DeviceSpec> devices) {
        memory = NotedMemory{};
        work = NotedWork{};
        registry = std::make_unique<Registry>(
            limits, Registry::Parts{&journal, &memory, &work, std::move(devices)});
        work.registry = registry.get();
    }
    void restart_with(std::vector<DeviceSpec> devices) {
        const auto image = replay(journal.contents);
        begin(std::move(devices));
        REQUIRE(registry->restore(image.value(), kNow, 10s).ok());
    }
    SessionId on(const char* device, const Peer& peer = kAlice) {
        return registry->open_session(peer, "test", kToken, kNow, device).value();
    }
    DeviceView view(const std::string& name) const {
        for (const DeviceView& device : registry->snapshot(kNow).devices) {
            if (device.spec.name == name) return device;
        }
        return {};
    }
};

}  // namespace

TEST_SUITE("pool.device") {
    TEST_CASE("sessions of one device share its quota to the byte") {
        Host host;
        const SessionId first = host.on("gpu0");
        const SessionId second = host.on("gpu0", kBob);
        const ArenaId arena = host.arena(first);
        host.arena(second);
        CHECK(host.region(first, arena, 3 * 4096).ok());
        const auto refused = host.region(second, arena, 2 * 4096);
        CHECK(refused.error().code == Errc::kNoMemory);
        CHECK(std::string(refused.error().step) == "memory quota of the device");
        CHECK(host.region(second, arena, 4096).ok());
        CHECK(host.view("gpu0").bytes_used == 4 * 4096);
        CHECK(host.view("gpu0").sessions == 2);
        CHECK(host.view("fpga0").bytes_used == 0);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a session without a device has no quota of one") {
        Host host;
        const SessionId session = host.session(kAlice);
        const ArenaId arena = host.arena(session);
        CHECK(host.region(session, arena, 20 * 4096).ok());
        CHECK(host.view("gpu0").bytes_used == 0);
    }

    TEST_CASE("an unknown device is refused and costs no session") {
        Limits one;
        one.max_sessions = 1;
        RegistryHost host(one);
        const auto refused = host.registry->open_session(kAlice, "test", kToken, kNow, "gpu7");
        CHECK(refused.error().code == Errc::kNotFound);
        CHECK(host.registry->open_session(kAlice, "test", kToken, kNow).ok());
    }

    TEST_CASE("freed regions and ended sessions give the quota back") {
        Host host;
        const SessionId session = host.on("gpu0");
        const SessionId other = host.session(kBob);
        const ArenaId arena = host.arena(session);
        host.arena(other);
        const auto region = host.region(session, arena, 4 * 4096);
        REQUIRE(region.ok());
        REQUIRE(host.registry->free_region(session, arena, RegionId{region->region_id}).ok());
        CHECK(host.view("gpu0").bytes_used == 0);
        REQUIRE(host.region(session, arena, 4 * 4096).ok());
        host.registry->end_session(session, "test");
        CHECK(host.view("gpu0").bytes_used == 0);
        CHECK(host.view("gpu0").sessions == 0);
    }

    TEST_CASE("a failed write of the journal charges nothing") {
        Host host;
        const SessionId session = host.on("gpu0");
        const ArenaId arena = host.arena(session);
        host.journal.broken = true;
        CHECK_FALSE(host.region(session, arena).ok());
        CHECK(host.view("gpu0").bytes_used == 0);
        CHECK_FALSE(host.registry->open_session(kBob, "test", kToken, kNow, "gpu0").ok());
        CHECK(host.view("gpu0").sessions == 1);
    }

    TEST_CASE("use is counted again after a restart, also against a lower quota") {
        Host host;
        const SessionId session = host.on("gpu0");
        const ArenaId arena = host.arena(session);
        REQUIRE(host.region(session, arena, 3 * 4096).ok());
        host.restart_with({spec("gpu0", 2 * 4096)});
        CHECK(host.view("gpu0").bytes_used == 3 * 4096);
        CHECK(host.view("gpu0").sessions == 1);
        REQUIRE(host.registry->resume_session(session, kAlice, kToken).ok());
        CHECK(host.region(session, arena).error().code == Errc::kNoMemory);
    }

    TEST_CASE("a device that left the file keeps its sessions, gets no memory and then goes") {
        Host host;
        const SessionId session = host.on("gpu0");
        const ArenaId arena = host.arena(session);
        REQUIRE(host.region(session, arena).ok());
        host.restart_with({spec("fpga0", 4096)});
        CHECK_FALSE(host.view("gpu0").configured);
        CHECK(host.view("gpu0").bytes_used == 4096);
        REQUIRE(host.registry->resume_session(session, kAlice, kToken).ok());
        CHECK(host.region(session, arena).error().code == Errc::kNoMemory);
        CHECK_FALSE(host.registry->open_session(kBob, "test", kToken, kNow, "gpu0").ok());
        host.registry->end_session(session, "test");
        CHECK(host.view("gpu0").spec.name.empty());
    }

    TEST_CASE("devices are shown in the order of the file") {
        const DeviceTable table({spec("z", 1), spec("a", 1), spec("m", 1)});
        const auto views = table.view(TimePoint{});
        REQUIRE(views.size() == 3);
        CHECK(views[0].spec.name == "z");
        CHECK(views[2].spec.name == "m");
    }
}
