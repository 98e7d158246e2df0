// fabric-metrics-bridge: fabricd's metrics for a Prometheus that scrapes over TCP.

#include <sys/signalfd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "fabricd/bridge/metrics_bridge.hpp"
#include "libfabricshm/base/empty_values.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/version.hpp"

namespace {

constexpr const char* kHelp =
    "Usage: fabric-metrics-bridge [--socket PATH] [--listen ADDRESS:PORT]\n"
    "Hands the metrics of fabricd to a Prometheus that scrapes over TCP.\n\n"
    "  --socket PATH           telemetry.metrics_socket of fabricd\n"
    "                          (default /run/fabricd/metrics.sock)\n"
    "  --listen ADDRESS:PORT   an IPv4 address of this host (default 127.0.0.1:9464). The metrics\n"
    "                          name jobs and are not protected: any other address shows them to "
    "all\n"
    "                          that reach it.\n"
    "  -h, --help, -V, --version\n\n"
    "Ends on SIGTERM and SIGINT. Exit codes: 0 ended on request, 1 failed, 2 wrong usage.\n";

int fail(int code, const std::string& line) {
    std::fprintf(stderr, "fabric-metrics-bridge: %s\n", line.c_str());
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    fabricd::BridgeOptions options;
    options.socket_path = "/run/fabricd/metrics.sock";
    for (int i = 1; i < argc; ++i) {
        std::string word = argv[i];
        if (word == "-h" || word == "--help") return std::fputs(kHelp, stdout) < 0;
        if (word == "-V" || word == "--version") {
            return std::printf("fabric-metrics-bridge %s\n", FABRIC_VERSION) < 0;
        }
        const auto equals = word.find('=');
        const std::string name = word.substr(0, equals);
        const bool known = name == "--socket" || name == "--listen";
        if (!known) return fail(2, "unknown option '" + word + "' (--help)");
        if (equals == std::string::npos && i + 1 == argc) return fail(2, name + " takes a value");
        const std::string value = equals == std::string::npos ? argv[++i] : word.substr(equals + 1);
        if (value.empty()) return fail(2, name + ": " + fabricshm::wrong_with_empty(value));
        if (name == "--socket") options.socket_path = value;
        if (name == "--listen" && !fabricd::parse_listen(value, options)) {
            return fail(2, "--listen takes ADDRESS:PORT, as 127.0.0.1:9464");
        }
    }
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int number : {SIGTERM, SIGINT}) ::sigaddset(&signals, number);
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    const fabricshm::Fd stop(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    auto bridge = fabricd::MetricsBridge::open(options);
    if (!stop || !bridge.ok()) {
        return fail(1, bridge.ok() ? "can't watch signals" : explanation_of(bridge.error()));
    }
    std::fprintf(stderr, "fabric-metrics-bridge: http://%s:%u/metrics is %s\n",
                 options.address.c_str(), unsigned{bridge->port()}, options.socket_path.c_str());
    bridge->run(stop);
    return 0;
}
