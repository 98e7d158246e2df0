// MetricsBridge: carries bytes between a TCP port of the loopback interface and a unix socket, for
// Prometheus, which cannot scrape a unix socket. A program of its own (fabric-metrics-bridge): the
// daemon stays without any network, and this one without anything but the two sockets.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

struct BridgeOptions {
    std::string socket_path;            // of fabricd's telemetry.metrics_socket
    std::string address = "127.0.0.1";  // to listen at; numeric
    std::uint16_t port = 9464;          // 0: one that is free
    int connections = 32;               // at once; more wait in the kernel's queue
    fabricshm::Duration time_limit = std::chrono::seconds(10);  // of one connection, in all
};

/// Takes "127.0.0.1:9464" into the options; false for anything else, and then they are as before.
/// Whether the first half is an address, open() finds out.
bool parse_listen(const std::string& text, BridgeOptions& options);

/// One thread, no locks: poll() over all sockets. It forwards what it reads unparsed. A connection
/// without a daemon behind it is closed at once, so that Prometheus calls the target down; the next
/// one tries again, whatever was before.
class MetricsBridge {
  public:
    /// kInvalid: an address that is none, a path that is too long. kBusy: the port is taken.
    static fabricshm::Result<MetricsBridge> open(const BridgeOptions& options);

    MetricsBridge(MetricsBridge&&) noexcept;
    ~MetricsBridge();

    /// Where it listens.
    std::uint16_t port() const;

    /// Serves until `stop` is readable.
    void run(const fabricshm::Fd& stop);

  private:
    struct Impl;
    explicit MetricsBridge(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd
