// Streams that are captured into graphs. Passed through; only that they are is noted.

#include <atomic>
#include <mutex>
#include <set>
#include <utility>

#include "libfabricshm/vgpu/captures.hpp"
#include "libfabricshm/vgpu/driver.hpp"
#include "libfabricshm/vgpu/hooks.hpp"

namespace fabricshm::cuda {

namespace {

// CU_STREAM_PER_THREAD: the thread's own default stream by a name that all forms know.
constexpr std::uintptr_t kOwnStream = 2;

struct Captures {
    std::mutex mutex;
    // The stream, and whose it is where every thread has one of that name.
    std::set<std::pair<Handle, const void*>> streams;
    std::atomic<int> count{0};  // of them, to be read without the lock
};

Captures& captures() {
    static Captures& made = *new Captures;  // never destroyed, as the charge tables
    return made;
}

std::pair<Handle, const void*> key_of_stream(Handle stream, bool is_own_form) {
    static thread_local const char own = 0;
    const bool is_own = (stream == nullptr && is_own_form) ||
                        reinterpret_cast<std::uintptr_t>(stream) == kOwnStream;
    return is_own ? std::pair<Handle, const void*>{nullptr, &own}
                  : std::pair<Handle, const void*>{stream, nullptr};
}

template <typename Call>
Status begin(Handle stream, bool is_own_form, Call call) {
    const Status status = call();
    if (status != kSuccess) return status;
    Captures& all = captures();
    const std::lock_guard lock(all.mutex);
    all.streams.insert(key_of_stream(stream, is_own_form));
    // Relaxed: it guards nothing; another thread may learn of it a moment later.
    all.count.store(static_cast<int>(all.streams.size()), std::memory_order_relaxed);
    return status;
}

// Ends it also where it fails, as of a capture that was broken; but not one of another thread, nor
// one with streams that have not joined again: the driver is asked.
template <typename Call>
Status end(Handle stream, bool is_own_form, Call call) {
    const Status status = call();
    const auto ask = is_own_form ? helpers().is_capturing_per_thread : helpers().is_capturing;
    int state = 0;
    const bool goes_on =
        status != kSuccess && ask != nullptr && ask(stream, &state) == kSuccess && state != 0;
    if (goes_on) return status;
    Captures& all = captures();
    const std::lock_guard lock(all.mutex);
    all.streams.erase(key_of_stream(stream, is_own_form));
    all.count.store(static_cast<int>(all.streams.size()), std::memory_order_relaxed);
    return status;
}

Status begin_capture_1(Status (*own)(Handle), Handle stream) {
    return begin(stream, false, [&] { return own(stream); });
}
Status begin_capture_1_own(Status (*own)(Handle), Handle stream) {
    return begin(stream, true, [&] { return own(stream); });
}
Status begin_capture_2(Status (*own)(Handle, int), Handle stream, int mode) {
    return begin(stream, false, [&] { return own(stream, mode); });
}
Status begin_capture_2_own(Status (*own)(Handle, int), Handle stream, int mode) {
    return begin(stream, true, [&] { return own(stream, mode); });
}

using ToGraph = Status (*)(Handle, Handle, const Handle*, const void*, std::size_t, int);
Status begin_to_graph(ToGraph own, Handle stream, Handle graph, const Handle* after,
                      const void* edges, std::size_t count, int mode) {
    return begin(stream, false, [&] { return own(stream, graph, after, edges, count, mode); });
}
Status begin_to_graph_own(ToGraph own, Handle stream, Handle graph, const Handle* after,
                          const void* edges, std::size_t count, int mode) {
    return begin(stream, true, [&] { return own(stream, graph, after, edges, count, mode); });
}

Status end_capture(Status (*own)(Handle, Handle*), Handle stream, Handle* graph) {
    return end(stream, false, [&] { return own(stream, graph); });
}
Status end_capture_own(Status (*own)(Handle, Handle*), Handle stream, Handle* graph) {
    return end(stream, true, [&] { return own(stream, graph); });
}

}  // namespace

bool any_capture() noexcept {
    return captures().count.load(std::memory_order_relaxed) > 0;
}

BesideCaptures::BesideCaptures() noexcept {
    const auto exchange = helpers().exchange_capture_mode;
    if (!any_capture() || exchange == nullptr) return;
    mode_ = kCaptureRelaxed;
    is_relaxed_ = exchange(&mode_) == kSuccess;
}

BesideCaptures::~BesideCaptures() {
    if (is_relaxed_) helpers().exchange_capture_mode(&mode_);
}

FABRIC_CAPTURE_ENTRIES(FABRIC_DEFINE)

}  // namespace fabricshm::cuda
