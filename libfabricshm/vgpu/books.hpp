// What this process holds of its vGPUs: a charge for everything that the driver gave it.

#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "libfabricshm/vgpu/cuda_abi.hpp"
#include "libfabricshm/vgpu/vgpu.hpp"

namespace fabricshm::cuda {

struct Charge {
    Vgpu* vgpu = nullptr;
    std::uint64_t bytes = 0;
    Handle context = nullptr;  // whose end frees it
};

/// Charges by what the driver calls the thing: an address, or a handle as a number. Thread-safe.
///
/// Freeing takes the charge out first and puts it back when the driver refuses: the other way round
/// another thread could get the same address again before we forgot it.
class Book {
  public:
    void put(std::uint64_t key, const Charge& charge);
    std::optional<Charge> take(std::uint64_t key);

    /// Takes out all charges of a context that ended, and releases them.
    void end_context(Handle context);

  private:
    std::mutex mutex_;
    std::unordered_map<std::uint64_t, Charge> charges_;
};

Book& pointers();  // linear memory, opened or imported memory
Book& handles();   // arrays, mipmaps, external memory, contexts

/// The key of a handle.
inline std::uint64_t key_of(Handle handle) noexcept {
    return reinterpret_cast<std::uint64_t>(handle);
}

/// The calling thread's context; nullptr without one.
Handle current_context() noexcept;

/// Reserves, calls, commits or rolls back: `call()` is the driver's function, `key()` says after a
/// success under what the charge is kept. Without a vGPU it only calls.
template <typename Call, typename Key>
Status charged(Vgpu* vgpu, std::uint64_t bytes, Book& book, Call call, Key key) {
    if (vgpu == nullptr) return call();
    if (!vgpu->reserve(bytes)) return kOutOfMemory;
    const Status status = call();
    if (status != kSuccess) {
        vgpu->roll_back(bytes);
        return status;
    }
    book.put(key(), {vgpu, bytes, current_context()});
    vgpu->commit(bytes);
    return status;
}

/// Calls `call()`, which frees what `key` stands for.
template <typename Call>
Status freed(Book& book, std::uint64_t key, Call call) {
    const auto charge = book.take(key);
    const Status status = call();
    if (!charge) return status;
    if (status == kSuccess) {
        charge->vgpu->release(charge->bytes);
    } else {
        book.put(key, *charge);
    }
    return status;
}

}  // namespace fabricshm::cuda
