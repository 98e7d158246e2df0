// FolderSilo: a folder of this host, also one that is mounted from a network.

#pragma once

#include <sys/stat.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fabricd/data/silo/silo.hpp"
#include "libfabricshm/os/disk_reader.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// Nothing outside the folder is ever opened, whatever its links say (openat2(2), RESOLVE_BENEATH).
/// A version is size, time of change of content and of inode, and inode. Where these do not say
/// when a file is written (tmpfs), it is read while no process has it open for writing; one that
/// stays open so is an error of that file after kWriterWait. Of another user's file that can't be
/// seen: it is read once its times are that old.
class FolderSilo : public Silo {
  public:
    /// Fetches go into `memory`, which may be pinned, or elsewhere. kNotFound, kDenied: the folder
    /// is not there, or not for this user.
    static Result<std::unique_ptr<FolderSilo>> open(const std::string& root,
                                                    std::span<std::byte> memory);

    Result<SiloPage> list(const std::string& folder, const std::string& after, std::size_t most,
                          TimePoint deadline) override;
    Result<FileFacts> look(const std::string& path, TimePoint deadline) override;
    bool has_room() const noexcept override;
    void start(const Fetch& fetch) override;
    std::vector<Fetched> wait(TimePoint deadline) override;

    /// How its reads reach the disk.
    const fabricshm::DiskPath& path() const noexcept { return reader_.path(); }

    static constexpr std::chrono::milliseconds kWriterWait{1000};

  private:
    struct UnderWay {
        Fetch fetch;
        fabricshm::Fd file;
        bool has_late_times = false;
        TimePoint give_up{};  // of one that waits for a writer
    };

    FolderSilo(std::string place, std::span<std::byte> memory);

    Result<void> find_root();
    Result<fabricshm::Fd> open_inside(const std::string& path, int flags) const;
    Result<fabricshm::Fd> open_file(const Fetch& fetch) const;
    Result<void> read_names(const std::string& folder);
    void add_entry(int folder, const std::string& path, const std::string& name,
                   SiloPage& page) const;
    std::optional<Fetched> begin(UnderWay work);
    std::optional<Fetched> verdict_on(UnderWay& work, const fabricshm::DiskReadDone& done);
    void begin_unwritten();
    std::vector<fabricshm::DiskReadDone> wait_for_reads(TimePoint deadline);

    std::string place_;
    fabricshm::Fd root_;
    fabricshm::DiskReader reader_;
    std::map<std::uint64_t, UnderWay> under_way_;  // by the reader's tag
    std::uint64_t last_tag_ = 0;
    std::vector<UnderWay> written_;  // wait until they are not open for writing
    std::vector<Fetched> ended_;     // without having been read
    // The folder that is being listed, page by page.
    std::string listed_;
    std::vector<std::string> names_;
};

}  // namespace fabricd
