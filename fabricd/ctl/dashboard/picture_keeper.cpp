#include "fabricd/ctl/dashboard/picture_keeper.hpp"

#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;
using std::chrono::steady_clock;

namespace {

constexpr std::uint32_t kDecisions = 50;
constexpr std::uint32_t kEvents = 100;

std::int64_t unix_ms_now() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

// What a daemon is not set up for (no control loop, no vGPUs) is an empty part of the picture; a
// daemon that has gone is the end of it.
template <typename Part>
Result<void> take(Result<Part> fetched, Part& into) {
    if (fetched.ok()) {
        into = std::move(fetched).value();
        return {};
    }
    const Errc code = fetched.error().code;
    if (code == Errc::kDaemon || code == Errc::kTimeout) return fetched.error();
    return {};
}

std::string text_of(const Error& error, const std::string& socket) {
    if (error.code == Errc::kDaemon) return "no fabricd answers at " + socket;
    if (error.code == Errc::kDenied) return socket + " is for the daemon's own user and root";
    return fabricshm::explanation_of(error);
}

}  // namespace

PictureKeeper::PictureKeeper(PictureKeeperOptions options)
    : options_(std::move(options)),
      asked_(steady_clock::now()),
      since_unix_ms_(unix_ms_now()),
      thread_([this] { run(); }) {}

PictureKeeper::~PictureKeeper() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void PictureKeeper::run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        const auto next = steady_clock::now() + options_.interval;
        const bool all = steady_clock::now() - asked_ < options_.idle_after;
        lock.unlock();
        auto fetched = fetch(all);
        if (!fetched.ok()) client_.reset();  // a daemon that was started again has another socket
        keep(std::move(fetched));
        lock.lock();
        changed_.wait_until(lock, next, [this] { return stopping_; });
    }
}

Result<DashboardPicture> PictureKeeper::fetch(bool all) {
    if (client_ == nullptr) {
        FABRIC_TRY(AdminClient made, AdminClient::connect(options_.admin_socket, options_.timeout));
        client_ = std::make_unique<AdminClient>(std::move(made));
    }
    DashboardPicture got;
    FABRIC_TRY(got.picture, client_->fetch(View::kTop, 0));
    if (!all) return got;
    FABRIC_TRY(Picture waiting, client_->fetch(View::kWaiting, 0));
    got.picture.waiting = std::move(waiting.waiting);
    FABRIC_TRY(Picture shards, client_->fetch(View::kShards, 0));
    got.picture.shards = std::move(shards.shards);
    FABRIC_TRY_VOID(take(client_->vgpus(), got.vgpus));
    FABRIC_TRY_VOID(take(client_->decisions(0, kDecisions), got.decisions));
    FABRIC_TRY_VOID(take(client_->events(kEvents), got.events));
    FABRIC_TRY_VOID(take(client_->hosts(), got.cluster));
    return got;
}

void PictureKeeper::keep(Result<DashboardPicture> fetched) {
    const std::int64_t now = unix_ms_now();
    // Written before the lock is taken, which those that ask wait for: with 10,000 sessions it
    // takes tenths of a second. What it reads of this object is written by this thread alone.
    const bool answers = fetched.ok();
    if (answers) last_ = json_of(*fetched);
    const std::int64_t since = answers != answers_ || number_ == 0 ? now : since_unix_ms_;
    Json page = {{"number", number_ + 1},
                 {"unix_ms", now},
                 {"daemon",
                  {{"answers", answers},
                   {"since_unix_ms", since},
                   {"socket", options_.admin_socket},
                   {"error", answers ? "" : text_of(fetched.error(), options_.admin_socket)}}}};
    page.update(last_);
    auto text = std::make_shared<const std::string>(one_line(page));

    const std::lock_guard lock(mutex_);
    ++number_;
    since_unix_ms_ = since;
    answers_ = answers;
    if (answers) history_.add(now, fetched->picture);
    text_ = std::move(text);
    changed_.notify_all();
}

PictureKeeper::Newest PictureKeeper::newest(bool with_history) {
    std::unique_lock lock(mutex_);
    asked_ = steady_clock::now();
    // The first page may be there before the first answer.
    changed_.wait_for(lock, options_.timeout, [this] { return number_ != 0 || stopping_; });
    if (text_ == nullptr) return {};
    if (!with_history) return {number_, text_};
    std::string text = *text_;
    text.pop_back();
    text += ",\"history\":" + one_line(history_.json()) + "}";
    return {number_, std::make_shared<const std::string>(std::move(text))};
}

}  // namespace fabricd
