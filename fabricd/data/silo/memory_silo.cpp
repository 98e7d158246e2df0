#include "fabricd/data/silo/memory_silo.hpp"

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::explain;

namespace {

// The first word of its versions: a folder's begin with a size, a web server's with a small byte
// that is not 0, and those of files that no silo has yet with 0xfab71c.
constexpr std::uint64_t kMadeVersion = 0xfab3ade000000000U;

std::string folder_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == path.npos ? "" : path.substr(0, slash);
}

std::string name_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == path.npos ? path : path.substr(slash + 1);
}

Error taken(const std::string& path) {
    return explain({Errc::kExists, 0, "begin file"}, "%s is there already",
                   printable(path).c_str());
}

Error missing(const std::string& path, const char* step) {
    return explain({Errc::kNotFound, 0, step}, "%s is not there", printable(path).c_str());
}

}  // namespace

MadeFiles::MadeFiles() {
    folders_[""];
}

const MadeFiles::Name* MadeFiles::find(const std::string& path) const {
    const auto folder = folders_.find(folder_of(path));
    if (folder == folders_.end()) return nullptr;
    const auto name = folder->second.find(name_of(path));
    return name == folder->second.end() ? nullptr : &name->second;
}

Result<void> MadeFiles::may_come(const std::string& path) const {
    const bool is_path = !path.empty() && is_silo_path(path);
    if (!is_path || is_temporary_name(name_of(path))) {
        return explain({Errc::kInvalid, 0, "begin file"}, "%s is no path of a file in a silo",
                       printable(path).c_str());
    }
    if (find(path) != nullptr) return taken(path);
    for (std::string folder = folder_of(path); !folder.empty(); folder = folder_of(folder)) {
        const Name* const name = find(folder);
        if (name == nullptr) continue;
        if (!name->is_folder) return taken(folder);
        break;
    }
    return {};
}

Result<void> MadeFiles::check_new(const std::string& path) const {
    const std::lock_guard lock(mutex_);
    return may_come(path);
}

Result<void> MadeFiles::add(const std::string& path, const FileFacts& facts, TimePoint now) {
    const std::lock_guard lock(mutex_);
    FABRIC_TRY_VOID(may_come(path));
    folders_[folder_of(path)][name_of(path)] = {false, facts, now, false};
    for (std::string folder = folder_of(path); !folder.empty(); folder = folder_of(folder)) {
        const bool is_new = folders_[folder_of(folder)]
                                .try_emplace(name_of(folder), Name{true, {}, now, false})
                                .second;
        if (!is_new) break;
    }
    return {};
}

Result<FileFacts> MadeFiles::look(const std::string& path) const {
    const std::lock_guard lock(mutex_);
    const Name* const name = find(path);
    if (name == nullptr || name->is_folder) return missing(path, "look at file");
    return name->facts;
}

Result<SiloPage> MadeFiles::list(const std::string& folder, const std::string& after,
                                 std::size_t most) const {
    const std::lock_guard lock(mutex_);
    const auto found = folders_.find(folder);
    if (found == folders_.end()) return missing(folder, "list folder");
    SiloPage page;
    auto name = after.empty() ? found->second.begin() : found->second.upper_bound(after);
    for (; name != found->second.end() && page.entries.size() < most; ++name) {
        page.entries.push_back({name->first, name->second.is_folder, name->second.facts});
    }
    page.is_last = name == found->second.end();
    return page;
}

const MadeFiles::Name* MadeFiles::find_version(const std::string& path,
                                               const FileFacts& facts) const {
    const Name* const name = find(path);
    return name == nullptr || name->is_folder || name->facts != facts ? nullptr : name;
}

void MadeFiles::erase(const std::string& path) {
    folders_[folder_of(path)].erase(name_of(path));
    for (std::string folder = folder_of(path); !folder.empty(); folder = folder_of(folder)) {
        const auto empty = folders_.find(folder);
        if (!empty->second.empty()) break;
        folders_.erase(empty);
        folders_[folder_of(folder)].erase(name_of(folder));
    }
}

