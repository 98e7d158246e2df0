#include "fabricd/data/silo/folder_silo.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "fabricd/data/silo/folder_place.hpp"
#include "fabricd/data/silo/open_writers.hpp"
#include "fabricd/data/silo/silo_writer.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::explain;
using fabricshm::Fd;
using fabricshm::kDiskBlock;

namespace {

constexpr unsigned kInFlight = 16;
// Times of files are those of the kernel's tick, 10 ms at most apart: what was written since may
// have the time of what was there before.
constexpr auto kTick = std::chrono::milliseconds(20);
// Between two looks at whether a file is still open for writing.
constexpr auto kWriterLook = std::chrono::milliseconds(5);

// Until what is written from now on gets another time. A clock of another machine that is ahead of
// ours is not waited for.
void wait_for_next_tick(const struct stat& status) {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    const std::uint64_t changed = nanoseconds_of(status.st_ctim);
    const std::uint64_t begin = nanoseconds_of(now);
    if (begin < changed) return;
    const std::chrono::nanoseconds passed(begin - changed);
    if (passed < kTick) std::this_thread::sleep_for(kTick - passed);
}

Fetched failed(std::uint64_t tag, const Error& error) {
    return {tag, FetchOutcome::kFailed, error, fabricshm::explanation_of(error)};
}

Fetched changed(std::uint64_t tag, const char* how) {
    return {tag, FetchOutcome::kChanged, {Errc::kOk, 0, ""}, how};
}

// Whether its times may hide that it is being written.
bool may_be_written(int fd, const struct stat& status) {
    switch (open_writers(fd)) {
        case OpenWriters::kNone:
            return false;
        case OpenWriters::kSome:
            return true;
        case OpenWriters::kUnknown:
            break;
    }
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    const std::uint64_t changed = nanoseconds_of(status.st_ctim);
    const std::uint64_t settled =
        changed + std::chrono::nanoseconds(FolderSilo::kWriterWait).count();
    return nanoseconds_of(now) < settled;
}

Fetched still_written(const Fetch& fetch) {
    const Error error =
        explain({Errc::kTimeout, 0, "read file"},
                "%s: a process has it open for writing, and its file system does not say when it "
                "writes",
                printable(fetch.path).c_str());
    Fetched ended = failed(fetch.tag, error);
    ended.is_of_file = true;
    return ended;
}

bool is_aligned(const Fetch& fetch) {
    const auto place = reinterpret_cast<std::uintptr_t>(fetch.into);
    return place % kDiskBlock == 0 && fetch.offset % kDiskBlock == 0 &&
           fabricshm::round_up(fetch.bytes, kDiskBlock) <= fetch.room;
}

}  // namespace

FolderSilo::FolderSilo(std::string place, std::span<std::byte> memory)
    : place_(std::move(place)), reader_(memory, kInFlight) {}

Result<std::unique_ptr<FolderSilo>> FolderSilo::open(const std::string& root,
                                                     std::span<std::byte> memory) {
    std::unique_ptr<FolderSilo> silo(new FolderSilo(root, memory));
    FABRIC_TRY_VOID(silo->find_root());
    return silo;
}

// Another folder may be there by now: one that was put in its place, or mounted on it.
Result<void> FolderSilo::find_root() {
    FABRIC_TRY(root_, open_silo_root(place_));
    return {};
}

Result<Fd> FolderSilo::open_inside(const std::string& path, int flags) const {
    return open_beneath(root_.get(), path, flags);
}

