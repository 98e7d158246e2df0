// Graphs that are captured from torch's streams. A stream that waits for an event of a captured one
// is captured, too, and has to be waited for in turn before the capture ends; the mock driver knows
// of single streams alone.

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "libfabricshm/base/check.hpp"
#include "tests/support/mock_torch/driver.hpp"

namespace mock_torch {

namespace {

struct Capture {
    std::mutex mutex;
    bool is_on = false;
    std::vector<Handle> streams;      // the one that it began with, then those that joined
    std::map<Handle, Handle> events;  // recorded in it, and by which stream
    std::set<Handle> apart;           // that joined, and have not been waited for since
    std::string broken;               // by what
    std::vector<Handle> executables;  // of the last one
};

Capture& capture() {
    static auto& made = *new Capture;
    return made;
}

bool has(const Capture& held, Handle stream) {
    for (const Handle one : held.streams) {
        if (one == stream) return true;
    }
    return false;
}

void join(Capture& held, Handle stream) {
    FABRIC_CHECK(driver().capture_begin(stream, 0) == 0);
    held.streams.push_back(stream);
}

void break_by(Capture& held, const std::string& what) {
    if (held.broken.empty()) held.broken = what;
}

}  // namespace

void begin_capture() {
    const std::lock_guard lock(capture().mutex);
    FABRIC_CHECK(!capture().is_on);
    capture().is_on = true;
    capture().broken.clear();
    capture().executables.clear();
    join(capture(), current_stream());
}

std::string end_capture() {
    Capture& held = capture();
    const std::lock_guard lock(held.mutex);
    if (!held.apart.empty()) break_by(held, "a stream that joined was not waited for");
    if (held.streams.empty() || held.streams.front() != current_stream()) {
        break_by(held, "it ended on another stream than it began");
    }
    for (const Handle stream : held.streams) {
        Handle graph = nullptr;
        Handle executable = nullptr;
        if (driver().capture_end(stream, &graph) != 0) break_by(held, "the driver says so");
        if (graph != nullptr) driver().instantiate(&executable, graph, 0);
        if (executable != nullptr) held.executables.push_back(executable);
    }
    held.is_on = false;
    held.streams.clear();
    held.events.clear();
    held.apart.clear();
    return held.broken;
}

void launch_graph() {
    const std::lock_guard lock(capture().mutex);
    for (const Handle executable : capture().executables) {
        FABRIC_CHECK(driver().graph_launch(executable, current_stream()) == 0);
    }
}

bool is_captured(Handle stream) {
    const std::lock_guard lock(capture().mutex);
    return has(capture(), stream);
}

void note_unsafe(const char* call) {
    const std::lock_guard lock(capture().mutex);
    if (capture().is_on) break_by(capture(), call);
}

bool record_captured(Handle event, Handle stream) {
    Capture& held = capture();
    const std::lock_guard lock(held.mutex);
    held.events.erase(event);
    if (!has(held, stream)) return false;
    held.events[event] = stream;
    return true;
}

bool block_captured(Handle event, Handle stream) {
    Capture& held = capture();
    const std::lock_guard lock(held.mutex);
    const auto found = held.events.find(event);
    if (found == held.events.end()) {
        if (!has(held, stream)) return false;
        break_by(held, "a captured stream waited for an event from outside");
        return true;
    }
    if (stream == held.streams.front()) held.apart.erase(found->second);
    if (!has(held, stream)) join(held, stream);
    if (stream != held.streams.front()) held.apart.insert(stream);
    return true;
}

}  // namespace mock_torch
