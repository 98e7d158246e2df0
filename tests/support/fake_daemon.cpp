#include "tests/support/fake_daemon.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "libfabricshm/proto/codec.hpp"
#include "libfabricshm/shm/tensor_header.hpp"

using namespace fabricshm;
using fabricshm::proto::Message;
using fabricshm::proto::Type;

namespace test_support {

FakeDaemon::FakeDaemon() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    char name[] = "/tmp/fabric-fake-XXXXXX";
    folder_ = ::mkdtemp(name);
    path_ = folder_ + "/attach.sock";
    listener_ = UnixSocket::listen(path_, 0600, 16).value();
    thread_ = std::thread([this] { run(); });
}

FakeDaemon::~FakeDaemon() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake();
    thread_.join();
    ::unlink(path_.c_str());
    ::rmdir(folder_.c_str());
}

void FakeDaemon::wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

// The thread does it itself: while it polls, the kernel keeps the sockets open.
void FakeDaemon::die() {
    std::unique_lock lock(mutex_);
    dying_ = true;
    wake();
    arrived_.wait(lock, [this] { return !dying_; });
}

void FakeDaemon::close_everything() {
    listener_.reset();
    connections_.clear();
    waiting_.clear();
    kept_back_.clear();
    dying_ = false;
    arrived_.notify_all();
}

void FakeDaemon::come_back() {
    const std::lock_guard lock(mutex_);
    ++epoch_;
    listener_ = UnixSocket::listen(path_, 0600, 16).value();
    wake();
}

void FakeDaemon::share_pool(const std::string& profile) {
    const std::lock_guard lock(mutex_);
    profile_ = profile;
}

void FakeDaemon::be_older() {
    const std::lock_guard lock(mutex_);
    last_type_ = 0;
}

void FakeDaemon::be_newer() {
    const std::lock_guard lock(mutex_);
    last_type_ = static_cast<std::uint16_t>(proto::kLastType);
}

void FakeDaemon::forget_everything() {
    const std::lock_guard lock(mutex_);
    sessions_.clear();
    arenas_.clear();
    regions_.clear();
    tensors_.clear();
}

void FakeDaemon::be_silent(Type type) {
    const std::lock_guard lock(mutex_);
    silent_.insert(type);
}

void FakeDaemon::speak() {
    const std::lock_guard lock(mutex_);
    silent_.clear();
}

void FakeDaemon::stop_reading(bool stop) {
    const std::lock_guard lock(mutex_);
    reading_ = !stop;
    wake();
}

void FakeDaemon::refuse_next(Type type, Error error) {
    const std::lock_guard lock(mutex_);
    refusals_[type] = error;
}

void FakeDaemon::corrupt_next(Type type) {
    const std::lock_guard lock(mutex_);
    corrupted_.insert(type);
}

void FakeDaemon::lose_before_next(Type type, const proto::Region& lost) {
    const std::lock_guard lock(mutex_);
    losses_[type] = lost;
}

void FakeDaemon::answer_late() {
    const std::lock_guard lock(mutex_);
    silent_.clear();
    for (const Waiting& waiting : std::exchange(kept_back_, {})) {
        handle(waiting.connection, waiting.request);
    }
}

int FakeDaemon::count(Type type) const {
    const std::lock_guard lock(mutex_);
    const auto found = counts_.find(type);
    return found != counts_.end() ? found->second : 0;
}

bool FakeDaemon::wait_for(Type type, int count) const {
    std::unique_lock lock(mutex_);
    return arrived_.wait_for(lock, std::chrono::seconds(30), [&] {
        const auto found = counts_.find(type);
        return found != counts_.end() && found->second >= count;
    });
}

Message FakeDaemon::last(Type type) const {
    const std::lock_guard lock(mutex_);
    return last_.at(type);
}

int FakeDaemon::connections() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(connections_.size());
}

std::size_t FakeDaemon::sessions() const {
    const std::lock_guard lock(mutex_);
    return sessions_.size();
}

std::size_t FakeDaemon::regions() const {
    const std::lock_guard lock(mutex_);
    return regions_.size();
}

