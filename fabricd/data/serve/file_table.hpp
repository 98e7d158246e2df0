// FileTable: the versions of files that the service knows, with their lines in the arena.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "fabricd/data/blocks/chunk_cache.hpp"
#include "fabricd/data/data_spec.hpp"
#include "fabricd/data/serve/names_log.hpp"

namespace fabricd {

struct KnownFile {
    std::uint64_t id = 0;
    std::uint32_t silo = 0;
    std::string path;  // in the silo
    FileFacts facts;
    std::uint64_t first_line = 0;  // kNoLine: it has no bytes
    TimePoint seen{};              // in the silo, as it is here
};

/// The control thread's. A version has one id and its lines for as long as it is the file's.
class FileTable {
  public:
    FileTable(const std::vector<SiloSpec>& silos, ChunkCache& cache);

    /// Takes up what an earlier service left in the arena, or begins. Once, first. With `is_fresh`
    /// the tables are new.
    Result<void> open(const std::string& names, bool is_fresh);

    /// So many files of the silo are going to be seen: room for all of them at once.
    void expect(std::uint32_t silo, std::size_t count);
    /// The file is this version: the known one, or a new one, with the former one's lines gone.
    /// kNoMemory: the table of lines is full. Borrowed until the file is see()n or forgotten.
    Result<const KnownFile*> see(std::uint32_t silo, const std::string& path,
                                 const FileFacts& facts, TimePoint now);
    /// Writes the names of what was seen and forgotten: before any of it is fetched.
    void flush();
    /// The silo has named the version of a file that was seen before it had one. Its bytes and id
    /// are as before.
    void confirm(std::uint64_t id, const FileFacts& facts);
    /// An id that no file has or gets: of lines without a name.
    std::uint64_t take_id() noexcept { return ++last_id_; }
    /// It is no more.
    void forget(std::uint64_t id);

    const KnownFile* find(std::uint64_t id) const;
    const KnownFile* find(std::uint32_t silo, const std::string& path) const;
    /// Ids of the files below `folder` ("": all of the silo). O(files).
    std::vector<std::uint64_t> below(std::uint32_t silo, const std::string& folder) const;
    std::size_t size() const noexcept { return files_.size(); }
    /// Of a silo's files. O(1).
    struct Totals {
        std::size_t files = 0;
        std::size_t empty_files = 0;  // of these
        Bytes bytes = 0;
    };
    const Totals& totals(std::uint32_t silo) const noexcept { return totals_[silo]; }

    /// Of the silos; in the order of the spec.
    std::string full_path(const KnownFile& file) const;
    std::int64_t mtime_of(const KnownFile& file) const;

    /// Called with each id that is no more.
    std::function<void(std::uint64_t id)> on_gone;

  private:
    bool is_whole(const NamedFile& file) const;
    void take(const NamedFile& file);
    void count(const KnownFile& file, bool is_there);

    const std::vector<SiloSpec>& silos_;
    ChunkCache& cache_;
    NamesLog log_;
    std::unordered_map<std::uint64_t, KnownFile> files_;
    std::vector<std::unordered_map<std::string, std::uint64_t>> by_path_;  // by silo
    std::vector<Totals> totals_;                                           // by silo
    std::uint64_t last_id_ = 0;
};

}  // namespace fabricd
