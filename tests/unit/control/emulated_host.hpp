// What tests of the loop beyond one job share: a host's devices, shards and pool, as the loop sees
// them.

#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fabricd/control/loop/controller.hpp"
#include "fabricd/control/loop/loop.hpp"
#include "fabricd/service/control_places.hpp"
#include "tests/support/decision_values.hpp"
#include "tests/unit/control/emulated_job.hpp"

namespace control_test {

using namespace fabricd;

constexpr double kMB = 1e6;

inline ControlConfig acting(const std::string& mode = "on") {
    ControlConfig config;
    config.mode = mode;
    config.actions = "shares,units,sync,drain,placement,quota,compute,pool";
    return config;
}

/// Two nodes and a shard at the first of them, read so much by each.
inline Window window_with_shard(double by_home, double by_other) {
    Window window;
    window.placement.nodes = {{"near", 1, 0}, {"far", 1, 1e9}};
    window.placement.bandwidth = {0, 1e9, 1e9, 0};
    window.placement.shards = {{5, 1e8, 0, 0, {by_home, by_other}, "job/experts", false}};
    return window;
}

inline void advance(Window& window) {
    ++window.number;
    window.taken_ns += 1'000'000'000;
    window.length_s = 1;
}

/// Ticks with the same window until something is decided, at most so often.
inline std::vector<Decision> until_decided(Loop& loop, Window& window, int most = 20) {
    for (int i = 0; i < most; ++i) {
        advance(window);
        auto result = loop.tick(window);
        if (!result.decisions.empty()) return result.decisions;
    }
    return {};
}

inline double after_of(const Decision& decision, const std::string& name, double otherwise) {
    for (std::size_t i = 0; i < names_of(decision).size(); ++i) {
        if (names_of(decision)[i] == name) return after_of(decision)[i];
    }
    return otherwise;
}

/// A host with a device "near" and one "far" and a shard of 1 MB, as PlaceSource sees it, and what
/// moves shards: at once, or not at all.
class ShardHost : public Actuators {
  public:
    ShardHost() {
        for (const char* name : {"near", "far"}) {
            DeviceView device;
            device.configured = true;
            device.spec.name = name;
            device.spec.gflops = 10;
            device.spec.memory_bytes = device.spec.quota_bytes = 1 << 30;
            device.spec.link_gbytes_per_s = 1;
            device.spec.numa_node = static_cast<int>(places.devices.size());
            places.devices.push_back(device);
        }
        for (const std::uint64_t id : {1, 2}) {
            SessionSample session{};
            session.session_id = id;
            session.device = id == 1 ? "near" : "far";
            sample.sessions.push_back(session);
        }
        add_shard("job/experts", 1 << 20);
    }

    /// Read like all of them.
    void add_shard(const std::string& name, std::uint64_t bytes) {
        ShardView shard;
        shard.arena_id = 3;
        shard.id = 8 + places.shards.size();
        shard.name = name;
        shard.bytes = bytes;
        shard.home_device = "near";
        shard.state = ShardState::kHere;
        places.shards.push_back(shard);
        for (SessionSample& session : sample.sessions) {
            session.shards.push_back({3, shard.id, 0, 0});
        }
    }

    Window window() {
        Window window;
        source.add_to(window);
        return window;
    }

    fabricshm::Result<void> move_shard(const std::string& shard, const std::string& node) override {
        moves.push_back(shard + " to " + node);
        for (ShardView& view : places.shards) {
            if (view.name != shard || !obeys || stuck.count(shard) != 0) continue;
            view.home_device = node;
            return {};
        }
        return fabricshm::Error{fabricshm::Errc::kNoMemory, 0, "move shard"};
    }

    ControllerParts parts() {
        ControllerParts parts;
        parts.look = [this](const std::function<void(const Sample&)>& reader) {
            ++sample.number;
            sample.taken_ns += 1'000'000'000;
            for (std::size_t i = 0; i < 2; ++i) {
                for (auto& told : sample.sessions[i].shards) told.bytes += reads[i];
            }
            reader(sample);
            source.look(sample);
        };
        parts.complete = [this](Window& window) { source.add_to(window); };
        parts.actuators = this;
        return parts;
    }

    Places places;
    Sample sample;
    std::uint64_t reads[2] = {1'000'000, 200'000'000};  // per second
    std::vector<std::string> moves;
    bool obeys = true;
    std::set<std::string> stuck;  // shards whose moves are refused
    PlaceSource source{[this] { return places; }};
};

}  // namespace control_test
