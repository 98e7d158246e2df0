// PrepSilo: the files of another silo, prepared: each is made when it is asked for, by threads of
// this silo, and stands under its name with ".npy" behind it. docs/data.md, "Preparation".

#pragma once

#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fabricd/data/silo/prep_listing.hpp"
#include "fabricd/data/silo/prep_workers.hpp"
#include "fabricd/data/silo/silo.hpp"

namespace fabricd {

struct PrepOptions {
    OpenSource source;  // called once for each thread, and once for listings
    std::string below;  // the source's folder; "": all of it
    std::vector<PrepStep> steps;
    std::uint64_t most_pixels = 0;
    unsigned threads = 1;  // PrepWorkers::kThreadsMax at most
    /// A file that can't be prepared is no entry, but counted: a listing prepares all files then.
    /// Otherwise it is one, and each fetch of it fails with its reason.
    bool skips_bad = false;
};

/// What has been prepared lately is kept, kKeptBytes at most and the last in any case, for files
/// are fetched in chunks. A prepared file has the size that the steps fix; where they fix none,
/// listing prepares it to know.
class PrepSilo : public Silo {
  public:
    static constexpr Bytes kKeptBytes = 64 * fabricshm::kMiB;

    /// Opens the source once; kNotFound, kCorrupt: of a model that a step needs.
    static Result<std::unique_ptr<PrepSilo>> open(PrepOptions options);
    ~PrepSilo() override;

    Result<SiloPage> list(const std::string& folder, const std::string& after, std::size_t most,
                          TimePoint deadline) override;
    Result<FileFacts> look(const std::string& path, TimePoint deadline) override;
    bool has_room() const noexcept override;
    void start(const Fetch& fetch) override;
    std::vector<Fetched> wait(TimePoint deadline) override;

  private:
    /// A prepared version without its bytes.
    struct Known {
        FileVersion version;
        Bytes bytes = 0;
        bool is_bad = false;
        bool is_gone = false;
        Error error{fabricshm::Errc::kOk, 0, ""};
        std::string reason;
    };
    struct Kept {
        FileVersion version;
        PreparedBytes bytes;
    };
    /// Files that a listing waits for; the workers' threads hold it, too.
    struct Measure {
        std::map<std::string, Known> found;  // by the source's path
        std::size_t left = 0;
    };
    using Sample = std::pair<std::string, FileVersion>;

    PrepSilo(PrepOptions options, std::unique_ptr<Silo> source,
             std::shared_ptr<const PrepRules> rules);

    static Known known_as(const Prepared& prepared);
    std::string source_of(const std::string& path) const;
    void finish(const Sample& sample, const Prepared& prepared);
    void remember(const Prepared& prepared);
    PreparedBytes kept(const FileVersion& version);
    void answer(const std::vector<Fetch>& fetches, const Prepared& prepared);
    void measure(const std::vector<std::string>& paths, TimePoint deadline, Measure& measured);
    std::vector<std::string> unknown_of(const std::string& folder, std::size_t most) const;
    std::optional<Known> known_of(const std::string& path, const FileFacts& source,
                                  const Measure& measured) const;
    Result<void> give(const std::string& folder, std::size_t most, const Measure& measured,
                      SiloPage& page);

    const PrepOptions options_;
    const std::unique_ptr<Silo> source_;  // for listings and looks alone
    const std::shared_ptr<const PrepRules> rules_;
    const Bytes fixed_bytes_;
    const bool is_measured_;  // an entry needs its file to have been prepared
    PrepListing listing_;

    mutable std::mutex mutex_;  // of what follows
    std::condition_variable ended_or_measured_;
    std::size_t in_flight_ = 0;  // fetches that wait() has not given
    std::map<Sample, std::vector<Fetch>> under_way_;
    std::vector<Fetched> ended_;
    std::map<FileVersion, Known> known_;
    std::list<Kept> kept_;  // the latest first
    Bytes kept_bytes_ = 0;

    std::unique_ptr<PrepWorkers> workers_;  // last: their threads end before the rest does
};

}  // namespace fabricd
