// DataService: what `fabric-data serve` does with an arena: answers readers, fills lines, keeps
// plans. docs/data.md.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "fabricd/data/serve/data_commands.hpp"
#include "fabricd/data/serve/data_server.hpp"
#include "fabricd/data/serve/memory_share.hpp"
#include "fabricd/data/serve/saved_plans.hpp"
#include "fabricd/data/serve/service_parts.hpp"
#include "fabricd/data/serve/walks.hpp"

namespace fabricd {

/// The arena as its maker has it.
class PublishedMemory : public PinPages, public NotesSource, public ElasticMemory {
  public:
    virtual std::vector<PinHolder> holders(std::uint64_t line) = 0;
    virtual std::vector<ReaderProcess> processes() { return {}; }
};

/// The control thread's: that of `loop`.
class DataService {
  public:
    struct Options {
        DataSpec spec;
        std::string socket;
        std::string names;  // the file of NamesLog
        std::string arena_name;
        std::byte* arena = nullptr;
        DataTables tables;
        bool is_fresh = true;  // the tables are to be made
        // How a silo is opened; open_silo() where it is empty.
        std::function<Result<std::unique_ptr<Silo>>(const SiloSpec&, std::span<std::byte>)> open;
        Bytes usable = 0;  // of the arena at the start; 0: all of it
        Bytes floor = 0;   // that never goes, so that it may be pinned; 0: likewise
        // What is asked before the silo of that spec, but behind the spill, where there is such a
        // thing: it gets the one that fetches.
        std::function<Result<std::unique_ptr<Silo>>(const SiloSpec&, std::unique_ptr<Silo>)> before;
    };

    /// Opens silos, takes the tables up or makes them, and listens. `memory` outlives it.
    static Result<std::unique_ptr<DataService>> start(Options options, PublishedMemory& memory,
                                                      EventLoop& loop);
    ~DataService();
    DataService(const DataService&) = delete;
    DataService& operator=(const DataService&) = delete;

    /// Deadlines, plans, walks: call behind each turn of the loop.
    void tick(TimePoint now);
    /// When the next tick is due at the latest.
    Duration tick_interval() const;

    /// Takes part from now on; for kCreate to kAbort. Borrowed.
    void set_writes(WriteDesk* writes) noexcept {
        writes_ = writes;
        parts_.writes = writes;
    }
    ServiceParts& parts() noexcept { return parts_; }

  private:
    DataService(Options options, std::unique_ptr<SecondTier> tier, PublishedMemory& memory,
                EventLoop& loop);
    Result<void> open_silos();
    Result<std::unique_ptr<Silo>> open_beyond(const SiloSpec& spec,
                                              std::span<std::byte> memory) const;
    void filled(FillDone done);
    void handle(DataRequest request);
    void hello(const DataRequest& request);
    void list(const DataRequest& request);
    void fetch(const DataRequest& request);
    void plan(const DataRequest& request);
    void stat(const DataRequest& request);
    void command(const DataRequest& request);
    void write(DataRequest request);
    void reply(const DataRequest& request, const RequestOutcome& outcome, std::string payload = {},
               std::shared_ptr<const fabricshm::Fd> descriptor = nullptr);

    const Options options_;
    PublishedMemory& memory_;
    EventLoop& loop_;
    const std::unique_ptr<SecondTier> tier_;  // empty: the spec has none
    ChunkCache cache_;
    FileTable files_;
    std::vector<std::unique_ptr<SiloWorker>> workers_;
    Fills fills_;
    Listings listings_;
    Plans plans_;
    SavedPlans saved_plans_;
    ReaderNotes notes_;
    ServiceParts parts_;
    Walks walks_;
    MemoryShare share_;
    DataCommands commands_;
    WriteDesk* writes_ = nullptr;
    // Reads of the silo that are no fills, by a tag above all lines.
    std::unordered_map<std::uint64_t, std::function<void(FillDone)>> reads_;
    std::uint64_t last_read_ = 0;
    TimePoint next_slow_tick_{};
    TimePoint settled_;  // from when on a former service's reads have ended
    bool had_plans_ = false;
    std::unique_ptr<DataServer> server_;  // last: it goes first
};

/// How many lines the tables get where the spec says nothing.
std::uint64_t default_lines(Bytes memory) noexcept;

}  // namespace fabricd