Result<void> FolderSilo::read_names(const std::string& folder) {
    const auto root = find_root();
    // A folder of a silo that is away is not gone.
    if (!root.ok() && root.error().code == Errc::kNotFound && !folder.empty()) {
        const std::string reason = fabricshm::explanation_of(root.error());
        return explain({Errc::kSystem, 0, "list folder"}, "%s", reason.c_str());
    }
    if (!root.ok()) return root.error();
    FABRIC_TRY(Fd fd, open_inside(folder, O_RDONLY | O_DIRECTORY));
    DIR* const stream = ::fdopendir(fd.get());
    if (stream == nullptr) return folder_error(errno, folder, "list folder");
    static_cast<void>(fd.release());
    names_.clear();
    errno = 0;
    while (const dirent* const entry = ::readdir(stream)) {
        const std::string name = entry->d_name;
        if (name == "." || name == ".." || is_temporary_name(name)) continue;
        names_.push_back(name);
    }
    const int saved_errno = errno;
    ::closedir(stream);
    listed_ = folder;
    if (saved_errno != 0) {
        names_.clear();
        return folder_error(saved_errno, folder, "list folder");
    }
    std::sort(names_.begin(), names_.end());
    return {};
}

void FolderSilo::add_entry(int folder, const std::string& path, const std::string& name,
                           SiloPage& page) const {
    const auto leave_out = [&](const std::string& reason) {
        if (page.left_out++ == 0) page.first_left_out = printable(path) + ": " + reason;
    };
    if (!is_silo_path(path)) return leave_out("longer than a path may be");
    struct stat status {};
    if (::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
        // Gone since the names were read.
        if (errno != ENOENT) leave_out("its facts can't be read");
        return;
    }
    if (S_ISLNK(status.st_mode)) {
        const auto target = open_inside(path, O_PATH);
        if (!target.ok()) return leave_out("a link that leads nowhere or out of the silo");
        if (::fstat(target->get(), &status) != 0) return leave_out("its facts can't be read");
    }
    const bool is_folder = S_ISDIR(status.st_mode);
    if (!is_folder && !S_ISREG(status.st_mode)) return leave_out("neither a file nor a folder");
    page.entries.push_back({name, is_folder, is_folder ? FileFacts{} : facts_of_file(status)});
}

// The names are read once for all pages that follow each other; the facts with their page.
Result<SiloPage> FolderSilo::list(const std::string& folder, const std::string& after,
                                  std::size_t most, TimePoint) {
    const bool goes_on = !after.empty() && folder == listed_;
    if (!goes_on) FABRIC_TRY_VOID(read_names(folder));
    FABRIC_TRY(const Fd fd, open_inside(folder, O_RDONLY | O_DIRECTORY));
    SiloPage page;
    const std::string prefix = folder.empty() ? "" : folder + "/";
    auto name = std::upper_bound(names_.begin(), names_.end(), after);
    if (after.empty()) name = names_.begin();
    for (; name != names_.end() && page.entries.size() < most; ++name) {
        add_entry(fd.get(), prefix + *name, *name, page);
    }
    page.is_last = name == names_.end();
    if (page.is_last) {
        names_ = {};
        listed_ = {};
    }
    return page;
}

Result<FileFacts> FolderSilo::look(const std::string& path, TimePoint) {
    FABRIC_TRY(const Fd fd, open_inside(path, O_PATH));
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) return folder_error(errno, path, "look at file");
    if (!S_ISREG(status.st_mode)) {
        return explain({Errc::kNotFound, 0, "look at file"}, "%s is no file",
                       printable(path).c_str());
    }
    return facts_of_file(status);
}

// Past the page cache where the place in memory and in the file allow it.
Result<Fd> FolderSilo::open_file(const Fetch& fetch) const {
    if (is_aligned(fetch)) {
        auto direct = open_inside(fetch.path, O_RDONLY | O_DIRECT);
        if (direct.ok() || direct.error().detail != EINVAL) return direct;
    }
    return open_inside(fetch.path, O_RDONLY);
}

bool FolderSilo::has_room() const noexcept {
    return reader_.has_room() && reader_.under_way() + written_.size() < kInFlight;
}

void FolderSilo::start(const Fetch& fetch) {
    FABRIC_CHECK(fetch.bytes <= fetch.room && fetch.offset + fetch.bytes <= fetch.facts.bytes);
    auto file = open_file(fetch);
    if (!file.ok()) {
        const bool is_gone = file.error().code == Errc::kNotFound;
        ended_.push_back(is_gone ? changed(fetch.tag, "it is gone")
                                 : failed(fetch.tag, file.error()));
        return;
    }
    const bool is_late = has_late_times(file->get());
    if (auto ended = begin({fetch, std::move(*file), is_late, Clock::now() + kWriterWait})) {
        ended_.push_back(std::move(*ended));
    }
}

