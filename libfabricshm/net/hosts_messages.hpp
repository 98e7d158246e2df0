// HostsMessages: send and receive of a group over several hosts. Between ranks of one host they go
// through its pool, else through the HostsMailbox.

#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/collective/worker.hpp"
#include "libfabricshm/net/hosts_mailbox.hpp"

namespace fabricshm::net {

/// Thread-safe. No failure of a message breaks the group.
class HostsMessages {
  public:
    struct Words {
        std::function<Error(const Error&)> of_local;  // ranks of this host are those of the group
        std::function<Error(const Error&)> named;     // with rank and host in words
    };
    /// All outlive it but the links, which go between finish() and its end.
    static Result<std::unique_ptr<HostsMessages>> make(const HostsPlan& plan, int rank,
                                                       Links& links, Group& local, Words words);

    /// A checked call.
    Result<void> run(const Call& call);
    Result<std::shared_ptr<Request>> start(const Call& call);
    /// Ends all of them.
    void stop() noexcept { mailbox_->stop(); }
    /// Waits for those that were started.
    void finish() noexcept;

  private:
    HostsMessages(const HostsPlan& plan, int rank, Group& local, Words words)
        : plan_(plan), rank_(rank), local_(local), words_(std::move(words)) {}
    bool goes_far(const Call& call) const noexcept;
    Call local_call(const Call& call) const;
    Error explained(const Error& error) const { return words_.named(words_.of_local(error)); }

    const HostsPlan& plan_;
    const int rank_;
    Group& local_;
    const Words words_;
    std::unique_ptr<HostsMailbox> mailbox_;
    std::mutex starting_;
    std::unique_ptr<Worker> worker_;  // drives what was started; under `starting_`
};

}  // namespace fabricshm::net
