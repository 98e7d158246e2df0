#include "fabricd/jobs/agent_desk.hpp"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "fabricd/jobs/stream_limits.hpp"
#include "jobs.grpc.pb.h"

namespace fabricd {

using fabricshm::error_from_errno;
using fabricshm::Fd;
using fabricshm::Result;
using jobs::v1::AgentEvent;
using jobs::v1::Command;
using AgentStream = grpc::ServerReaderWriter<Command, AgentEvent>;

namespace {

// Output of ranks beyond that waits in the agents' pipes: a terminal that is stopped stops the
// ranks, and takes no memory.
constexpr std::size_t kMaxWaiting = 4096;
constexpr int kThreads = 256;  // one for each agent, and gRPC's own

/// What an agent has to be sent. Written by a thread of its own: an agent that is stopped takes
/// nothing, and must not keep the manager from its signals.
class Outbox {
  public:
    explicit Outbox(AgentStream& stream) : writing_([this, &stream] { write(stream); }) {}

    void add(const Command& command) {
        const std::lock_guard lock(mutex_);
        commands_.push_back(command);
        changed_.notify_one();
    }
    /// After the call was cancelled, or its last command taken: then write() returns.
    void end() {
        {
            const std::lock_guard lock(mutex_);
            is_over_ = true;
            changed_.notify_one();
        }
        writing_.join();
    }

  private:
    void write(AgentStream& stream) {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [&] { return !commands_.empty() || is_over_; });
            if (is_over_) return;
            const Command command = std::move(commands_.front());
            commands_.pop_front();
            lock.unlock();
            if (!stream.Write(command)) return;
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Command> commands_;
    bool is_over_ = false;
    std::thread writing_;  // last: it uses the others
};

}  // namespace

struct AgentDesk::Impl final : jobs::v1::TaskManager::Service {
    std::unique_ptr<grpc::Server> server;
    Fd wakeup{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    std::mutex mutex;
    std::condition_variable taken;
    std::vector<AgentNews> news;
    std::map<unsigned, Outbox*> outboxes;  // of agents that are registered
    bool is_stopped = false;

    void add(AgentNews one) {
        std::unique_lock lock(mutex);
        taken.wait(lock, [&] { return news.size() < kMaxWaiting || is_stopped; });
        news.push_back(std::move(one));
        const std::uint64_t more = 1;
        (void)!::write(wakeup.get(), &more, sizeof more);
    }

    grpc::Status Attach(grpc::ServerContext* context, AgentStream* stream) override {
        AgentEvent event;
        if (!stream->Read(&event) || !event.has_registered()) {
            return {grpc::StatusCode::INVALID_ARGUMENT, "not registered"};
        }
        const unsigned agent = event.registered().agent();
        Outbox outbox(*stream);
        {
            const std::lock_guard lock(mutex);
            outboxes[agent] = &outbox;
        }
        add({agent, false, event});
        while (stream->Read(&event)) add({agent, false, event});
        {
            const std::lock_guard lock(mutex);
            if (outboxes[agent] == &outbox) outboxes.erase(agent);
        }
        // It reads no more: what is still to be sent would be waited for.
        context->TryCancel();
        outbox.end();
        add({agent, true, {}});
        return grpc::Status::OK;
    }
};

AgentDesk::AgentDesk(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

AgentDesk::~AgentDesk() {
    stop();
}

Result<std::unique_ptr<AgentDesk>> AgentDesk::start() {
    auto impl = std::make_unique<Impl>();
    grpc::ServerBuilder builder;
    grpc::ResourceQuota quota("agents");
    quota.SetMaxThreads(kThreads);
    builder.SetResourceQuota(quota);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
    builder.RegisterService(impl.get());
    impl->server = builder.BuildAndStart();
    if (impl->server == nullptr) {
        return fabricshm::Error{fabricshm::Errc::kSystem, 0, "start the task manager's server"};
    }
    return std::unique_ptr<AgentDesk>(new AgentDesk(std::move(impl)));
}

Result<Fd> AgentDesk::connect() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return error_from_errno(errno, "make the agent's socket");
    }
    Fd other(ends[1]);
    FABRIC_TRY_VOID(add(Fd(ends[0])));
    return other;
}

Result<void> AgentDesk::add(Fd socket) {
    if (::fcntl(socket.get(), F_SETFL, O_NONBLOCK) != 0) {
        return error_from_errno(errno, "take an agent's socket");
    }
    grpc::AddInsecureChannelFromFd(impl_->server.get(), socket.release());
    return {};
}

int AgentDesk::wakeup() const noexcept {
    return impl_->wakeup.get();
}

std::vector<AgentNews> AgentDesk::take() {
    std::uint64_t count = 0;
    (void)!::read(impl_->wakeup.get(), &count, sizeof count);
    const std::lock_guard lock(impl_->mutex);
    impl_->taken.notify_all();
    return std::exchange(impl_->news, {});
}

bool AgentDesk::send(unsigned agent, const Command& command) {
    const std::lock_guard lock(impl_->mutex);
    const auto found = impl_->outboxes.find(agent);
    if (found == impl_->outboxes.end()) return false;
    found->second->add(command);
    return true;
}

void AgentDesk::stop() {
    {
        const std::lock_guard lock(impl_->mutex);
        if (std::exchange(impl_->is_stopped, true)) return;
        impl_->taken.notify_all();
    }
    impl_->server->Shutdown(std::chrono::system_clock::now());
    impl_->server->Wait();
}

}  // namespace fabricd
