// A daemon on a thread of the test's own process, with a small pool.

#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "fabricd/server/daemon.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/test_pool.hpp"

namespace test_support {

inline fabricd::DaemonOptions options_in(const TemporaryDirectory& directory) {
    fabricd::DaemonOptions options;
    options.socket_path = directory.file("run/attach.sock");
    options.state_dir = directory.file("state");
    options.limits.default_arena_bytes = 4 * fabricshm::kMiB;
    return options;
}

inline fabricshm::Result<std::unique_ptr<fabricshm::PoolBackend>> small_pool(
    fabricshm::Bytes capacity = 256 * fabricshm::kMiB) {
    return make_test_pool(capacity);
}

class DaemonThread {
  public:
    explicit DaemonThread(const fabricd::DaemonOptions& options)
        : DaemonThread(options, small_pool()) {}
    DaemonThread(const fabricd::DaemonOptions& options,
                 fabricshm::Result<std::unique_ptr<fabricshm::PoolBackend>> pool) {
        if (!pool.ok()) return;
        auto started = fabricd::Daemon::start(options, std::move(pool).value());
        if (!started.ok()) {
            error = started.error();
            return;
        }
        daemon = std::move(started).value();
        thread_ = std::thread([this] { result = daemon->run(); });
    }
    ~DaemonThread() { stop(); }

    void stop() {
        if (daemon) daemon->stop();
        if (thread_.joinable()) thread_.join();
    }

    /// Polls the daemon until `wanted` is true of what it holds; false after half a minute.
    bool eventually(const std::function<bool(const fabricd::Snapshot&)>& wanted) {
        const auto deadline = fabricshm::Clock::now() + std::chrono::seconds(30);
        while (fabricshm::Clock::now() < deadline) {
            if (wanted(daemon->snapshot())) return true;
            std::this_thread::yield();
        }
        return false;
    }

    std::unique_ptr<fabricd::Daemon> daemon;
    fabricshm::Error error{fabricshm::Errc::kOk, 0, ""};
    fabricshm::Result<void> result;

  private:
    std::thread thread_;
};

}  // namespace test_support
