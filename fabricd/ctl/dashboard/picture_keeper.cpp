#include "fabricd/ctl/dashboard/picture_keeper.hpp"

#include <malloc.h>

#include <algorithm>

#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;
using std::chrono::steady_clock;

namespace {

constexpr std::uint32_t kAskedDecisions = 50;
constexpr std::uint32_t kAskedEvents = 100;
constexpr std::size_t kManySessions = 2000;
// Of one picture: more pages than people have open.
constexpr std::size_t kMaxTexts = 16;

std::int64_t unix_ms_now() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

std::string text_of(const Error& error, const std::string& socket) {
    if (error.code == Errc::kDaemon) return "no fabricd answers at " + socket;
    if (error.code == Errc::kDenied) return socket + " is for the daemon's own user and root";
    return fabricshm::explanation_of(error);
}

}  // namespace

PictureKeeper::PictureKeeper(PictureKeeperOptions options)
    : options_(std::move(options)), asked_(steady_clock::now()), thread_([this] { run(); }) {}

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
        const auto begin = steady_clock::now();
        const bool all = begin - asked_ < options_.idle_after;
        lock.unlock();
        auto fetched = fetch(all);
        // A daemon that does not answer costs nothing while it is waited for.
        const bool answers = fetched.ok();
        const auto took = answers ? steady_clock::now() - begin : steady_clock::duration(0);
        if (!answers) client_.reset();  // a daemon that was started again has another socket
        keep(std::move(fetched));
        const int share = all ? options_.share_of_time : options_.idle_share_of_time;
        const auto interval = std::clamp<steady_clock::duration>(
            took * share, options_.interval, std::max(options_.interval, options_.max_interval));
        lock.lock();
        // A page that comes after a while does not wait.
        changed_.wait_until(lock, begin + interval,
                            [&] { return stopping_ || (!all && asked_ > begin); });
    }
}

Result<DashboardPicture> PictureKeeper::fetch(bool all) {
    if (client_ == nullptr) {
        FABRIC_TRY(AdminClient made, AdminClient::connect(options_.admin_socket, options_.timeout));
        client_ = std::make_unique<AdminClient>(std::move(made));
    }
    std::optional<AdminClient::Rest> rest;
    if (all) rest = {kAskedDecisions, kAskedEvents};
    FABRIC_TRY(AdminClient::WholePicture whole, client_->picture(rest));
    DashboardPicture got;
    got.picture = std::move(whole.picture);
    got.decisions = std::move(whole.decisions);
    got.events = std::move(whole.events);
    got.cluster = std::move(whole.cluster);
    got.vgpus = std::move(whole.vgpus);
    got.is_whole = all;
    return got;
}

// Pages that have a picture, and so need no history.
std::vector<PictureQuery> PictureKeeper::asked_lately() {
    std::vector<PictureQuery> queries;
    const std::lock_guard lock(mutex_);
    for (const auto& [key, text] : texts_) {
        if (text.is_asked && text.query.since != 0) queries.push_back(text.query);
    }
    return queries;
}

void PictureKeeper::keep(Result<DashboardPicture> fetched) {
    const std::int64_t now = unix_ms_now();
    // Before the lock is taken, which those that ask wait for. What it reads of this object is
    // written by this thread alone.
    Kept picture;
    if (fetched.ok()) {
        fetched->sums = sums_of(fetched->picture);
        picture = std::make_shared<const DashboardPicture>(std::move(fetched).value());
    }
    PictureStamp stamp = stamp_;
    ++stamp.number;
    stamp.unix_ms = now;
    stamp.answers = picture != nullptr;
    stamp.socket = options_.admin_socket;
    stamp.error = picture ? "" : text_of(fetched.error(), options_.admin_socket);
    // A daemon that stays away is no news.
    const bool is_first = stamp_.number == 0;
    if (!is_first && !stamp.answers && !stamp_.answers && stamp.error == stamp_.error) return;
    if (is_first || stamp.answers != stamp_.answers) stamp.since_unix_ms = now;
    Texts texts;
    for (const PictureQuery& query : asked_lately()) {
        const DashboardPicture* shown = picture ? picture.get() : picture_.get();
        auto json = std::make_shared<const std::string>(picture_text(stamp, shown, query, ""));
        texts.emplace(query.key(), Text{query, std::move(json), false});
    }

    {
        const std::lock_guard lock(mutex_);
        stamp_ = std::move(stamp);
        texts_.swap(texts);
        if (picture != nullptr) {
            history_.add(now, picture->picture, picture->sums);
            picture_.swap(picture);
        }
        changed_.notify_all();
    }
    // The one before, unless a page is just being made of it.
    const bool was_large = picture != nullptr && picture->picture.sessions.size() > kManySessions;
    picture.reset();
    // Messages and pictures come and go by the ten thousand pieces: glibc would keep their pages.
    if (was_large) ::malloc_trim(0);
}

PictureKeeper::Newest PictureKeeper::newest(const PictureQuery& query) {
    std::unique_lock lock(mutex_);
    asked_ = steady_clock::now();
    changed_.notify_all();
    // The first page may be there before the first answer, and one that comes after a while before
    // there is more than the curves need.
    changed_.wait_for(lock, options_.timeout, [this] {
        const bool is_whole = stamp_.number != 0 && (!stamp_.answers || picture_->is_whole);
        return stopping_ || is_whole;
    });
    const PictureStamp stamp = stamp_;
    if (stamp.number == 0 || stamp.number == query.since) return {stamp.number, nullptr};
    const std::string key = query.key();
    const auto found = texts_.find(key);
    if (found != texts_.end()) {
        found->second.is_asked = true;
        return {stamp.number, found->second.json};
    }
    const Kept picture = picture_;
    const std::string history = query.since == 0 ? history_.text(kMaxHistoryBytes, query) : "";
    lock.unlock();
    auto text =
        std::make_shared<const std::string>(picture_text(stamp, picture.get(), query, history));
    lock.lock();
    // Not when there is a newer picture, nor of queries that are all different.
    if (stamp_.number == stamp.number && texts_.size() < kMaxTexts) {
        texts_.emplace(key, Text{query, text, true});
    }
    return {stamp.number, std::move(text)};
}

}  // namespace fabricd
