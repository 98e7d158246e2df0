#include "fabricd/data/serve/file_table.hpp"

#include <algorithm>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/shm/data_listing.hpp"

namespace fabricd {

using fabricshm::data_chunks;
using fabricshm::Errc;
using fabricshm::kNoLine;

namespace {

// Other silos under the same names have other files.
std::uint32_t checksum_of(const std::vector<SiloSpec>& silos) {
    std::string text;
    for (const SiloSpec& silo : silos) {
        for (const auto& word : {silo.at, silo.from, silo.endpoint, silo.index}) {
            text += word + '\n';
        }
    }
    return fabricshm::crc32c(text.data(), text.size());
}

}  // namespace

FileTable::FileTable(const std::vector<SiloSpec>& silos, ChunkCache& cache)
    : silos_(silos), cache_(cache), by_path_(silos.size()), totals_(silos.size()) {}

void FileTable::count(const KnownFile& file, bool is_there) {
    Totals& totals = totals_[file.silo];
    const std::size_t empty = file.facts.bytes == 0 ? 1 : 0;
    totals.files += is_there ? 1 : -1;
    totals.empty_files += is_there ? empty : -empty;
    totals.bytes += is_there ? file.facts.bytes : -file.facts.bytes;
}

// All lines are there and this file's, and none is gone.
bool FileTable::is_whole(const NamedFile& file) const {
    if (file.first_line == kNoLine) return file.facts.bytes == 0;
    const std::uint64_t count = data_chunks(file.facts.bytes);
    const std::uint64_t lines = cache_.tables().lines;
    if (count == 0 || file.first_line >= lines || count > lines - file.first_line) return false;
    for (std::uint64_t chunk = 0; chunk < count; ++chunk) {
        const std::uint64_t line = file.first_line + chunk;
        const bool is_its = cache_.fields(line).file == file.id &&
                            cache_.fields(line).chunk == chunk &&
                            cache_.state(line) <= DataLineState::kLeaving;
        if (!is_its) return false;
    }
    return true;
}

void FileTable::take(const NamedFile& file) {
    for (std::uint32_t silo = 0; silo < silos_.size(); ++silo) {
        const std::string& at = silos_[silo].at;
        const bool is_below = file.path.size() > at.size() + 1 && file.path.rfind(at, 0) == 0 &&
                              file.path[at.size()] == '/';
        if (!is_below) continue;
        KnownFile known;
        known.id = file.id;
        known.silo = silo;
        known.path = file.path.substr(at.size() + 1);
        known.facts = file.facts;
        known.first_line = file.first_line;
        // A broken file of names may have an id or a path twice.
        if (const auto former = by_path_[silo].find(known.path); former != by_path_[silo].end()) {
            if (const KnownFile* one = find(former->second)) count(*one, false);
            files_.erase(former->second);
        }
        if (const KnownFile* one = find(file.id)) {
            count(*one, false);
            by_path_[one->silo].erase(one->path);
        }
        count(known, true);
        by_path_[silo][known.path] = file.id;
        files_[file.id] = std::move(known);
        return;
    }
}

Result<void> FileTable::open(const std::string& names, bool is_fresh) {
    if (is_fresh) cache_.format();
    std::vector<NamedFile> named;
    FABRIC_TRY(log_, NamesLog::open(names, cache_.tables().generation, checksum_of(silos_), named));
    for (const NamedFile& file : named) {
        last_id_ = std::max(last_id_, file.id);
        if (!is_fresh && is_whole(file)) take(file);
    }
    if (is_fresh) return {};
    std::vector<bool> known(cache_.tables().lines, false);
    for (const auto& [id, file] : files_) {
        for (std::uint64_t chunk = 0; chunk < data_chunks(file.facts.bytes); ++chunk) {
            known[file.first_line + chunk] = true;
        }
    }
    // Lines of files without a name have ids, too.
    for (std::uint64_t line = 0; line < cache_.tables().lines; ++line) {
        last_id_ = std::max(last_id_, cache_.fields(line).file);
    }
    cache_.take_up([&](std::uint64_t line) { return known[line]; });
    return {};
}

void FileTable::expect(std::uint32_t silo, std::size_t count) {
    auto& known = by_path_[silo];
    if (count <= known.size()) return;
    files_.reserve(files_.size() + count - known.size());
    known.reserve(count);
}

Result<const KnownFile*> FileTable::see(std::uint32_t silo, const std::string& path,
                                        const FileFacts& facts, TimePoint now) {
    const auto place = by_path_[silo].find(path);
    if (place != by_path_[silo].end()) {
        KnownFile& known = files_.at(place->second);
        if (known.facts == facts) {
            known.seen = now;
            return &known;
        }
        forget(known.id);
    }
    KnownFile file;
    file.id = ++last_id_;
    file.silo = silo;
    file.path = path;
    file.facts = facts;
    file.first_line = kNoLine;
    file.seen = now;
    if (facts.bytes != 0) {
        const auto first = cache_.add_file(file.id, facts.bytes);
        if (!first) {
            return fabricshm::explain({Errc::kNoMemory, 0, "take lines"},
                                      "the cache's table of %llu lines is full (cache.files)",
                                      static_cast<unsigned long long>(cache_.tables().lines));
        }
        file.first_line = *first;
    }
    log_.add({file.id, file.first_line, full_path(file), facts});
    by_path_[silo][path] = file.id;
    const auto [known, is_new] = files_.emplace(file.id, std::move(file));
    FABRIC_CHECK(is_new);
    count(known->second, true);
    return &known->second;
}

void FileTable::flush() {
    const auto written = log_.flush();
    if (written.ok()) return;
    // Without their names files are fetched again by the next service; this one goes on.
    fabricshm::log(fabricshm::LogLevel::kWarning, "%s", describe(written.error()).c_str());
}

void FileTable::confirm(std::uint64_t id, const FileFacts& facts) {
    const auto found = files_.find(id);
    if (found == files_.end()) return;
    KnownFile& known = found->second;
    FABRIC_CHECK(known.facts.bytes == facts.bytes);
    known.facts = facts;
    // The later record of an id counts.
    log_.add({id, known.first_line, full_path(known), facts});
    flush();
}

void FileTable::forget(std::uint64_t id) {
    const auto found = files_.find(id);
    if (found == files_.end()) return;
    const KnownFile file = std::move(found->second);
    files_.erase(found);
    count(file, false);
    by_path_[file.silo].erase(file.path);
    if (file.first_line != kNoLine) cache_.retire(file.first_line, data_chunks(file.facts.bytes));
    log_.remove(id);
    if (on_gone) on_gone(id);
}

const KnownFile* FileTable::find(std::uint64_t id) const {
    const auto found = files_.find(id);
    return found == files_.end() ? nullptr : &found->second;
}

const KnownFile* FileTable::find(std::uint32_t silo, const std::string& path) const {
    const auto found = by_path_[silo].find(path);
    return found == by_path_[silo].end() ? nullptr : find(found->second);
}

std::vector<std::uint64_t> FileTable::below(std::uint32_t silo, const std::string& folder) const {
    std::vector<std::uint64_t> ids;
    for (const auto& [path, id] : by_path_[silo]) {
        const bool is_below = folder.empty() || path == folder ||
                              (path.size() > folder.size() && path.rfind(folder, 0) == 0 &&
                               path[folder.size()] == '/');
        if (is_below) ids.push_back(id);
    }
    return ids;
}

std::string FileTable::full_path(const KnownFile& file) const {
    return silos_[file.silo].at + "/" + file.path;
}

// Of a folder's file it is a word of the version; web servers' are hashed.
std::int64_t FileTable::mtime_of(const KnownFile& file) const {
    const bool is_folder = silos_[file.silo].from.starts_with("/");
    return is_folder ? static_cast<std::int64_t>(file.facts.version.words[1]) : 0;
}

}  // namespace fabricd
