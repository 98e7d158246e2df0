// Quotas of vGPUs that change together.

#include <doctest/doctest.h>

#include <random>
#include <thread>

#include "fabricd/vgpu/vgpu_limits.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/vgpu_tenant.hpp"

TEST_SUITE_BEGIN("vgpu.shift");

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::kMiB;
using Tenant = test_support::VgpuTenant;

namespace {

VgpuSpec spec(const char* name, Bytes quota) {
    VgpuSpec made;
    made.name = name;
    made.gpu = "0";
    made.device_bytes = 100 * kMiB;
    made.reserve_bytes = 10 * kMiB;
    made.quota_bytes = quota;
    return made;
}

// Three vGPUs that leave 10 MiB of their GPU ungranted, and a process on the first of them.
struct Host {
    test_support::TemporaryDirectory folder;
    std::unique_ptr<VgpuLimits> limits =
        VgpuLimits::open(folder.path(),
                         {spec("a", 40 * kMiB), spec("b", 20 * kMiB), spec("c", 20 * kMiB)})
            .value();
    Tenant tenant{*limits, "a"};

    /// In MiB.
    Errc shift(std::vector<VgpuShift> shifts) {
        for (VgpuShift& shift : shifts) {
            shift.before_bytes *= kMiB;
            shift.after_bytes *= kMiB;
        }
        return limits->shift(shifts).error().code;
    }
    std::vector<Bytes> granted() const {
        std::vector<Bytes> all;
        for (const VgpuView& view : limits->list()) {
            all.push_back(std::min(view.quota_bytes, view.target_bytes) / kMiB);
        }
        return all;
    }
    Bytes sum() const {
        Bytes all = 0;
        for (const VgpuView& view : limits->list()) all += view.quota_bytes;
        return all;
    }
    using Quotas = std::vector<Bytes>;
};

}  // namespace

TEST_CASE("one takes what another one gives, in whichever order they are named") {
    Host host;
    REQUIRE(host.tenant.charge(30 * kMiB));
    CHECK(host.shift({{"b", 20, 25}, {"a", 40, 30}, {"c", 20, 25}}) == Errc::kOk);
    CHECK(host.granted() == Host::Quotas{30, 25, 25});
    CHECK(host.sum() == 80 * kMiB);
    // And what no vGPU has, up to the reserve.
    CHECK(host.shift({{"b", 25, 36}}) == Errc::kNoMemory);
    CHECK(host.shift({{"b", 25, 31}, {"c", 25, 30}}) == Errc::kNoMemory);
    CHECK(host.granted() == Host::Quotas{30, 25, 25});
    CHECK(host.shift({{"b", 25, 30}, {"c", 25, 30}}) == Errc::kOk);
    CHECK(host.sum() == 90 * kMiB);
}

TEST_CASE("no vGPU takes what is in use by now, and the one that was to give keeps all") {
    Host host;
    REQUIRE(host.tenant.charge(35 * kMiB));
    CHECK(host.shift({{"c", 20, 15}, {"a", 40, 34}, {"b", 20, 31}}) == Errc::kBusy);
    CHECK(host.granted() == Host::Quotas{40, 20, 20});
    CHECK(host.sum() == 80 * kMiB);
    CHECK(host.tenant.charge(5 * kMiB));
    // Nor where the use can't be read, or a quota is not what it was.
    host.tenant.ledger->release(host.tenant.slot, 40 * kMiB);
    CHECK(host.shift({{"a", 39, 20}, {"b", 20, 30}}) == Errc::kBusy);
    CHECK(host.shift({{"d", 1, 2}}) == Errc::kNotFound);
    CHECK(host.shift({{"a", 40, 0}}) == Errc::kInvalid);
    host.tenant.ledger->file().lock = fabricshm::detail::lock_word(
        fabricshm::own_identity().value());  // of a live process, which does not go on
    CHECK(host.shift({{"a", 40, 20}, {"b", 20, 30}}) == Errc::kTimeout);
    host.tenant.ledger->file().lock = 0;
    CHECK(host.granted() == Host::Quotas{40, 20, 20});
}

TEST_CASE("where no vGPU takes, quotas follow their use") {
    Host host;
    REQUIRE(host.tenant.charge(35 * kMiB));
    CHECK(host.shift({{"a", 40, 30}, {"b", 20, 10}}) == Errc::kOk);
    CHECK(host.granted() == Host::Quotas{30, 10, 20});
    CHECK(host.sum() == 65 * kMiB);
    // One that shrinks can't be asked for more of it on behalf of others.
    CHECK(host.shift({{"a", 30, 25}, {"b", 10, 15}}) == Errc::kBusy);
    CHECK(host.granted() == Host::Quotas{30, 10, 20});
    host.tenant.ledger->release(host.tenant.slot, 10 * kMiB);
    CHECK(host.limits->step());
    CHECK(host.sum() == 60 * kMiB);
}

TEST_CASE("while a process takes and gives back all the time the sum is never above what it was") {
    Host host;
    const std::jthread process([&](const std::stop_token& end) {
        std::minstd_rand random(3);
        while (!end.stop_requested()) {
            const Bytes bytes = (1 + random() % 40) * kMiB;
            if (host.tenant.charge(bytes)) host.tenant.ledger->release(host.tenant.slot, bytes);
        }
    });
    std::minstd_rand random(5);
    int shifted = 0;
    int refused = 0;
    for (int i = 0; i < 100'000 && (i < 5'000 || shifted < 100 || refused < 100); ++i) {
        const auto now = host.granted();
        const Bytes a = 1 + random() % (now[0] + now[1] - 1);
        const Errc code = host.shift({{"a", now[0], a}, {"b", now[1], now[0] + now[1] - a}});
        REQUIRE((code == Errc::kOk || code == Errc::kBusy));
        if (a < now[0]) ++(code == Errc::kOk ? shifted : refused);
        REQUIRE(host.sum() == 80 * kMiB);
        REQUIRE(host.tenant.ledger->settled_total().value() <= host.limits->list()[0].quota_bytes);
    }
    CHECK(shifted >= 100);
    CHECK(refused >= 100);
}

TEST_SUITE_END();
