// MemorySilo: files that jobs make and that nothing keeps but the cache: `from = "memory"`.
//
// The silo has their names alone. A chunk that is asked for is one that the cache has lost, so that
// its file is gone: its maker makes it again.

#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fabricd/data/silo/silo_writer.hpp"

namespace fabricd {

/// The names, in folders. Thread-safe: the silo and its writer have threads of their own.
class MadeFiles {
  public:
    MadeFiles();

    /// kInvalid: no path of a file; kExists: a file or folder is there, or a folder of it is a
    /// file.
    Result<void> check_new(const std::string& path) const;
    /// As check_new(), then it is there, from `now` on.
    Result<void> add(const std::string& path, const FileFacts& facts, TimePoint now);
    Result<FileFacts> look(const std::string& path) const;
    Result<SiloPage> list(const std::string& folder, const std::string& after,
                          std::size_t most) const;
    /// Of this version, with the folders that are empty then. False: it is younger than kSettles at
    /// `now`, has not settled, and stays.
    bool drop(const std::string& path, const FileFacts& facts, TimePoint now);
    /// Its chunks are where readers find them: from now on it is dropped however young it is.
    void settle(const std::string& path, const FileFacts& facts);
    /// As drop() of a file whose chunks were in the cache, however young it is.
    void lose(const std::string& path, const FileFacts& facts);

    /// Between its name and its chunks a reader may come: they are handed over by another thread.
    static constexpr fabricshm::Duration kSettles = std::chrono::seconds(2);

  private:
    struct Name {
        bool is_folder = false;
        FileFacts facts;
        TimePoint since{};
        bool is_settled = false;
    };
    using Folder = std::map<std::string, Name>;

    const Name* find(const std::string& path) const;
    const Name* find_version(const std::string& path, const FileFacts& facts) const;
    void erase(const std::string& path);
    Result<void> may_come(const std::string& path) const;

    mutable std::mutex mutex_;
    std::map<std::string, Folder> folders_;  // by path; "" is always there
};

class MemorySilo : public Silo {
  public:
    explicit MemorySilo(std::shared_ptr<MadeFiles> files) : files_(std::move(files)) {}

    Result<SiloPage> list(const std::string& folder, const std::string& after, std::size_t most,
                          TimePoint deadline) override;
    Result<FileFacts> look(const std::string& path, TimePoint deadline) override;
    bool has_room() const noexcept override { return true; }
    void start(const Fetch& fetch) override;
    std::vector<Fetched> wait(TimePoint deadline) override;

  private:
    std::shared_ptr<MadeFiles> files_;
    std::vector<Fetched> ended_;
};

/// Counts bytes; the cache has them.
class MemoryWriter : public SiloWriter {
  public:
    explicit MemoryWriter(std::shared_ptr<MadeFiles> files) : files_(std::move(files)) {}

    bool has_room() const noexcept override { return true; }
    void begin(std::uint64_t file, const WriteName& name, std::uint64_t tag) override;
    void append(std::uint64_t file, const std::byte* bytes, Bytes count,
                std::uint64_t tag) override;
    void commit(std::uint64_t file, std::uint64_t tag) override;
    void abort(std::uint64_t file, std::uint64_t tag) override;
    std::vector<Written> wait(TimePoint deadline) override;
    Result<void> clear(const WriteName&, TimePoint) override { return {}; }

  private:
    struct File {
        WriteName name;
        Bytes bytes = 0;
        Written failed;  // the first step that did
    };
    void end(const Written& outcome, std::uint64_t tag);

    std::shared_ptr<MadeFiles> files_;
    std::map<std::uint64_t, File> under_way_;
    std::vector<Written> ended_;
};

}  // namespace fabricd