bool MadeFiles::drop(const std::string& path, const FileFacts& facts, TimePoint now) {
    const std::lock_guard lock(mutex_);
    const Name* const name = find_version(path, facts);
    if (name == nullptr) return true;
    if (!name->is_settled && now - name->since < kSettles) return false;
    erase(path);
    return true;
}

void MadeFiles::settle(const std::string& path, const FileFacts& facts) {
    const std::lock_guard lock(mutex_);
    if (find_version(path, facts) != nullptr)
        folders_[folder_of(path)][name_of(path)].is_settled = true;
}

void MadeFiles::lose(const std::string& path, const FileFacts& facts) {
    const std::lock_guard lock(mutex_);
    if (find_version(path, facts) != nullptr) erase(path);
}

Result<SiloPage> MemorySilo::list(const std::string& folder, const std::string& after,
                                  std::size_t most, TimePoint) {
    return files_->list(folder, after, most);
}

Result<FileFacts> MemorySilo::look(const std::string& path, TimePoint) {
    return files_->look(path);
}

void MemorySilo::start(const Fetch& fetch) {
    Fetched ended;
    ended.tag = fetch.tag;
    // A comparison with the silo loses nothing.
    if (fetch.from_source) {
        ended.error = {Errc::kUnsupported, 0, "read file"};
        ended.reason = "the cache alone has the bytes of " + printable(fetch.path);
    } else if (files_->drop(fetch.path, fetch.facts, Clock::now())) {
        ended.outcome = FetchOutcome::kChanged;
        ended.reason = "it has left the cache, and nothing else had it";
    } else {
        ended.error = {Errc::kBusy, 0, "read file"};
        ended.reason =
            printable(fetch.path) + " has been made a moment ago, and its bytes are on their way";
    }
    ended_.push_back(std::move(ended));
}

// Nothing is ever under way.
std::vector<Fetched> MemorySilo::wait(TimePoint) {
    return std::exchange(ended_, {});
}

void MemoryWriter::end(const Written& outcome, std::uint64_t tag) {
    ended_.push_back(outcome);
    ended_.back().tag = tag;
}

void MemoryWriter::begin(std::uint64_t file, const WriteName& name, std::uint64_t tag) {
    FABRIC_CHECK(!under_way_.contains(file));
    File& begun = under_way_[file];
    begun.name = name;
    const auto may_come = files_->check_new(name.path);
    if (!may_come.ok()) {
        begun.failed.error = may_come.error();
        begun.failed.reason = fabricshm::explanation_of(may_come.error());
    }
    end(begun.failed, tag);
}

void MemoryWriter::append(std::uint64_t file, const std::byte*, Bytes count, std::uint64_t tag) {
    File& begun = under_way_.at(file);
    begun.bytes += count;
    end(begun.failed, tag);
}

void MemoryWriter::commit(std::uint64_t file, std::uint64_t tag) {
    File& begun = under_way_.at(file);
    if (!begun.failed.ok()) return end(begun.failed, tag);
    Written written;
    written.facts = {begun.bytes, {{kMadeVersion, begun.bytes, begun.name.token, file}}};
    const auto added = files_->add(begun.name.path, written.facts, Clock::now());
    if (!added.ok()) {
        begun.failed.error = added.error();
        begun.failed.reason = fabricshm::explanation_of(added.error());
        return end(begun.failed, tag);
    }
    under_way_.erase(file);
    end(written, tag);
}

void MemoryWriter::abort(std::uint64_t file, std::uint64_t tag) {
    under_way_.erase(file);
    end({}, tag);
}

// Nothing is ever under way.
std::vector<Written> MemoryWriter::wait(TimePoint) {
    return std::exchange(ended_, {});
}

}  // namespace fabricd
