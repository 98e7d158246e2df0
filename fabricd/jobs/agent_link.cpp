#include "fabricd/jobs/agent_link.hpp"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <mutex>
#include <thread>

#include "fabricd/jobs/stream_limits.hpp"
#include "jobs.grpc.pb.h"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Fd;
using jobs::v1::AgentEvent;
using jobs::v1::Command;

namespace {

constexpr auto kFarewell = std::chrono::seconds(5);

}  // namespace

struct AgentLink::Impl {
    std::unique_ptr<jobs::v1::TaskManager::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<AgentEvent, Command>> stream;
    Fd wakeup{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    std::mutex mutex;
    std::vector<Command> commands;
    bool is_open = true;
    std::thread reading;

    void wake() const {
        const std::uint64_t one = 1;
        (void)!::write(wakeup.get(), &one, sizeof one);
    }

    void read() {
        Command command;
        while (stream->Read(&command)) {
            const std::lock_guard lock(mutex);
            commands.push_back(std::move(command));
            wake();
        }
        const std::lock_guard lock(mutex);
        is_open = false;
        wake();
    }
};

AgentLink::AgentLink(Fd socket) : impl_(std::make_unique<Impl>()) {
    ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxJobMessage);
    auto channel = grpc::CreateCustomInsecureChannelFromFd("manager", socket.release(), arguments);
    impl_->stub = jobs::v1::TaskManager::NewStub(channel);
    impl_->stream = impl_->stub->Attach(&impl_->context);
    impl_->reading = std::thread([this] { impl_->read(); });
}

AgentLink::~AgentLink() {
    // The manager ends the stream when it has read all. One that is stopped is not waited for.
    impl_->stream->WritesDone();
    const auto deadline = fabricshm::Clock::now() + kFarewell;
    for (; is_open() && fabricshm::Clock::now() < deadline; take()) {
        pollfd wait{impl_->wakeup.get(), POLLIN, 0};
        ::poll(&wait, 1, 100);
    }
    impl_->context.TryCancel();
    impl_->reading.join();
    impl_->stream->Finish();
}

bool AgentLink::send(const AgentEvent& event) {
    return impl_->stream->Write(event);
}

int AgentLink::wakeup() const noexcept {
    return impl_->wakeup.get();
}

std::vector<Command> AgentLink::take() {
    std::uint64_t count = 0;
    (void)!::read(impl_->wakeup.get(), &count, sizeof count);
    const std::lock_guard lock(impl_->mutex);
    return std::exchange(impl_->commands, {});
}

bool AgentLink::is_open() {
    const std::lock_guard lock(impl_->mutex);
    return impl_->is_open || !impl_->commands.empty();
}

}  // namespace fabricd
