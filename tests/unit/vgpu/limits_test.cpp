#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <filesystem>

#include "fabricd/vgpu/vgpu_limits.hpp"
#include "tests/support/temporary_directory.hpp"

TEST_SUITE_BEGIN("vgpu.limits");

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::kMiB;
using fabricshm::UsageLedger;
using test_support::TemporaryDirectory;

namespace {

VgpuSpec spec(const char* name, const char* gpu, Bytes quota) {
    VgpuSpec made;
    made.name = name;
    made.gpu = gpu;
    made.device_bytes = 100 * kMiB;
    made.reserve_bytes = 10 * kMiB;
    made.quota_bytes = quota;
    return made;
}

std::unique_ptr<VgpuLimits> open(const TemporaryDirectory& folder, std::vector<VgpuSpec> specs) {
    return VgpuLimits::open(folder.path(), specs).value();
}

// A process of the vGPU: this one, with the descriptors that a process gets.
struct Tenant {
    explicit Tenant(const VgpuLimits& limits, const char* name)
        : files(limits.files_of(name).value()) {
        fabricshm::MapOptions read_only;
        read_only.writable = false;
        page_map = fabricshm::Mapping::map(files.limits, 0, 4096, read_only).value();
        ledger_map = fabricshm::Mapping::map(files.ledger, 0, fabricshm::kLedgerBytes, {}).value();
        ledger = std::make_unique<UsageLedger>(
            *reinterpret_cast<fabricshm::LedgerFile*>(ledger_map.data()),
            fabricshm::own_identity().value());
        slot = ledger->claim().value();
    }
    bool charge(Bytes bytes) {
        const auto& page = *reinterpret_cast<const fabricshm::LimitsPage*>(page_map.data());
        return ledger->charge(slot, bytes, page).ok();
    }

    VgpuLimits::Files files;
    fabricshm::Mapping page_map;
    fabricshm::Mapping ledger_map;
    std::unique_ptr<UsageLedger> ledger;
    int slot = -1;
};

}  // namespace

TEST_CASE("the quotas of one GPU stay below its memory less the reserve") {
    const TemporaryDirectory folder;
    const auto limits = open(
        folder, {spec("a", "0", 40 * kMiB), spec("b", "0", 40 * kMiB), spec("c", "1", 90 * kMiB)});
    CHECK(limits->resize("a", 51 * kMiB).error().code == Errc::kNoMemory);
    CHECK(limits->resize("a", 50 * kMiB).ok());
    CHECK(limits->resize("b", 41 * kMiB).error().code == Errc::kNoMemory);
    CHECK(limits->resize("c", 90 * kMiB).ok());
    CHECK(limits->resize("c", 0).error().code == Errc::kInvalid);
    CHECK(limits->resize("d", 1).error().code == Errc::kNotFound);
    CHECK(limits->resize("a", ~Bytes{0}).error().code == Errc::kNoMemory);
    const TemporaryDirectory other;
    const std::vector<VgpuSpec> too_much = {spec("a", "0", 46 * kMiB), spec("b", "0", 46 * kMiB)};
    CHECK(VgpuLimits::open(other.path(), too_much).error().code == Errc::kInvalid);
}

TEST_CASE("a larger quota is there on the next call of who was refused") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB)});
    Tenant tenant(*limits, "a");
    CHECK(!tenant.charge(50 * kMiB));
    REQUIRE(limits->resize("a", 50 * kMiB).ok());
    CHECK(tenant.charge(50 * kMiB));
}

TEST_CASE("a smaller quota is announced at once and follows the use, never below it") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB), spec("b", "0", 40 * kMiB)});
    Tenant tenant(*limits, "a");
    REQUIRE(tenant.charge(30 * kMiB));
    REQUIRE(limits->resize("a", 20 * kMiB).ok());
    CHECK(!tenant.charge(1));
    CHECK(limits->list()[0].quota_bytes == 30 * kMiB);
    CHECK(limits->list()[0].target_bytes == 20 * kMiB);
    // What it gave up already is there for others.
    CHECK(limits->resize("b", 61 * kMiB).error().code == Errc::kNoMemory);
    CHECK(limits->resize("b", 60 * kMiB).ok());
    tenant.ledger->release(tenant.slot, 5 * kMiB);
    CHECK(limits->step());
    CHECK(limits->list()[0].quota_bytes == 25 * kMiB);
    tenant.ledger->release(tenant.slot, 10 * kMiB);
    limits->step();
    CHECK(!limits->step());
    CHECK(limits->list()[0].quota_bytes == 20 * kMiB);
    CHECK(tenant.charge(5 * kMiB));
    CHECK(!tenant.charge(1));
}

