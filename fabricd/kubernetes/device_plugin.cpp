#include "fabricd/kubernetes/device_plugin.hpp"

#include <fcntl.h>
#include <grpc/grpc.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "fabricd/kubernetes/device_service.hpp"
#include "fabricd/kubernetes/kubelet_link.hpp"
#include "fabricd/kubernetes/plugin_socket.hpp"
#include "fabricd/kubernetes/pool_probe.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Duration;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::explain;
using fabricshm::Fd;
using fabricshm::format_bytes;
using fabricshm::Result;
using fabricshm::TimePoint;

namespace {

// gRPC's, of which each stream keeps one.
constexpr int kPluginThreads = 32;
// All ids of the largest pool, twice, with what is around them.
constexpr int kMaxRequestBytes = 4 << 20;
// A kubelet that took the registration opens its stream at once. One that has none after so many
// polls, and this time, has lost us.
constexpr int kStreamGracePolls = 10;
constexpr Duration kMinStreamGrace = std::chrono::seconds(1);
constexpr auto kServerEnd = std::chrono::seconds(2);

// Some of it are other programs' words.
void say(std::string line) {
    for (char& c : line) {
        if (std::iscntrl(static_cast<unsigned char>(c)) != 0) c = ' ';
    }
    std::fprintf(stderr, "fabricd-device-plugin: %s\n", line.c_str());
}

// Whether the path still names the folder that is open.
bool is_folder_at(const Fd& folder, const std::string& path) {
    struct stat open_one {};
    struct stat named {};
    if (::fstat(folder.get(), &open_one) != 0 || ::stat(path.c_str(), &named) != 0) return false;
    return open_one.st_dev == named.st_dev && open_one.st_ino == named.st_ino;
}

// The folder itself: a kubelet that starts removes the files in it, and a lock file with them.
Result<Fd> hold_folder(const std::string& folder) {
    Fd held(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!held) {
        const int failure = errno;
        return explain(fabricshm::error_from_errno(failure, "open folder"),
                       "can't open %s (--plugin-folder): %s", folder.c_str(),
                       std::strerror(failure));
    }
    if (::flock(held.get(), LOCK_EX | LOCK_NB) != 0) {
        return explain({Errc::kBusy, 0, "lock folder"},
                       "another fabricd-device-plugin serves %s (--plugin-folder)", folder.c_str());
    }
    return held;
}

std::unique_ptr<grpc::Server> serve_devices(DeviceService& service) {
    grpc::ServerBuilder builder;
    grpc::ResourceQuota quota("devices");
    quota.SetMaxThreads(kPluginThreads);
    builder.SetResourceQuota(quota);
    builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
    builder.RegisterService(&service);
    return builder.BuildAndStart();
}

/// A line of the log, once for as long as it is true.
class News {
  public:
    void report(const std::string& line) {
        if (line == last_) return;
        last_ = line;
        say(line);
    }

  private:
    std::string last_;
};

}  // namespace

struct DevicePlugin::Impl {
    explicit Impl(PluginOptions given) : options(std::move(given)), service(options) {}
    ~Impl();

    PluginOptions options;
    Fd folder;
    DeviceService service;
    std::unique_ptr<grpc::Server> server;
    std::optional<PluginSocket> socket;  // gone before the server it hands connections to
    std::optional<PoolProbe> probe;

    std::optional<SocketIdentity> registered_at;  // the kubelet that has us
    TimePoint last_stream{};                      // there was a stream, or a new registration
    News daemon_news, kubelet_news, socket_news;

    void look_at_daemon();
    bool keep_folder();
    void keep_socket();
    void keep_registered();
};

DevicePlugin::Impl::~Impl() {
    socket.reset();
    service.stop();
    // Waits for the handlers, which have ended or been cancelled.
    if (server != nullptr) server->Shutdown(std::chrono::system_clock::now() + kServerEnd);
}

