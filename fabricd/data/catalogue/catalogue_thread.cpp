#include "fabricd/data/catalogue/catalogue_thread.hpp"

#include <algorithm>
#include <future>
#include <optional>
#include <utility>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;

namespace {

// A page of a listing is one of these.
constexpr std::size_t kMaxWork = 4096;
// In one transaction: the queue has room again after some milliseconds.
constexpr std::size_t kMaxBatch = 512;

Result<void> read_all(Catalogue& catalogue, CatalogueContent& content) {
    content = {};
    FABRIC_TRY_VOID(catalogue.read_files(
        [&](CataloguedFile&& file) { content.files.push_back(std::move(file)); }));
    FABRIC_TRY_VOID(
        catalogue.read_slots([&](const CataloguedSlot& slot) { content.slots.push_back(slot); }));
    FABRIC_TRY(content.plans, catalogue.read_plans());
    return {};
}

}  // namespace

Result<std::unique_ptr<CatalogueThread>> CatalogueThread::start(const std::string& path,
                                                                CatalogueContent& content) {
    FABRIC_TRY(auto catalogue, Catalogue::open(path));
    const auto read = read_all(*catalogue, content);
    if (!read.ok()) {
        if (read.error().code != Errc::kCorrupt) return read.error();
        content = {};
        catalogue.reset();
        FABRIC_TRY_VOID(Catalogue::rename_bad(path, read.error()));
        FABRIC_TRY(catalogue, Catalogue::open(path));
    }
    return std::unique_ptr<CatalogueThread>(new CatalogueThread(path, std::move(catalogue)));
}

CatalogueThread::CatalogueThread(std::string path, std::unique_ptr<Catalogue> catalogue)
    : path_(std::move(path)),
      identity_(catalogue->identity()),
      opens_(catalogue->opens()),
      catalogue_(std::move(catalogue)),
      thread_([this] { run(); }) {}

CatalogueThread::~CatalogueThread() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    has_work_.notify_one();
    thread_.join();
}

bool CatalogueThread::add(CatalogueChange change) {
    return add(std::move(change), fabricshm::kNoWait);
}

bool CatalogueThread::add(CatalogueChange change, TimePoint deadline) {
    std::unique_lock lock(mutex_);
    const auto has_room = [&] { return off_ || work_.size() < kMaxWork; };
    const bool may_wait = deadline != fabricshm::kNoWait;
    if (may_wait) has_room_.wait_until(lock, deadline, has_room);
    if (off_ || !has_room()) {
        ++dropped_;
        return false;
    }
    work_.emplace_back(std::move(change));
    lock.unlock();
    has_work_.notify_one();
    return true;
}

// The question may be answered after its asker has given up: what it needs is its own.
bool CatalogueThread::ask(Question question, TimePoint deadline) {
    std::unique_lock lock(mutex_);
    const auto has_room = [&] { return off_ || work_.size() < kMaxWork; };
    if (!has_room_.wait_until(lock, deadline, has_room) || off_) return false;
    work_.emplace_back(std::move(question));
    lock.unlock();
    has_work_.notify_one();
    return true;
}

void CatalogueThread::then(std::function<void(bool written)> call) {
    static_cast<void>(
        ask([call = std::move(call)](Catalogue* catalogue) { call(catalogue != nullptr); },
            fabricshm::kNoWait));
}

bool CatalogueThread::flush(TimePoint deadline) {
    auto done = std::make_shared<std::promise<bool>>();
    auto answer = done->get_future();
    if (!ask([done](Catalogue* catalogue) { done->set_value(catalogue != nullptr); }, deadline))
        return false;
    return answer.wait_until(deadline) == std::future_status::ready && answer.get();
}

namespace {

const Error kOff{Errc::kClosed, 0, "catalogue"};
const Error kLate{Errc::kTimeout, 0, "catalogue"};

}  // namespace

Result<SiloPage> CatalogueThread::read_page(const std::string& folder, const std::string& after,
                                            std::size_t most, TimePoint deadline) {
    auto done = std::make_shared<std::promise<Result<SiloPage>>>();
    auto answer = done->get_future();
    const bool asked = ask(
        [done, folder, after, most](Catalogue* catalogue) {
            done->set_value(catalogue != nullptr ? catalogue->read_page(folder, after, most)
                                                 : kOff);
        },
        deadline);
    if (!asked) return is_off() ? kOff : kLate;
    if (answer.wait_until(deadline) != std::future_status::ready) return kLate;
    return answer.get();
}

Result<FileFacts> CatalogueThread::look(const std::string& path, TimePoint deadline) {
    auto done = std::make_shared<std::promise<Result<FileFacts>>>();
    auto answer = done->get_future();
    const bool asked = ask(
        [done, path](Catalogue* catalogue) {
            done->set_value(catalogue != nullptr ? catalogue->look(path) : kOff);
        },
        deadline);
    if (!asked) return is_off() ? kOff : kLate;
    if (answer.wait_until(deadline) != std::future_status::ready) return kLate;
    return answer.get();
}

bool CatalogueThread::is_off() const {
    const std::lock_guard lock(mutex_);
    return off_;
}

std::uint64_t CatalogueThread::dropped() const {
    const std::lock_guard lock(mutex_);
    return dropped_;
}

void CatalogueThread::write(const std::vector<CatalogueChange>& changes) {
    if (!catalogue_ || changes.empty()) return;
    const auto written = catalogue_->write(changes);
    if (written.ok()) return;
    const Error error = written.error();
    fabricshm::log(fabricshm::LogLevel::kWarning,
                   "%s: %s; what is cached now is not found after a restart", path_.c_str(),
                   fabricshm::explanation_of(error).c_str());
    catalogue_.reset();
    // A new one is begun at the next start; not now, since its ids would be this one's once more.
    if (error.code == Errc::kCorrupt) static_cast<void>(Catalogue::rename_bad(path_, error));
    {
        const std::lock_guard lock(mutex_);
        off_ = true;
    }
    has_room_.notify_all();
}

void CatalogueThread::answer(const std::vector<Question>& questions) {
    for (const Question& question : questions) question(catalogue_.get());
}

void CatalogueThread::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        has_work_.wait(lock, [&] { return ends_ || !work_.empty(); });
        if (work_.empty()) return;
        std::vector<CatalogueChange> changes;
        std::vector<Question> questions;
        // A question comes behind the changes before it: the batch ends with it.
        while (!work_.empty() && changes.size() < kMaxBatch) {
            const bool is_change = std::holds_alternative<CatalogueChange>(work_.front());
            if (is_change && !questions.empty()) break;
            if (is_change) {
                changes.push_back(std::move(std::get<CatalogueChange>(work_.front())));
            } else {
                questions.push_back(std::move(std::get<Question>(work_.front())));
            }
            work_.pop_front();
        }
        lock.unlock();
        has_room_.notify_all();
        write(changes);
        answer(questions);
        lock.lock();
    }
}

}  // namespace fabricd
