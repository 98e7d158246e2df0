// The socket at which processes ask for their vGPU, and the watch over those that did.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fabricd/vgpu/vgpu_limits.hpp"
#include "libfabricshm/os/closer.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/proto/vgpu_messages.hpp"

struct pollfd;

namespace fabricd {

/// A thread of its own: the death of a tenant is noticed however busy the control thread is, and a
/// tenant that is slow or silent holds up no other.
class VgpuServer {
  public:
    struct Options {
        std::string socket_path;
        unsigned socket_mode = 0600;
        /// Whether this user may ask at all. Called on the server's thread, before a byte is read.
        std::function<bool(std::uint32_t uid, std::uint32_t gid, int socket)> admits;
        /// The process on the other end. Empty: as the kernel says; tests have users that are not
        /// there.
        std::function<Result<fabricshm::PeerCredentials>(const fabricshm::UnixSocket&)> peer_of =
            {};
        /// Processes that are watched at a time, each of which holds a descriptor. One more is
        /// refused with kBusy: a process that is not watched would keep its memory when it dies.
        std::size_t max_tenants = 4096;
        /// A caller that has connected and asked for nothing by then is cut off: its place is for
        /// others.
        fabricshm::Duration ask_within = std::chrono::seconds(2);
    };

    /// Listens and starts the thread. `limits` outlives the server. kBusy: another process listens.
    static Result<std::unique_ptr<VgpuServer>> start(Options options, VgpuLimits& limits);

    /// Removes the socket; tenants go on with the limits as they are.
    ~VgpuServer();
    VgpuServer(const VgpuServer&) = delete;
    VgpuServer& operator=(const VgpuServer&) = delete;

  private:
    struct Caller {  // connected, has not asked yet
        fabricshm::UnixSocket socket;
        fabricshm::PeerCredentials peer;
        fabricshm::TimePoint until;
        bool is_heard_no_more = false;  // refused, or sent what cannot be taken now
    };
    struct Tenant {
        std::string vgpu;
        fabricshm::ProcessIdentity process;
        fabricshm::Fd pidfd;
        bool is_dead = false;
    };

    VgpuServer(Options options, VgpuLimits& limits, fabricshm::UnixSocket listener,
               fabricshm::Fd wake);
    void serve();
    int timeout_ms(bool is_shrinking);
    void take_callers();
    void take_caller(fabricshm::UnixSocket socket);
    void make_room();
    void let_go(std::list<Caller>::iterator caller);
    bool hear(Caller& caller);
    void answer(const Caller& caller, const Result<VgpuLimits::Files>& files);
    Result<VgpuLimits::Files> admit(const Caller& caller,
                                    const fabricshm::proto::VgpuRequest& request);
    void watch_known();
    Result<void> watch(Tenant tenant);
    void bury();
    void trim();

    Options options_;
    VgpuLimits& limits_;
    fabricshm::UnixSocket listener_;
    fabricshm::Fd wake_;      // an eventfd
    fabricshm::Fd modified_;  // an inotify of the ledgers' files
    std::atomic<bool> stopping_{false};
    fabricshm::Closer closer_;  // of what callers sent
    // The rest is the thread's own.
    std::list<Caller> callers_;
    std::list<Tenant> tenants_;
    fabricshm::TimePoint next_look_;
    bool is_short_ = false;  // of descriptors: the last caller could not be taken
    bool is_told_ = false;   // of every change of a ledger's file
    int shrinking_turns_ = 0;
    std::thread thread_;
};

}  // namespace fabricd
