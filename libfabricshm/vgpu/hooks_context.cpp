// The driver's start, contexts and modules. A context costs some hundred MiB that no allocation
// shows: a configured figure is counted for each, or, without one, what NVML sees of the process
// beyond what it allocated.

#include <algorithm>
#include <iterator>
#include <mutex>

#include "libfabricshm/vgpu/charge_table.hpp"
#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/hooks.hpp"
#include "libfabricshm/vgpu/nvml.hpp"
#include "libfabricshm/vgpu/pools.hpp"
#include "libfabricshm/vgpu/self_check.hpp"
#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

namespace {

Status init(Status (*own)(unsigned int), unsigned int flags) {
    // Before the driver, where the program must not run without limits: a driver that was never
    // started also refuses what a program calls that ignores the answer of this.
    const bool is_required = is_limit_required();
    if (is_required && !attach_required()) return kSystemNotReady;
    const Status status = own(flags);
    if (status != kSuccess) return status;
    // Else after the driver: without a device there is nothing to limit, and which vGPU is which
    // device only it knows. Nothing that takes memory can be called before this.
    attach_vgpus();
    map_devices();
    if (is_required && !are_all_limited()) return kSystemNotReady;
    check_once_if_asked();
    return status;
}

template <typename Call>
Status create_context(Handle* out, Device device, Call call) {
    Vgpu* vgpu = vgpu_of(device);
    if (vgpu == nullptr) return call();
    const std::uint64_t bytes = vgpu->context_bytes();
    if (!vgpu->reserve(bytes)) return kOutOfMemory;
    const Status status = call();
    if (status != kSuccess) {
        vgpu->roll_back(bytes);
        return status;
    }
    // Of itself: take_context() then finds the context with all that was allocated in it.
    handles().put(key_of(*out), {vgpu, bytes, *out});
    vgpu->commit(bytes);
    settle_overhead(*vgpu);
    return status;
}

Status create_context_1(Status (*own)(Handle*, unsigned int, Device), Handle* out,
                        unsigned int flags, Device device) {
    return create_context(out, device, [&] { return own(out, flags, device); });
}

Status create_context_3(Status (*own)(Handle*, void*, int, unsigned int, Device), Handle* out,
                        void* affinity, int count, unsigned int flags, Device device) {
    return create_context(out, device, [&] { return own(out, affinity, count, flags, device); });
}

Status create_context_4(Status (*own)(Handle*, void*, unsigned int, Device), Handle* out,
                        void* parameters, unsigned int flags, Device device) {
    return create_context(out, device, [&] { return own(out, parameters, flags, device); });
}

// All that was allocated in a context ends with it. For a primary context, of which only afterwards
// is known whether it ended: its lock keeps the next one from starting meanwhile.
void end_context(Handle context) {
    for (ChargeTable* table : {&pointers(), &handles(), &executables()}) {
        release_all(table->take_context(context));
    }
}

// Out of the tables first, as a pointer that is freed: another thread may get a context and
// addresses of the same names as soon as the driver has let go of these.
Status destroy_context(Status (*own)(Handle), Handle context) {
    ChargeTable* const tables[] = {&pointers(), &handles(), &executables()};
    ChargeTable::Taken taken[std::size(tables)];
    for (std::size_t i = 0; i < std::size(tables); ++i) taken[i] = tables[i]->take_context(context);
    // Physical memory and pools are not in these tables: the driver keeps both beyond a context.
    const Status status = own(context);
    for (std::size_t i = 0; i < std::size(tables); ++i) {
        if (status == kSuccess) {
            release_all(taken[i]);
        } else {
            for (const auto& [key, charge] : taken[i]) tables[i]->put(key, charge);
        }
    }
    return status;
}

// A device's primary context is shared by all that retain it, and ends with the last of them.
struct Primary {
    // Held across the driver's part of retaining, releasing and resetting: whether the context is
    // alive and whether it is charged are then never seen apart. Before the ledger's and the pools'
    // locks.
    std::mutex mutex;
    Handle context = nullptr;
    std::uint64_t bytes = 0;
    bool is_charged = false;
};

Primary& primary_of(Device device) {
    static Primary* const all = new Primary[64];  // never destroyed, as the charge tables
    return all[device & 63];
}

Status retain_primary(Status (*own)(Handle*, Device), Handle* out, Device device) {
    Vgpu* vgpu = vgpu_of(device);
    if (vgpu == nullptr) return own(out, device);
    Primary& primary = primary_of(device);
    vgpu->follow_limits();
    {
        std::unique_lock lock(primary.mutex);
        // The driver counts how often it was retained; one charge stands for all of them.
        const auto needed = [&] { return primary.is_charged ? 0 : vgpu->context_bytes(); };
        std::uint64_t bytes = 0;
        while (needed() > bytes) {
            // Without the lock, which releasing the context needs: it may wait for room.
            const std::uint64_t more = needed() - bytes;
            lock.unlock();
            if (!vgpu->reserve(more)) {
                vgpu->roll_back(bytes);
                return kOutOfMemory;
            }
            bytes += more;
            lock.lock();
        }
        // Another thread may have been faster.
        const std::uint64_t surplus = bytes - std::min(bytes, needed());
        vgpu->roll_back(surplus);
        bytes -= surplus;
        const bool is_first = !primary.is_charged;
        const Status status = own(out, device);
        if (status != kSuccess) {
            vgpu->roll_back(bytes);
            return status;
        }
        vgpu->commit(bytes);
        if (is_first) {
            primary.context = *out;
            primary.bytes = bytes;
            primary.is_charged = true;
        }
    }
    // Without the lock: NVML takes milliseconds, and others wait for the context itself.
    settle_overhead(*vgpu);
    return kSuccess;
}

// Also for a reset, which ends the context whatever holds it.
Status release_primary(Status (*own)(Device), Device device) {
    Vgpu* vgpu = vgpu_of(device);
    if (vgpu == nullptr) return own(device);
    Primary& primary = primary_of(device);
    const std::lock_guard lock(primary.mutex);
    const Status status = own(device);
    unsigned int flags = 0;
    int is_active = 1;
    const auto ask = helpers().primary_state;
    const bool has_ended = status == kSuccess && primary.is_charged && ask != nullptr &&
                           ask(device, &flags, &is_active) == kSuccess && is_active == 0;
    if (!has_ended) return status;
    end_context(primary.context);
    end_pools_of(*vgpu);
    vgpu->release(primary.bytes);
    primary.is_charged = false;
    return status;
}

// What a limit of a context takes of the device, as far as the driver's documentation says: the
// heap of malloc() and the buffer of printf() have the size that was asked for, from the next
// module or launch that uses them on. Charged when it is set, since it may be taken without a call
// of ours. A stack is for each thread that can run at a time, by a rule that is not written down,
// and so are the device runtime's pools: these only NVML sees.
template <typename Call>
Status set_counted_limit(Vgpu& vgpu, int limit, std::uint64_t bytes, Call call) {
    const Handle context = current_context();
    // A context is an object in the host: nothing else has the number behind its own.
    const std::uint64_t key = key_of(context) + static_cast<std::uint64_t>(limit);
    const auto before = handles().take(key);
    const std::uint64_t held = before ? before->bytes : 0;
    const std::uint64_t more = bytes - std::min(bytes, held);
    const bool has_room = vgpu.reserve(more);
    const Status status = has_room ? call() : kOutOfMemory;
    if (status != kSuccess) {
        if (has_room) vgpu.roll_back(more);
        if (before) handles().put_back(key, *before);
        return status;
    }
    handles().put(key, {&vgpu, bytes, context});
    vgpu.commit(more);
    vgpu.release(held - std::min(bytes, held));
    return status;
}

Status set_limit(Status (*own)(int, std::size_t), int limit, std::size_t bytes) {
    Vgpu* vgpu = current_vgpu();
    if (vgpu == nullptr) return own(limit, bytes);
    if (limit == kLimitPrintfFifo || limit == kLimitMallocHeap) {
        return set_counted_limit(*vgpu, limit, device_bytes(bytes),
                                 [&] { return own(limit, bytes); });
    }
    const Status status = own(limit, bytes);
    if (status == kSuccess) settle_overhead(*vgpu);
    return status;
}

// Modules bring code and global variables, whose size only the driver knows. Counted afterwards,
// since it is not known before: what does not fit into the quota is owed (Vgpu::owe()), not
// refused. A process without a context has no device yet to which it could count.
template <typename Call>
Status load(Call call) {
    const Status status = call();
    if (status != kSuccess) return status;
    if (Vgpu* vgpu = current_vgpu(); vgpu != nullptr) settle_overhead(*vgpu);
    return status;
}

Status load_module_2(Status (*own)(Handle*, const void*), Handle* out, const void* image) {
    return load([&] { return own(out, image); });
}

Status load_module_5(Status (*own)(Handle*, const void*, unsigned int, int*, void**), Handle* out,
                     const void* image, unsigned int count, int* options, void** values) {
    return load([&] { return own(out, image, count, options, values); });
}

Status load_library(Status (*own)(Handle*, const void*, int*, void**, unsigned int, int*, void**,
                                  unsigned int),
                    Handle* out, const void* image, int* jit, void** jit_values,
                    unsigned int jit_count, int* options, void** values, unsigned int count) {
    return load(
        [&] { return own(out, image, jit, jit_values, jit_count, options, values, count); });
}

}  // namespace

FABRIC_CONTEXT_ENTRIES(FABRIC_DEFINE)

}  // namespace fabricshm::cuda
