#include "fabricd/data/serve/write_worker.hpp"

#include <chrono>
#include <utility>

#include "fabricd/data/silo/open_silo.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;

namespace {

// How soon it looks for other steps while some are under way.
constexpr auto kTurn = 2ms;
constexpr auto kClearTime = 30s;

}  // namespace

WriteWorker::WriteWorker(std::unique_ptr<SiloWriter> writer, Options options)
    : options_(std::move(options)), writer_(std::move(writer)), thread_([this] { work(); }) {}

Result<std::unique_ptr<WriteWorker>> WriteWorker::start(const SiloSpec& spec, Options options) {
    FABRIC_TRY(auto writer, open_silo_writer(spec));
    return std::unique_ptr<WriteWorker>(new WriteWorker(std::move(writer), std::move(options)));
}

WriteWorker::~WriteWorker() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    has_step_.notify_all();
    thread_.join();
}

void WriteWorker::add(Step step) {
    {
        const std::lock_guard lock(mutex_);
        steps_.push_back(std::move(step));
    }
    has_step_.notify_one();
}

void WriteWorker::begin(std::uint64_t file, const WriteName& name, std::uint64_t tag) {
    add({[=](SiloWriter& writer) { writer.begin(file, name, tag); }, false});
}

void WriteWorker::append(std::uint64_t file, const std::byte* bytes, Bytes count,
                         std::uint64_t tag) {
    add({[=](SiloWriter& writer) { writer.append(file, bytes, count, tag); }, true});
}

void WriteWorker::commit(std::uint64_t file, std::uint64_t tag) {
    add({[=](SiloWriter& writer) { writer.commit(file, tag); }, true});
}

void WriteWorker::abort(std::uint64_t file, std::uint64_t tag) {
    add({[=](SiloWriter& writer) { writer.abort(file, tag); }, false});
}

void WriteWorker::clear() {
    for (const WriteName& name : options_.to_clear) {
        const auto cleared = writer_->clear(name, Clock::now() + kClearTime);
        const Error error = cleared.ok() ? Error{Errc::kOk, 0, ""} : cleared.error();
        options_.on_cleared(name, error, cleared.ok() ? "" : fabricshm::explanation_of(error));
        const std::lock_guard lock(mutex_);
        if (ends_) return;
    }
}

// False: there is none, or no room for it.
bool WriteWorker::start_next(std::unique_lock<std::mutex>& lock) {
    if (ends_ || steps_.empty() || (steps_.front().needs_room && !writer_->has_room())) {
        return false;
    }
    const Step step = std::move(steps_.front());
    steps_.pop_front();
    ++under_way_;
    lock.unlock();
    step.run(*writer_);
    lock.lock();
    return true;
}

void WriteWorker::work() {
    clear();
    std::unique_lock lock(mutex_);
    for (;;) {
        has_step_.wait(lock, [&] { return ends_ || !steps_.empty() || under_way_ != 0; });
        while (start_next(lock)) {
        }
        if (ends_) break;
        lock.unlock();
        auto done = writer_->wait(Clock::now() + kTurn);
        for (Written& written : done) options_.on_done(std::move(written));
        lock.lock();
        under_way_ -= done.size();
    }
    lock.unlock();
    // On the thread whose it is: what it borrows is the caller's again.
    writer_.reset();
}

}  // namespace fabricd
