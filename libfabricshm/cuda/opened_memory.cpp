#include "libfabricshm/cuda/opened_memory.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricshm::gpu {

namespace {

constexpr const char* kOpening = "open memory of a peer";

// A context, and the bytes of a handle.
using Key = std::pair<Handle, std::array<char, sizeof(cuda::IpcHandle)>>;

struct Entry {
    Pointer base = 0;
    Bytes bytes = 0;
    int uses = 0;
};

struct Table {
    std::mutex mutex;
    std::map<Key, Entry> entries;
};

// Never destroyed: groups that end with the program still close what they have.
Table& table() {
    static auto& made = *new Table;
    return made;
}

Result<Entry> open_in_current(const Driver& driver, const cuda::IpcHandle& handle, int rank) {
    Entry entry;
    const Status opened = driver.ipc_open(&entry.base, handle, kOpenWithPeerAccess);
    if (opened == cuda::kOutOfMemory) return driver.check(opened, kOpening).error();
    if (opened != cuda::kSuccess) {
        return explain({Errc::kUnsupported, rank, kOpening},
                       "memory of rank %d can't be opened here: %s (%d)", rank,
                       driver.name_of(opened), opened);
    }
    Pointer start = 0;
    std::size_t size = 0;
    const Status known = driver.address_range(&start, &size, entry.base);
    if (known != cuda::kSuccess || start > entry.base || entry.base - start > size) {
        (void)driver.ipc_close(entry.base);
        return explain({Errc::kUnsupported, rank, kOpening},
                       "the size of rank %d's memory is not known here: %s (%d)", rank,
                       driver.name_of(known), known);
    }
    entry.bytes = size - (entry.base - start);
    return entry;
}

}  // namespace

Result<OpenedMemory> OpenedMemory::open(std::shared_ptr<const DeviceContext> device,
                                        const cuda::IpcHandle& handle, int rank) {
    const Driver& driver = device->driver();
    Key key{device->context(), {}};
    std::copy(std::begin(handle.bytes), std::end(handle.bytes), key.second.begin());
    // Held over the driver's calls, so that two threads do not open the same handle.
    const std::lock_guard lock(table().mutex);
    Entry& entry = table().entries[key];
    if (entry.uses == 0) {
        const CurrentContext current(driver, device->context());
        Result<void> usable = driver.check(current.status(), "open: make the context current");
        auto opened =
            usable.ok() ? open_in_current(driver, handle, rank) : Result<Entry>(usable.error());
        if (!opened.ok()) {
            table().entries.erase(key);
            return opened.error();
        }
        entry = *opened;
    }
    ++entry.uses;
    return OpenedMemory(std::move(device), entry.base, entry.bytes);
}

OpenedMemory::~OpenedMemory() {
    if (device_ == nullptr) return;
    const std::lock_guard lock(table().mutex);
    auto& entries = table().entries;
    const auto mine = std::find_if(entries.begin(), entries.end(), [this](const auto& one) {
        return one.first.first == device_->context() && one.second.base == base_;
    });
    if (mine == entries.end() || --mine->second.uses > 0) return;
    entries.erase(mine);
    const Driver& driver = device_->driver();
    const CurrentContext current(driver, device_->context());
    if (current.status() != cuda::kSuccess) return;  // it went with the context
    const Status closed = driver.ipc_close(base_);
    if (closed == cuda::kSuccess || went_with_context(closed)) return;
    log(LogLevel::kWarning, "memory of a peer stays open at %#llx: %s", base_,
        driver.name_of(closed));
}

}  // namespace fabricshm::gpu
