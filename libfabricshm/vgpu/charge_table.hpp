// What this process holds of its vGPUs: a charge for everything that the driver gave it.

#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "libfabricshm/vgpu/cuda_abi.hpp"
#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

struct Charge {
    Vgpu* vgpu = nullptr;
    std::uint64_t bytes = 0;
    Handle context = nullptr;  // whose end frees it
    int opens = 1;             // memory of others may be opened again, and is closed as often
};

/// Charges by what the driver calls the thing: an address, or a handle as a number. Thread-safe.
///
/// Freeing takes the charge out first and puts it back when the driver refuses: the other way round
/// another thread could get the same address again before we forgot it.
class ChargeTable {
  public:
    /// A charge that is there already under that key is released: the driver gives a name only to
    /// what is free, so we missed the call that freed it.
    void put(std::uint64_t key, const Charge& charge);

    /// Memory of others that is open here is opened once more, which takes nothing more. False: it
    /// is not open.
    bool reopen(std::uint64_t key);

    /// The same, or else puts `charge`: for two threads that open the same at the same time, both
    /// of which found it closed. True: it was open, and `charge` is not in the table.
    bool reopen_or_put(std::uint64_t key, const Charge& charge);

    /// The charge, out of the table; of memory that stays open a copy with 0 bytes.
    std::optional<Charge> take(std::uint64_t key);

    /// Undoes take().
    void put_back(std::uint64_t key, const Charge& charge);

    /// Takes out all charges of a context that is about to end.
    using Taken = std::vector<std::pair<std::uint64_t, Charge>>;
    Taken take_context(Handle context);

  private:
    std::mutex mutex_;
    std::unordered_map<std::uint64_t, Charge> charges_;
};

// Three tables, since a handle may be the same number as an address: names of different kinds are
// only unique among themselves. Context handles are addresses in the host, as those of arrays are.
ChargeTable& pointers();     // linear memory, opened or imported memory
ChargeTable& handles();      // arrays, mipmaps, external memory, contexts
ChargeTable& executables();  // memory of executable graphs

/// Releases what was taken out for good; one access to the ledger for each vGPU.
void release_all(const ChargeTable::Taken& taken);

/// The key of a handle.
inline std::uint64_t key_of(Handle handle) noexcept {
    return reinterpret_cast<std::uint64_t>(handle);
}

/// The calling thread's context; nullptr without one. A call of the driver: memory is charged to a
/// context only so that its end can be noticed.
Handle current_context() noexcept;

/// Reserves, calls, commits or rolls back: `call()` is the driver's function, `key()` says after a
/// success under what the charge is kept. Without a vGPU it only calls.
///
/// The driver stands between the two because it is slow and may fail: the quota is taken before, so
/// that no two processes both find the last bytes free, and no lock is held while it works. A
/// process that dies in between has the bytes in its slot, and clearing that gives them back.
template <typename Call, typename Key>
Status charged(Vgpu* vgpu, std::uint64_t bytes, ChargeTable& table, Call call, Key key) {
    if (vgpu == nullptr) return call();
    if (!vgpu->reserve(bytes)) return kOutOfMemory;
    const Status status = call();
    if (status != kSuccess) {
        vgpu->roll_back(bytes);
        return status;
    }
    table.put(key(), {vgpu, bytes, current_context()});
    vgpu->commit(bytes);
    return status;
}

/// Charges memory of others that the driver has just opened at `pointer`: once, however often it is
/// open, to the device that it lies on, which may be a peer of the current one. False: it does not
/// fit, and the caller closes it, which takes nothing from any process. Memory whose size the
/// driver does not report stays uncounted.
bool charge_opened(Pointer pointer);

/// Calls `call()`, which frees what `key` stands for. What is not in the table (from before the
/// vGPU was attached, or of a device without one) is freed all the same.
template <typename Call>
Status freed(ChargeTable& table, std::uint64_t key, Call call) {
    const auto charge = table.take(key);
    const Status status = call();
    if (!charge) return status;
    if (status == kSuccess) {
        charge->vgpu->release(charge->bytes);
    } else {
        table.put_back(key, *charge);
    }
    return status;
}

}  // namespace fabricshm::cuda
