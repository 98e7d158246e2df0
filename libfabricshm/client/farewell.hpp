// Stay: one session at a daemon whose pool several hosts share, until this process can write to
// nothing of it any more. docs/protocol.md, "Goodbyes that have to arrive".

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libfabricshm/client/connection.hpp"
#include "libfabricshm/os/unix_socket.hpp"

namespace fabricshm {

/// The session and each of its mapped arenas hold it; the last one to let go says goodbye.
///
/// A daemon of a shared pool can't end a session because it is silent: the process may be stopped,
/// or behind a cut, and write later. The process alone knows that it has unmapped everything, so
/// the goodbye is said until a daemon has answered it, by one thread for all sessions of this
/// process, which ends with the last of them. A process that ends first needs no goodbye: its end
/// is noticed by the kernel's word.
class Stay {
  public:
    /// `sockets`: where the daemon, or the next one, is to be found.
    Stay(std::vector<std::string> sockets, const SessionIdentity& identity);
    /// Never waits. In a forked child nothing happens: the session is the parent's.
    ~Stay();
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;

    /// A goodbye was sent through `line`, and nothing follows. The daemon is asked whether it
    /// arrived when it has closed the line. Not while another thread may destroy the object.
    void hand_over(std::shared_ptr<const UnixSocket> line) noexcept { line_ = std::move(line); }

  private:
    std::vector<std::string> sockets_;
    const SessionIdentity identity_;
    std::shared_ptr<const UnixSocket> line_;
    const std::uint32_t generation_;
};

/// Of a new session; nullptr at a daemon of one host alone, which ends what does not come back.
std::shared_ptr<Stay> stay_of(const std::vector<std::string>& sockets,
                              const SessionIdentity& identity);

/// How many goodbyes of this process have not been answered yet. For tests.
std::size_t unanswered_farewells() noexcept;

}  // namespace fabricshm
