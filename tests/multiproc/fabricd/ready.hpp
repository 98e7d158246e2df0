// A daemon that answers fabricctl too: its admin API comes a moment after the attach socket.

#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/daemon.hpp"

namespace test_support {

inline bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

inline bool becomes_true(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(180);
    while (!condition()) {
        if (std::chrono::steady_clock::now() > deadline) return false;
        std::this_thread::yield();
    }
    return true;
}

class ReadyDaemon : public Daemon {
  public:
    explicit ReadyDaemon(std::vector<std::string> options = {}) : Daemon(std::move(options)) {
        await_ready(1);
    }

    /// Returns when the log says for the `times`-th time that it is ready.
    void await_ready(int times) const {
        REQUIRE(becomes_true([&] {
            const std::string text = log();
            int found = 0;
            for (auto at = text.find("ready: "); at != std::string::npos;
                 at = text.find("ready: ", at + 1)) {
                ++found;
            }
            return found >= times;
        }));
    }
};

}  // namespace test_support