void DevicePlugin::Impl::look_at_daemon() {
    const auto state = probe->read();
    service.update(state.ok() ? std::optional(*state) : std::nullopt);
    if (!state.ok()) {
        daemon_news.report(explanation_of(state.error()) + ": its devices are unhealthy");
    } else if (state->is_draining) {
        daemon_news.report("fabricd takes no new arenas (drain): its devices are unhealthy");
    } else {
        const std::string reserve =
            options.reserve == 0 ? "" : " with --reserve " + format_bytes(options.reserve);
        daemon_news.report("offers " + std::to_string(service.healthy()) + " GiB of a pool of " +
                           format_bytes(state->capacity) + reserve);
    }
}

// A node that was set up again has another one.
bool DevicePlugin::Impl::keep_folder() {
    if (is_folder_at(folder, options.folder)) return true;
    auto held = hold_folder(options.folder);
    if (!held.ok()) {
        socket_news.report(explanation_of(held.error()));
        return false;
    }
    folder = std::move(held).value();
    return true;
}

void DevicePlugin::Impl::keep_socket() {
    if (socket && socket->is_in_place()) return;
    if (socket) socket_news.report("the socket was removed; making it again");
    socket.reset();
    if (!keep_folder()) return;
    auto opened = PluginSocket::open(options.endpoint_path(), *server);
    if (opened.ok()) {
        socket.emplace(std::move(opened).value());
        // The next time it is news again.
        socket_news = {};
        return;
    }
    socket_news.report(explanation_of(opened.error()));
}

void DevicePlugin::Impl::keep_registered() {
    const TimePoint now = Clock::now();
    if (service.streams() != 0) last_stream = now;
    // Before the call: a kubelet that starts during it is another one at the next look.
    const auto kubelet = socket_identity(options.kubelet_socket());
    if (!kubelet) {
        registered_at.reset();
        kubelet_news.report("waits for a kubelet at " + options.kubelet_socket());
        return;
    }
    if (!socket) return;
    const Duration grace = std::max(kMinStreamGrace, kStreamGracePolls * options.poll);
    const bool is_lost = now - last_stream > grace;
    if (registered_at == kubelet && !is_lost) return;
    const auto done = register_plugin(options.kubelet_socket(), PluginOptions::kEndpoint);
    last_stream = Clock::now();
    if (!done.ok()) {
        registered_at.reset();
        kubelet_news.report(explanation_of(done.error()));
        return;
    }
    if (registered_at != kubelet) kubelet_news = {};
    registered_at = kubelet;
    kubelet_news.report(std::string("registered ") + kPoolResource + " at " +
                        options.kubelet_socket());
}

DevicePlugin::DevicePlugin(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
DevicePlugin::DevicePlugin(DevicePlugin&&) noexcept = default;
DevicePlugin::~DevicePlugin() = default;

Result<DevicePlugin> DevicePlugin::start(const PluginOptions& options) {
    // Never given back: the end of the last use joins a thread of gRPC's (1.51) that polls for ten
    // seconds after a large message, and the end of this process is not to wait for it.
    ::grpc_init();
    auto impl = std::make_unique<Impl>(options);
    FABRIC_TRY(impl->folder, hold_folder(options.folder));
    impl->server = serve_devices(impl->service);
    if (impl->server == nullptr) return Error{Errc::kSystem, 0, "start gRPC"};
    FABRIC_TRY(auto socket, PluginSocket::open(options.endpoint_path(), *impl->server));
    impl->socket.emplace(std::move(socket));
    impl->probe.emplace(options.admin_socket);
    return DevicePlugin(std::move(impl));
}

void DevicePlugin::run(const Fd& stop) {
    const Duration poll = impl_->options.poll;
    const int poll_ms = static_cast<int>(poll / std::chrono::milliseconds(1));
    for (;;) {
        impl_->keep_socket();
        impl_->look_at_daemon();
        impl_->keep_registered();
        pollfd wait{stop.get(), POLLIN, 0};
        if (::poll(&wait, 1, poll_ms) < 0 && errno != EINTR) return;
        if (wait.revents != 0) return;
    }
}

}  // namespace fabricd