// Everything happens under the lock but the poll itself.
void FakeDaemon::run() {
    for (;;) {
        std::vector<pollfd> entries;
        std::vector<std::uint64_t> owners;
        int timeout = -1;
        {
            const std::lock_guard lock(mutex_);
            if (stopping_) return;
            if (dying_) close_everything();
            entries.push_back({wake_.get(), POLLIN, 0});
            owners.push_back(0);
            if (listener_) {
                entries.push_back({listener_.get(), POLLIN, 0});
                owners.push_back(0);
            }
            for (const auto& [id, socket] : connections_) {
                if (!reading_) break;
                entries.push_back({socket.get(), POLLIN, 0});
                owners.push_back(id);
            }
            if (!waiting_.empty()) timeout = 5;
        }
        ::poll(entries.data(), entries.size(), timeout);
        const std::lock_guard lock(mutex_);
        std::uint64_t drained = 0;
        [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &drained, sizeof drained);
        if (dying_) continue;
        if (listener_) accept_all();
        for (std::size_t i = 0; i < entries.size(); ++i) {
            if (entries[i].revents != 0 && owners[i] != 0) read_from(owners[i]);
        }
        answer_waiting();
    }
}

void FakeDaemon::accept_all() {
    for (;;) {
        auto accepted = listener_.accept(TimePoint{});
        if (!accepted.ok()) return;
        connections_[++last_id_] = std::move(accepted).value();
    }
}

void FakeDaemon::read_from(std::uint64_t connection) {
    const auto found = connections_.find(connection);
    if (found == connections_.end()) return;
    Message request;
    Fd presented;
    const auto received = found->second.receive(proto::writable_bytes_of(request),
                                                std::span(&presented, 1), TimePoint{});
    if (!received.ok()) {
        if (received.error().code != Errc::kTimeout) connections_.erase(found);
        return;
    }
    const Type type = proto::type_of(request.header);
    const bool is_known = last_type_ != 0 || type <= Type::kTrace;
    if (!is_known || !proto::check_request(request, received->bytes).ok()) {
        connections_.erase(found);
        return;
    }
    ++counts_[type];
    last_[type] = request;
    arrived_.notify_all();
    if (silent_.count(type) != 0) {
        kept_back_.push_back({connection, request, TimePoint::max()});
        return;
    }
    handle(connection, request);
}

void FakeDaemon::handle(std::uint64_t connection, const Message& request) {
    const Type type = proto::type_of(request.header);
    if (const auto refusal = refusals_.find(type); refusal != refusals_.end()) {
        send(connection, proto::make_error_reply(request.header, refusal->second), -1);
        refusals_.erase(refusal);
        return;
    }
    if (const auto loss = losses_.find(type); loss != losses_.end()) {
        Message news = proto::make_reply(proto::make_request(Type::kPoisoned, 0));
        news.region = loss->second;
        losses_.erase(loss);
        send(connection, news, -1);
    }
    Message reply = proto::make_reply(request);
    int descriptor = -1;
    if (act(request, reply, descriptor)) {
        // The second word of a body is an id or an offset in all of them, and never all ones.
        if (corrupted_.erase(type) != 0) std::memset(reply.raw, 0xff, sizeof reply.raw);
        send(connection, reply, descriptor);
    } else if (type != Type::kBye) {
        const auto wait = std::chrono::milliseconds(request.tensor.timeout_ms);
        waiting_.push_back({connection, request, Clock::now() + wait});
    }
}

