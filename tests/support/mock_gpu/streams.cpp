// Mock driver: streams and events. Without HostState::own_time they are names for nothing: all is
// done when a call returns. With it each stream has a thread, and events are what a stream passes.

#include "tests/support/mock_gpu/streams.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <thread>
#include <utility>

#include "tests/support/mock_gpu/host.hpp"

using namespace mock_gpu;

namespace {

// One lock for all: tests have few streams. Never destroyed, since their threads go on to the end.
struct Streams {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<Handle, std::deque<std::function<void()>>> waiting;  // with a thread for each
    std::map<Handle, bool> is_busy;
    std::map<Handle, std::shared_ptr<bool>> events;  // what was recorded last: passed or not
};

Streams& streams() {
    static Streams& made = *new Streams;
    return made;
}

[[noreturn]] void work(Handle stream) {
    Streams& all = streams();
    std::unique_lock lock(all.mutex);
    auto& queue = all.waiting[stream];
    for (;;) {
        all.changed.wait(lock, [&queue] { return !queue.empty(); });
        const auto next = std::move(queue.front());
        queue.pop_front();
        all.is_busy[stream] = true;
        lock.unlock();
        next();
        lock.lock();
        all.is_busy[stream] = false;
        all.changed.notify_all();
    }
}

bool is_idle(Streams& all, Handle stream) {
    const auto queue = all.waiting.find(stream);
    return queue == all.waiting.end() || (queue->second.empty() && !all.is_busy[stream]);
}

Status made(Handle* out) {
    *out = reinterpret_cast<Handle>(new_address(1));
    return kSuccess;
}

bool has_own_time() {
    return mock_gpu_host()->own_time;
}

}  // namespace

namespace mock_gpu {

void put_on_stream(Handle stream, std::function<void()> one) {
    Streams& all = streams();
    const std::lock_guard lock(all.mutex);
    const bool is_new = all.waiting.find(stream) == all.waiting.end();
    all.waiting[stream].push_back(std::move(one));
    if (is_new) std::thread([stream] { work(stream); }).detach();
    all.changed.notify_all();
}

bool is_stream_done(Handle stream) {
    const std::lock_guard lock(streams().mutex);
    return is_idle(streams(), stream);
}

void wait_for_stream(Handle stream) {
    std::unique_lock lock(streams().mutex);
    streams().changed.wait(lock, [stream] { return is_idle(streams(), stream); });
}

void wait_for_all_streams() {
    std::unique_lock lock(streams().mutex);
    Streams& all = streams();
    all.changed.wait(lock, [&all] {
        return std::all_of(all.waiting.begin(), all.waiting.end(),
                           [&all](const auto& one) { return is_idle(all, one.first); });
    });
}

}  // namespace mock_gpu

MOCK_EXPORT Status cuStreamCreate(Handle* out, unsigned int) {
    return made(out);
}
MOCK_EXPORT Status cuStreamDestroy_v2(Handle) {
    return kSuccess;
}
MOCK_EXPORT Status cuEventCreate(Handle* out, unsigned int) {
    return made(out);
}
MOCK_EXPORT Status cuEventRecord(Handle event, Handle stream) {
    if (!has_own_time()) return kSuccess;
    const auto passed = std::make_shared<bool>(false);
    {
        const std::lock_guard lock(streams().mutex);
        streams().events[event] = passed;
    }
    put_on_stream(stream, [passed] {
        const std::lock_guard lock(streams().mutex);
        *passed = true;
    });
    return kSuccess;
}
MOCK_EXPORT Status cuEventQuery(Handle event) {
    const std::lock_guard lock(streams().mutex);
    const auto found = streams().events.find(event);
    return found == streams().events.end() || *found->second ? kSuccess : kNotReady;
}
MOCK_EXPORT Status cuStreamWaitEvent(Handle stream, Handle event, unsigned int) {
    std::shared_ptr<bool> passed;
    {
        const std::lock_guard lock(streams().mutex);
        const auto found = streams().events.find(event);
        if (found == streams().events.end()) return kSuccess;
        passed = found->second;
    }
    put_on_stream(stream, [passed] {
        std::unique_lock lock(streams().mutex);
        streams().changed.wait(lock, [&passed] { return *passed; });
    });
    return kSuccess;
}
MOCK_EXPORT Status cuEventSynchronize(Handle event) {
    std::unique_lock lock(streams().mutex);
    const auto found = streams().events.find(event);
    if (found == streams().events.end()) return kSuccess;
    const auto passed = found->second;
    streams().changed.wait(lock, [&passed] { return *passed; });
    return kSuccess;
}
MOCK_EXPORT Status cuEventDestroy_v2(Handle event) {
    const std::lock_guard lock(streams().mutex);
    streams().events.erase(event);
    return kSuccess;
}
MOCK_EXPORT Status cuLaunchHostFunc(Handle stream, void (*function)(void*), void* argument) {
    put_on_stream(stream, [function, argument] { function(argument); });
    return kSuccess;
}
