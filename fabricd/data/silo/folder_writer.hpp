// FolderWriter: new files of a folder.

#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "fabricd/data/silo/silo_writer.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// How a file gets its name, by what the file system has; each is tried after the one before it.
enum class FolderNaming {
    kNameless,  // no name until then: linkat(2) of an O_TMPFILE
    kRename,    // another until then: renameat2(2) with RENAME_NOREPLACE
    kLink,      // another until then, and both for a moment: linkat(2)
};

/// Until its commit a file has no name (O_TMPFILE), or a temporary one where the file system has
/// no such files: temporary_name(), in the deepest folder of its path that is there. A commit syncs
/// the file, makes the folders that are missing, gives it its name unless there is such a one, and
/// syncs the folders. A thread of its own does the steps: a disk that hangs holds up no caller.
class FolderWriter : public SiloWriter {
  public:
    /// kDenied: this user may not write there. `first`: what is tried first.
    static Result<std::unique_ptr<FolderWriter>> open(const std::string& root,
                                                      FolderNaming first = FolderNaming::kNameless);
    /// Waits for the step that is under way.
    ~FolderWriter() override;

    bool has_room() const noexcept override;
    void begin(std::uint64_t file, const WriteName& name, std::uint64_t tag) override;
    void append(std::uint64_t file, const std::byte* bytes, Bytes count,
                std::uint64_t tag) override;
    void commit(std::uint64_t file, std::uint64_t tag) override;
    void abort(std::uint64_t file, std::uint64_t tag) override;
    std::vector<Written> wait(TimePoint deadline) override;
    Result<void> clear(const WriteName& name, TimePoint deadline) override;

  private:
    enum class Kind { kBegin, kAppend, kCommit, kAbort };
    struct Step {
        Kind kind;
        std::uint64_t file;
        std::uint64_t tag;
        WriteName name;                    // of kBegin
        const std::byte* bytes = nullptr;  // of kAppend
        Bytes count = 0;
    };
    struct File {
        WriteName name;
        std::size_t there = 0;  // bytes of the path that are its deepest folder
        fabricshm::Fd folder;   // that folder
        fabricshm::Fd fd;
        bool is_nameless = false;
        Bytes bytes = 0;
        Written failed;  // the first step that did
    };

    FolderWriter(std::string place, FolderNaming first);

    void start(Step step);
    void work();
    Written do_step(const Step& step);
    Result<void> begin_file(File& file) const;
    Result<void> find_folder(int root, File& file) const;
    Result<void> make_file(File& file) const;
    static Result<void> append_to(File& file, const Step& step);
    Result<FileFacts> commit_file(const File& file) const;
    static Result<void> remove(const File& file);

    std::string place_;
    FolderNaming first_;
    std::map<std::uint64_t, File> files_;  // of the thread alone

    mutable std::mutex mutex_;  // guards what follows
    std::condition_variable is_asked_;
    std::condition_variable has_ended_;
    std::deque<Step> steps_;
    std::vector<Written> ended_;
    std::size_t under_way_ = 0;  // whose answer wait() has not given yet
    bool stops_ = false;
    std::thread thread_;
};

}  // namespace fabricd