// What it came to, if it is not to be read.
std::optional<Fetched> FolderSilo::begin(UnderWay work) {
    const Fetch& fetch = work.fetch;
    struct stat status {};
    if (::fstat(work.file.get(), &status) != 0) {
        return failed(fetch.tag, folder_error(errno, fetch.path, "look at file"));
    }
    if (!S_ISREG(status.st_mode) || facts_of_file(status) != fetch.facts) {
        return changed(fetch.tag, "it is another version");
    }
    // Whatever is written after this has another time than the version has.
    wait_for_next_tick(status);
    if (work.has_late_times && may_be_written(work.file.get(), status)) {
        if (Clock::now() >= work.give_up) return still_written(fetch);
        written_.push_back(std::move(work));
        return std::nullopt;
    }
    const bool direct = (::fcntl(work.file.get(), F_GETFL) & O_DIRECT) != 0;
    const Bytes bytes = direct ? fabricshm::round_up(fetch.bytes, kDiskBlock) : fetch.bytes;
    const std::uint64_t tag = ++last_tag_;
    reader_.start({work.file.get(), fetch.into, bytes, fetch.offset, tag});
    under_way_[tag] = std::move(work);
    return std::nullopt;
}

// Nothing: it is read again.
std::optional<Fetched> FolderSilo::verdict_on(UnderWay& work, const fabricshm::DiskReadDone& done) {
    const Fetch& fetch = work.fetch;
    if (done.error != 0)
        return failed(fetch.tag, folder_error(done.error, fetch.path, "read file"));
    struct stat status {};
    if (::fstat(work.file.get(), &status) != 0) {
        return failed(fetch.tag, folder_error(errno, fetch.path, "look at file"));
    }
    // Looked at after the read: a write before its end would have changed the time.
    if (done.bytes < fetch.bytes || facts_of_file(status) != fetch.facts) {
        return changed(fetch.tag, "it changed while it was read");
    }
    // A mapping that was made meanwhile would not.
    if (work.has_late_times && may_be_written(work.file.get(), status)) {
        written_.push_back(std::move(work));
        return std::nullopt;
    }
    return Fetched{fetch.tag, FetchOutcome::kWhole, {Errc::kOk, 0, ""}, ""};
}

// Those that no process writes by now, and those that have waited long enough.
void FolderSilo::begin_unwritten() {
    for (UnderWay& work : std::exchange(written_, {})) {
        if (!reader_.has_room()) {
            written_.push_back(std::move(work));
        } else if (auto ended = begin(std::move(work))) {
            ended_.push_back(std::move(*ended));
        }
    }
}

std::vector<fabricshm::DiskReadDone> FolderSilo::wait_for_reads(TimePoint deadline) {
    if (written_.empty()) return reader_.wait(deadline);
    const TimePoint look = std::min(deadline, Clock::now() + kWriterLook);
    // Also with nothing that the reader could wait for.
    if (reader_.under_way() == 0) std::this_thread::sleep_until(look);
    return reader_.wait(look);
}

std::vector<Fetched> FolderSilo::wait(TimePoint deadline) {
    for (;;) {
        begin_unwritten();
        const auto read = wait_for_reads(ended_.empty() ? deadline : fabricshm::kNoWait);
        for (const auto& done : read) {
            const auto work = under_way_.find(done.tag);
            FABRIC_CHECK(work != under_way_.end());
            auto ended = verdict_on(work->second, done);
            under_way_.erase(work);
            if (ended) ended_.push_back(std::move(*ended));
        }
        const bool has_more = !written_.empty() || !under_way_.empty();
        if (!ended_.empty() || !has_more || Clock::now() >= deadline) break;
    }
    return std::exchange(ended_, {});
}

}  // namespace fabricd
