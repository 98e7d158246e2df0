#include "libfabricshm/net/hosts_messages.hpp"

#include <utility>

namespace fabricshm::net {

Result<std::unique_ptr<HostsMessages>> HostsMessages::make(const HostsPlan& plan, int rank,
                                                           Links& links, Group& local,
                                                           Words words) {
    std::unique_ptr<HostsMessages> made(new HostsMessages(plan, rank, local, std::move(words)));
    Group* pool = local.world() > 1 ? &local : nullptr;
    FABRIC_TRY(made->mailbox_, HostsMailbox::make(plan, rank, links, pool, made->words_.named));
    return made;
}

bool HostsMessages::goes_far(const Call& call) const noexcept {
    return call.peer == kAnyPeer || plan_.remote(call.peer, rank_);
}

Call HostsMessages::local_call(const Call& call) const {
    Call local = call;
    local.peer = plan_.local_of(call.peer);
    return local;
}

Result<void> HostsMessages::run(const Call& call) {
    if (goes_far(call)) return mailbox_->run(call);
    const auto result = local_.run(local_call(call));
    return result.ok() ? result : explained(result.error());
}

Result<std::shared_ptr<Request>> HostsMessages::start(const Call& call) {
    if (goes_far(call)) {
        const std::shared_ptr<PendingRequest> request = mailbox_->post(call);
        if (request->done()) return std::shared_ptr<Request>(request);
        const std::lock_guard lock(starting_);
        if (worker_ == nullptr) worker_ = std::make_unique<Worker>();
        worker_->push([this] { mailbox_->finish_all(); });
        return std::shared_ptr<Request>(request);
    }
    const auto started = local_.start(local_call(call));
    if (!started.ok()) return explained(started.error());
    const auto request = std::make_shared<PendingRequest>();
    const int sender = call.kind == Kind::kRecv ? call.peer : -1;
    // The plan and the words outlive the local group, which calls it.
    (*started)->on_complete([words = words_, request, sender](const Result<void>& result) {
        request->complete(result.ok() ? result : words.named(words.of_local(result.error())),
                          result.ok() ? sender : -1);
    });
    return std::shared_ptr<Request>(request);
}

void HostsMessages::finish() noexcept {
    worker_.reset();
    mailbox_->stop();
}

}  // namespace fabricshm::net
