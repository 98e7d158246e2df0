// Stream-ordered memory. A pool's memory on the device grows in the middle of an allocation and
// falls when the driver likes; after each call we ask it how much it has and charge that.

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "libfabricshm/vgpu/captures.hpp"
#include "libfabricshm/vgpu/charge_table.hpp"
#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/hooks.hpp"
#include "libfabricshm/vgpu/pools.hpp"
#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

namespace {

using TrimTo = Status (*)(Handle, std::size_t);

struct Pool {
    Handle handle = nullptr;
    Vgpu* vgpu = nullptr;  // nullptr: in the host's memory, or on a GPU without one; not counted
    // Held across the driver's part of an allocation: what the pool has grown by is then this
    // allocation's, which has reserved it. Before the table's lock and the ledger's; no thread
    // holds two pools' locks.
    std::mutex mutex;
    std::uint64_t charged = 0;
    bool has_ended = false;  // its handle may be another pool's by now
};
using PoolPtr = std::shared_ptr<Pool>;

// Entries are shared: a pool that is destroyed while another thread trims it goes when that is
// done.
struct Pools {
    std::mutex mutex;
    std::unordered_map<Handle, PoolPtr> all;
};

Pools& pools() {
    static Pools& made = *new Pools;  // never destroyed, as the charge tables
    return made;
}

// A pool that we did not see being made (the device's default one, an imported one) is taken up
// when it is first allocated from.
PoolPtr pool_of(Handle handle, Vgpu* vgpu) {
    Pools& known = pools();
    const std::lock_guard lock(known.mutex);
    PoolPtr& pool = known.all[handle];
    if (pool == nullptr) {
        pool = std::make_shared<Pool>();
        pool->handle = handle;
        pool->vgpu = vgpu;
    }
    return pool;
}

// A pool that is not counted is known as well: else memory from it would count for the current
// device.
PoolPtr known_pool(Handle handle) {
    Pools& known = pools();
    const std::lock_guard lock(known.mutex);
    const auto found = known.all.find(handle);
    return found != known.all.end() ? found->second : nullptr;
}

PoolPtr counted_pool(Handle handle) {
    const PoolPtr pool = known_pool(handle);
    return pool != nullptr && pool->vgpu != nullptr ? pool : nullptr;
}

// Out of the table, before the driver lets go of it: another pool may get its handle at once.
// False: another thread was faster.
bool take_out(const PoolPtr& pool) {
    Pools& known = pools();
    const std::lock_guard lock(known.mutex);
    const auto found = known.all.find(pool->handle);
    if (found == known.all.end() || found->second != pool) return false;
    known.all.erase(found);
    return true;
}

// Undoes take_out(). False: a thread that allocated from it meanwhile took it up again, and charges
// all that it has there.
bool put_back(const PoolPtr& pool) {
    Pools& known = pools();
    const std::lock_guard lock(known.mutex);
    return known.all.try_emplace(pool->handle, pool).second;
}

// A copy, so that no pool's lock is taken with the table's held: the other way round it is.
std::vector<PoolPtr> pools_on(const Vgpu& vgpu) {
    std::vector<PoolPtr> found;
    Pools& known = pools();
    const std::lock_guard lock(known.mutex);
    for (const auto& [handle, pool] : known.all) {
        if (pool->vgpu == &vgpu) found.push_back(pool);
    }
    return found;
}

// What the pool has of the device; as charged where the driver does not say.
std::uint64_t taken_by(const Pool& pool) {
    if (pool.has_ended) return 0;
    std::uint64_t bytes = 0;
    const auto ask = helpers().pool_attribute;
    const bool known = ask != nullptr && ask(pool.handle, kPoolReservedCurrent, &bytes) == kSuccess;
    return known ? bytes : pool.charged;
}

// Makes the charge what the pool has; `reserved` bytes of it are charged already besides it.
// Returns false when it has more than the quota allows. With the pool's lock held.
bool settle(Pool& pool, std::uint64_t reserved) {
    const std::uint64_t taken = taken_by(pool);
    const std::uint64_t covered = pool.charged + reserved;
    if (taken > covered && !pool.vgpu->charge(taken - covered)) {
        // The rest is not forgotten: the next call on the pool finds it again.
        pool.charged = covered;
        return false;
    }
    if (taken < covered) pool.vgpu->release(covered - taken);
    pool.charged = taken;
    return true;
}

// With the real function: ours would settle the pool with its lock held twice.
bool trim(Pool& pool) {
    const auto own = real<TrimTo>(Entry::cuMemPoolTrimTo);
    const BesideCaptures beside;
    const std::lock_guard lock(pool.mutex);
    const std::uint64_t before = pool.charged;
    if (own != nullptr && !pool.has_ended) own(pool.handle, 0);
    settle(pool, 0);
    return pool.charged < before;
}

// The common part: `own()` allocates from `handle`, `undo()` gives it back.
template <typename Call, typename Undo>
Status from_pool(Vgpu* vgpu, Handle handle, std::uint64_t bytes, Call own, Undo undo) {
    // What the pool may grow by at most; most of the time it has unused memory and grows by
    // nothing.
    const std::uint64_t most = bytes > kGiB * kGiB ? bytes : round_up(bytes, 2 * kMiB);
    const PoolPtr pool = pool_of(handle, vgpu);
    // Before the pool's lock: to find room it may trim all pools, this one among them.
    if (!vgpu->reserve(most)) return kOutOfMemory;
    const std::lock_guard lock(pool->mutex);
    const Status status = own();
    // Whether the driver granted it or not: settle() makes what is reserved and not taken free
    // again.
    vgpu->commit(most);
    if (settle(*pool, most) || status != kSuccess) return status;
    const BesideCaptures beside;
    // A driver that takes larger pieces than we thought went over the quota: back at once.
    undo();
    if (const auto trim_to = real<TrimTo>(Entry::cuMemPoolTrimTo)) trim_to(pool->handle, 0);
    settle(*pool, 0);
    vgpu->refused(most);
    return kOutOfMemory;
}

// In the legacy form also what came by the per-thread one: no other thread has the pointer yet, and
// the legacy stream waits for the thread's own, on which it was allocated.
void give_back(Pointer pointer, Handle stream) {
    const auto own = real<Status (*)(Pointer, Handle)>(Entry::cuMemFreeAsync);
    if (own != nullptr) own(pointer, stream);
}

// While a stream is captured into a graph nothing is allocated: the graph is charged when it is
// instantiated. The pool is that of the current device; the driver takes that of the stream's.
// Where these are two, the other pool's growth is charged with the next call that settles it.
Status allocate_async(Status (*own)(Pointer*, std::size_t, Handle), Pointer* out, std::size_t bytes,
                      Handle stream) {
    Vgpu* vgpu = current_vgpu();
    Handle pool = nullptr;
    Device device = -1;
    const bool is_counted = vgpu != nullptr && !is_captured(stream) &&
                            helpers().device_pool != nullptr &&
                            helpers().current_device(&device) == kSuccess &&
                            helpers().device_pool(&pool, device) == kSuccess;
    if (!is_counted) return own(out, bytes, stream);
    return from_pool(
        vgpu, pool, bytes, [&] { return own(out, bytes, stream); },
        [&] { give_back(*out, stream); });
}

Status allocate_from_pool(Status (*own)(Pointer*, std::size_t, Handle, Handle), Pointer* out,
                          std::size_t bytes, Handle pool, Handle stream) {
    const PoolPtr known = known_pool(pool);
    Vgpu* vgpu = known != nullptr ? known->vgpu : current_vgpu();
    if (vgpu == nullptr || is_captured(stream)) return own(out, bytes, pool, stream);
    return from_pool(
        vgpu, pool, bytes, [&] { return own(out, bytes, pool, stream); },
        [&] { give_back(*out, stream); });
}

Status free_async(Status (*own)(Pointer, Handle), Pointer pointer, Handle stream) {
    Vgpu* vgpu = current_vgpu();
    // Imported and linear memory may be freed this way, too.
    const Status status = freed(pointers(), pointer, [&] { return own(pointer, stream); });
    if (vgpu == nullptr || status != kSuccess) return status;
    vgpu->follow_limits();
    // Which pool the pointer was from only the driver knows, and when a pool gives memory back to
    // the device is its own affair as well: all of them are asked.
    for (const PoolPtr& pool : pools_on(*vgpu)) {
        const std::lock_guard lock(pool->mutex);
        settle(*pool, 0);
    }
    return status;
}

// Makes nothing yet: a new pool has no memory.
Status create_pool(Status (*own)(Handle*, const PoolProps*), Handle* out, const PoolProps* wanted) {
    const Status status = own(out, wanted);
    const bool on_device = wanted != nullptr && wanted->location.type == kOnDevice;
    if (status == kSuccess) pool_of(*out, on_device ? vgpu_of(wanted->location.id) : nullptr);
    return status;
}

// What the program still has allocated from it the driver keeps until that is freed, uncharged: a
// pool that is gone can't be asked any more.
Status destroy_pool(Status (*own)(Handle), Handle handle) {
    const PoolPtr pool = known_pool(handle);
    if (pool == nullptr) return own(handle);
    const std::lock_guard lock(pool->mutex);
    if (!take_out(pool)) return own(handle);
    const Status status = own(handle);
    if (status != kSuccess && put_back(pool)) return status;
    if (pool->vgpu != nullptr) pool->vgpu->release(pool->charged);
    pool->charged = 0;
    // For threads that found it before: they wait for its lock.
    pool->has_ended = true;
    return status;
}

Status set_pool_attribute(Status (*own)(Handle, int, void*), Handle handle, int attribute,
                          void* value) {
    const Status status = own(handle, attribute, value);
    if (const PoolPtr pool = counted_pool(handle)) {
        const std::lock_guard lock(pool->mutex);
        settle(*pool, 0);
    }
    return status;
}

Status trim_pool(TrimTo own, Handle handle, std::size_t keep) {
    const Status status = own(handle, keep);
    if (const PoolPtr pool = counted_pool(handle)) {
        const std::lock_guard lock(pool->mutex);
        settle(*pool, 0);
    }
    return status;
}

// The memory of an imported pool is its exporter's, which is charged; pointers into it that are
// opened here count like any memory of others. In the table so that the self-check knows it as
// examined.
Status import_pool(Status (*own)(Handle*, void*, int, unsigned long long), Handle* out,
                   void* os_handle, int type, unsigned long long flags) {
    return own(out, os_handle, type, flags);
}

Status import_pool_pointer(Status (*own)(Pointer*, Handle, void*), Pointer* out, Handle pool,
                           void* data) {
    const Status status = own(out, pool, data);
    if (status != kSuccess || charge_opened(*out)) return status;
    // An imported pointer ends by cuMemFree, not as one of cuIpcOpenMemHandle.
    if (const auto free = real<Status (*)(Pointer)>(Entry::cuMemFree_v2)) free(*out);
    *out = 0;
    return kOutOfMemory;
}

}  // namespace

bool trim_pools(Vgpu& vgpu) {
    bool freed_any = false;
    for (const PoolPtr& pool : pools_on(vgpu)) freed_any = trim(*pool) || freed_any;
    return freed_any;
}

void end_pools_of(Vgpu& vgpu) {
    for (const PoolPtr& pool : pools_on(vgpu)) {
        const std::lock_guard lock(pool->mutex);
        settle(*pool, 0);
    }
}

FABRIC_POOL_ENTRIES(FABRIC_DEFINE)

}  // namespace fabricshm::cuda
