// The usage ledger of a vGPU, whose every word its tenants can write, and the page of its limits.
// What the daemon and other tenants do with a ledger of any words ends, and stays within limits.

#include "libfabricshm/shm/usage_ledger.hpp"

#include <memory>

#include "tests/fuzz/fuzz.hpp"

using namespace fabricshm;

namespace {

constexpr std::uint64_t kBytesCap = std::uint64_t{1} << 62;  // as in usage_ledger.cpp
// One slot costs a look into /proc.
constexpr unsigned kSlotsUsed = 8;

struct alignas(4096) Pages {
    std::byte ledger[kLedgerBytes];
    std::byte limits[kLimitsPageBytes];
};

template <typename T>
void scribble(T& file, fuzz::Input& input, std::size_t words) {
    for (unsigned left = input.below(16); left > 0; --left) {
        const std::size_t at = input.number<std::uint16_t>() % words;
        const auto value = input.number<std::uint64_t>();
        std::memcpy(reinterpret_cast<std::byte*>(&file) + 8 * at, &value, sizeof value);
    }
}

// A slot with a pid: this process's, of a dead one, or any number.
void fill_slots(LedgerFile& file, fuzz::Input& input, const ProcessIdentity& self) {
    for (unsigned left = input.below(kSlotsUsed); left > 0; --left) {
        LedgerSlot& slot = file.slots[input.number<std::uint8_t>()];
        const unsigned who = input.below(4);
        const bool own = who < 2;
        slot.pid.store(own ? static_cast<std::uint64_t>(self.pid) : input.number<std::uint64_t>());
        slot.start_time.store(who == 0 ? self.start_time : input.number<std::uint16_t>());
        slot.pid_namespace.store(who < 3 ? self.pid_namespace : input.number<std::uint64_t>());
        slot.charged.store(input.number<std::uint64_t>());
    }
}

void require_total(const UsageLedger& ledger) {
    FUZZ_REQUIRE(ledger.total() <= kBytesCap);
    FUZZ_REQUIRE(ledger.uses().size() <= LedgerFile::kSlots);
}

void act(UsageLedger& ledger, const LimitsPage& limits, fuzz::Input& input, int& slot) {
    const auto bytes = input.number<std::uint64_t>() >> input.below(64);
    const auto granted = read_limits(limits);
    const std::uint64_t quota = granted ? granted->grant_bytes() : 0;
    switch (input.below(6)) {
        case 0: {
            const auto claimed = ledger.claim();
            if (claimed.ok()) slot = *claimed;
            FUZZ_REQUIRE(!claimed.ok() || (slot >= 0 && slot < LedgerFile::kSlots));
            return;
        }
        case 1:
            if (slot < 0) return;
            if (ledger.charge(slot, bytes, limits).ok()) FUZZ_REQUIRE(bytes <= quota);
            return;
        case 2: {
            if (slot < 0) return;
            const auto taken = ledger.charge_up_to(slot, bytes, limits);
            if (taken.ok()) FUZZ_REQUIRE(*taken <= bytes && *taken <= quota);
            return;
        }
        case 3:
            if (slot >= 0) ledger.release(slot, bytes);
            return;
        case 4:
            if (slot >= 0) ledger.refused(slot, bytes);
            return;
        default: {
            const auto settled = ledger.settled_total();
            if (settled.ok()) FUZZ_REQUIRE(*settled <= kBytesCap && ledger.total() == *settled);
            return;
        }
    }
}

void run(fuzz::Data data) {
    static const ProcessIdentity self = own_identity().value();
    static const auto pages = std::make_unique<Pages>();
    std::memset(pages.get(), 0, sizeof(Pages));
    fuzz::Input input(data);
    auto& file = *reinterpret_cast<LedgerFile*>(pages->ledger);
    auto& limits = *reinterpret_cast<LimitsPage*>(pages->limits);
    UsageLedger::format(file, 1);
    format_limits(limits);
    Limits granted;
    granted.quota_bytes = granted.target_bytes = input.number<std::uint32_t>();
    write_limits(limits, granted);
    fill_slots(file, input, self);
    scribble(file, input, sizeof(LedgerFile) / 8);
    scribble(limits, input, sizeof(LimitsPage) / 8);
    if (!UsageLedger::is_ledger(file) || !is_limits_page(limits)) return;
    UsageLedger ledger(file, self, Duration::zero());
    int slot = -1;
    for (int step = 0; step < 32 && !input.empty(); ++step) {
        act(ledger, limits, input, slot);
        require_total(ledger);
    }
    // As the daemon does, for each process that holds something.
    (void)ledger.reclaim_dead();
    for (const LedgerUse& use : ledger.uses()) (void)ledger.reclaim(use.process);
    require_total(ledger);
}

std::vector<fuzz::Buffer> seeds() {
    std::vector<fuzz::Buffer> all;
    for (unsigned kind = 0; kind < 4; ++kind) {
        fuzz::Buffer input;
        fuzz::append(input, std::uint32_t{1 << 20});
        if (kind == 0) {
            input.push_back(std::byte{0});
        } else {
            input.push_back(std::byte{1});
            input.push_back(std::byte{3});
            input.push_back(static_cast<std::byte>(kind));
            for (int i = 0; i < 3; ++i) fuzz::append(input, std::uint64_t{4096});
        }
        input.push_back(std::byte{0});
        input.push_back(std::byte{0});
        for (unsigned act = 0; act < 12; ++act) {
            fuzz::append(input, std::uint64_t{64} << 40);
            input.push_back(std::byte{32});
            input.push_back(static_cast<std::byte>((act + kind) % 6));
        }
        all.push_back(std::move(input));
    }
    return all;
}

const fuzz::Registered kTarget({"ledger", run, seeds});

}  // namespace
