#include "libfabricshm/vgpu/charge_table.hpp"

#include <map>
#include <utility>

#include "libfabricshm/vgpu/driver.hpp"

namespace fabricshm::cuda {

void ChargeTable::put(std::uint64_t key, const Charge& charge) {
    Charge missed;
    {
        const std::lock_guard lock(mutex_);
        missed = std::exchange(charges_[key], charge);
    }
    // Outside the lock: the ledger has one of its own, which a stopped process may keep for long.
    if (missed.vgpu != nullptr) missed.vgpu->release(missed.bytes);
}

bool ChargeTable::reopen(std::uint64_t key) {
    const std::lock_guard lock(mutex_);
    const auto found = charges_.find(key);
    if (found == charges_.end()) return false;
    ++found->second.opens;
    return true;
}

bool ChargeTable::reopen_or_put(std::uint64_t key, const Charge& charge) {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] = charges_.try_emplace(key, charge);
    if (!is_new) ++entry->second.opens;
    return !is_new;
}

std::optional<Charge> ChargeTable::take(std::uint64_t key) {
    const std::lock_guard lock(mutex_);
    const auto found = charges_.find(key);
    if (found == charges_.end()) return std::nullopt;
    Charge charge = found->second;
    if (charge.opens > 1) {
        // By the copy's count put_back() knows that the charge itself is still in the table.
        --found->second.opens;
        charge.bytes = 0;
    } else {
        charges_.erase(found);
    }
    return charge;
}

void ChargeTable::put_back(std::uint64_t key, const Charge& charge) {
    if (charge.opens > 1) {
        // Nothing to be done where it was closed for good meanwhile: then the driver knows it no
        // more.
        (void)reopen(key);
    } else {
        put(key, charge);
    }
}

// By a scan of all of them: contexts end seldom, and an index by context would cost each call.
ChargeTable::Taken ChargeTable::take_context(Handle context) {
    Taken taken;
    const std::lock_guard lock(mutex_);
    for (auto entry = charges_.begin(); entry != charges_.end();) {
        if (entry->second.context != context) {
            ++entry;
            continue;
        }
        taken.push_back(*entry);
        entry = charges_.erase(entry);
    }
    return taken;
}

void release_all(const ChargeTable::Taken& taken) {
    // A context has thousands of allocations, and each release takes the ledger's lock.
    std::map<Vgpu*, std::uint64_t> sums;
    for (const auto& [key, charge] : taken) sums[charge.vgpu] += charge.bytes;
    for (const auto& [vgpu, bytes] : sums) vgpu->release(bytes);
}

// Never destroyed: programs free memory from destructors that run after ours would.
ChargeTable& pointers() {
    static ChargeTable& table = *new ChargeTable;
    return table;
}

ChargeTable& handles() {
    static ChargeTable& table = *new ChargeTable;
    return table;
}

ChargeTable& executables() {
    static ChargeTable& table = *new ChargeTable;
    return table;
}

namespace {

// A driver that does not say where it lies: on the current device, where most of it is opened.
Vgpu* vgpu_under(Pointer pointer) {
    int device = -1;
    const auto ask = helpers().pointer_attribute;
    const bool is_known = ask != nullptr && ask(&device, kPointerDevice, pointer) == kSuccess;
    return is_known ? vgpu_of(device) : current_vgpu();
}

}  // namespace

bool charge_opened(Pointer pointer) {
    if (!any_vgpu()) return true;
    Pointer base = 0;
    std::size_t bytes = 0;
    const auto ask = helpers().address_range;
    if (ask == nullptr || ask(&base, &bytes, pointer) != kSuccess) return true;
    // Open here already: the driver answers with the same address and counts how often.
    if (pointers().reopen(pointer)) return true;
    Vgpu* const vgpu = vgpu_under(pointer);
    if (vgpu == nullptr) return true;
    const Charge charge{vgpu, device_bytes(bytes), current_context()};
    if (!vgpu->reserve(charge.bytes)) return false;
    // Another thread may have opened it since: its charge is enough for both.
    if (pointers().reopen_or_put(pointer, charge)) {
        vgpu->roll_back(charge.bytes);
    } else {
        vgpu->commit(charge.bytes);
    }
    return true;
}

Handle current_context() noexcept {
    Handle context = nullptr;
    const auto current = helpers().current_context;
    return current != nullptr && current(&context) == kSuccess ? context : nullptr;
}

}  // namespace fabricshm::cuda