// False when there is no answer, or not yet.
bool FakeDaemon::act(const Message& request, Message& reply, int& descriptor) {
    Error error{Errc::kOk, 0, ""};
    switch (proto::type_of(request.header)) {
        case Type::kHello:
            reply.hello.daemon_epoch = epoch_;
            reply.hello.last_type = last_type_;
            profile_.copy(reply.hello.visibility, sizeof reply.hello.visibility - 1);
            if (request.hello.session_id == 0) {
                reply.hello.session_id = ++last_id_;
                sessions_.insert(last_id_);
            } else if (sessions_.count(request.hello.session_id) == 0) {
                error = {Errc::kNotFound, 0, ""};
            }
            break;
        case Type::kArenaOpen:
            open_arena(reply, descriptor);
            break;
        case Type::kRegionCreate:
            error = make_region(reply.region, request.region.bytes);
            break;
        case Type::kRegionOpen:
            if (regions_.count(request.region.region_id) == 0)
                error = {Errc::kNotFound, 0, ""};
            else
                reply.region = regions_.at(request.region.region_id);
            break;
        case Type::kRegionFree:
            if (regions_.erase(request.region.region_id) == 0) error = {Errc::kNotFound, 0, ""};
            break;
        case Type::kTensorCreate: {
            const std::string name(proto::text_of(request.tensor.name));
            const std::span shape(request.tensor.shape, request.tensor.ndim);
            const Bytes bytes = proto::tensor_bytes(request.tensor.dtype, shape).value();
            if (tensors_.count(name) != 0) {
                error = {Errc::kExists, 0, ""};
            } else {
                error = make_region(reply.tensor.region, kTensorHeaderBytes + bytes);
                if (error.code == Errc::kOk) tensors_[name] = reply.tensor;
            }
            break;
        }
        case Type::kTensorOpen:
            if (!find_tensor(reply)) return false;
            break;
        case Type::kTensorFree: {
            const auto id = request.tensor.region.region_id;
            regions_.erase(id);
            std::erase_if(tensors_, [&](const auto& t) { return t.second.region.region_id == id; });
            break;
        }
        case Type::kBye:
            if (request.hello.session_id == 0) return false;
            if (sessions_.erase(request.hello.session_id) == 0) error = {Errc::kNotFound, 0, ""};
            break;
        default:
            break;
    }
    if (error.code != Errc::kOk) reply = proto::make_error_reply(request.header, error);
    return true;
}

void FakeDaemon::open_arena(Message& reply, int& descriptor) {
    Arena& arena = arenas_[std::string(proto::text_of(reply.arena_open.name))];
    if (!arena.fd) {
        arena.id = ++last_id_;
        arena.bytes = reply.arena_open.bytes != 0 ? reply.arena_open.bytes : kMiB;
        arena.bytes = round_up(arena.bytes, 4096);
        arena.fd = Fd(::memfd_create("fake", MFD_CLOEXEC));
        if (::ftruncate(arena.fd.get(), static_cast<off_t>(arena.bytes)) != 0) std::abort();
    }
    reply.arena_open.arena_id = arena.id;
    reply.arena_open.bytes = arena.bytes;
    reply.arena_open.align = 4096;
    descriptor = arena.fd.get();
}

Error FakeDaemon::make_region(proto::Region& region, Bytes bytes) {
    for (auto& [name, arena] : arenas_) {
        if (arena.id != region.arena_id) continue;
        const Bytes rounded = round_up(bytes, 4096);
        if (rounded > arena.bytes - arena.used) return {Errc::kNoMemory, 0, ""};
        region.region_id = ++last_id_;
        region.generation = last_id_;
        region.offset = arena.used;
        region.bytes = rounded;
        arena.used += rounded;
        regions_[region.region_id] = region;
        return {Errc::kOk, 0, ""};
    }
    return {Errc::kNotFound, 0, ""};
}

bool FakeDaemon::find_tensor(Message& reply) {
    const auto found = tensors_.find(std::string(proto::text_of(reply.tensor.name)));
    if (found == tensors_.end()) return false;
    reply.tensor = found->second;
    return true;
}

void FakeDaemon::answer_waiting() {
    for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
        Message reply = proto::make_reply(waiting->request);
        const bool found = find_tensor(reply);
        if (!found && Clock::now() < waiting->deadline) {
            ++waiting;
            continue;
        }
        const Error timeout{Errc::kTimeout, 0, ""};
        if (!found) reply = proto::make_error_reply(waiting->request.header, timeout);
        send(waiting->connection, reply, -1);
        waiting = waiting_.erase(waiting);
    }
}

void FakeDaemon::send(std::uint64_t connection, const Message& reply, int descriptor) {
    const auto found = connections_.find(connection);
    if (found == connections_.end()) return;
    const std::span<const int> descriptors(&descriptor, descriptor >= 0 ? 1 : 0);
    // Waits for room: a client with thousands of replies before this one may not have read them
    // yet.
    (void)found->second.send(proto::bytes_of(reply), descriptors,
                             Clock::now() + std::chrono::seconds(30));
}

}  // namespace test_support