TEST_CASE("a quota that grows again while it shrinks is in force at once") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB)});
    Tenant tenant(*limits, "a");
    REQUIRE(tenant.charge(30 * kMiB));
    REQUIRE(limits->resize("a", 20 * kMiB).ok());
    REQUIRE(limits->resize("a", 35 * kMiB).ok());
    CHECK(tenant.charge(5 * kMiB));
    CHECK(!tenant.charge(1));
}

TEST_CASE("a daemon started again goes on with quotas, shares and use") {
    const TemporaryDirectory folder;
    auto limits = open(folder, {spec("a", "0", 40 * kMiB)});
    Tenant tenant(*limits, "a");
    REQUIRE(tenant.charge(30 * kMiB));
    REQUIRE(limits->resize("a", 50 * kMiB).ok());
    REQUIRE(limits->set_share("a", 30).ok());
    limits.reset();
    CHECK(tenant.charge(5 * kMiB));
    limits = open(folder, {spec("a", "0", 40 * kMiB)});
    CHECK(limits->list()[0].quota_bytes == 50 * kMiB);
    CHECK(limits->list()[0].share_percent == 30);
    CHECK(limits->list()[0].used_bytes == 35 * kMiB);
    CHECK(limits->processes().size() == 1);
    REQUIRE(limits->resize("a", 60 * kMiB).ok());
    CHECK(tenant.charge(25 * kMiB));
    // Another configuration counts more than what was set live.
    limits.reset();
    limits = open(folder, {spec("a", "0", 45 * kMiB)});
    CHECK(limits->list()[0].target_bytes == 45 * kMiB);
}

TEST_CASE("files that are not of this boot or not whole are made anew") {
    const TemporaryDirectory folder;
    open(folder, {spec("a", "0", 40 * kMiB)});
    const std::string ledger = folder.file("a.usage");
    std::filesystem::resize_file(ledger, 100);
    CHECK(open(folder, {spec("a", "0", 40 * kMiB)})->list()[0].used_bytes == 0);
    CHECK(std::filesystem::file_size(ledger) == fabricshm::kLedgerBytes);
    struct stat status {};
    REQUIRE(::stat(ledger.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("a process can't map the limits for writing") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB)});
    const auto files = limits->files_of("a").value();
    void* data = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, files.limits.get(), 0);
    CHECK(data == MAP_FAILED);
    CHECK(limits->files_of("b").error().code == Errc::kNotFound);
}

TEST_CASE("a share is 1 to 100 per cent") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB)});
    CHECK(limits->set_share("a", 0).error().code == Errc::kInvalid);
    CHECK(limits->set_share("a", 101).error().code == Errc::kInvalid);
    CHECK(limits->set_share("b", 50).error().code == Errc::kNotFound);
    CHECK(limits->set_share("a", 1).ok());
}

TEST_CASE("a ledger full of lies spoils the figures of its own vGPU and nothing else") {
    const TemporaryDirectory folder;
    const auto limits = open(folder, {spec("a", "0", 40 * kMiB), spec("b", "0", 40 * kMiB)});
    Tenant tenant(*limits, "a");
    for (auto& slot : tenant.ledger->file().slots) {
        slot.pid = 1;
        slot.charged = ~Bytes{0};
    }
    REQUIRE(limits->resize("a", 20 * kMiB).ok());
    limits->step();
    CHECK(limits->list()[0].quota_bytes == 40 * kMiB);  // "in use": it can't shrink
    CHECK(limits->resize("b", 50 * kMiB).ok());
    CHECK(limits->list()[1].used_bytes == 0);
}

TEST_SUITE_END();
