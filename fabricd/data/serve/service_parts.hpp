// What the data service is made of, as its commands see it.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabricd/data/serve/fills.hpp"
#include "fabricd/data/serve/listings.hpp"
#include "fabricd/data/serve/plans.hpp"
#include "fabricd/data/serve/reader_notes.hpp"
#include "fabricd/data/serve/second_tier.hpp"
#include "fabricd/data/serve/write_desk.hpp"

namespace fabricd {

/// A process that has a line pinned.
struct PinHolder {
    int pid = 0;
    std::size_t pins = 0;
};

/// A process that reads, and its number in ReaderNotes.
struct ReaderProcess {
    std::uint64_t reader = 0;
    int pid = 0;
};

/// Borrowed; the control thread's.
struct ServiceParts {
    const DataSpec& spec;
    ChunkCache& cache;
    FileTable& files;
    Fills& fills;
    Listings& listings;
    Plans& plans;
    ReaderNotes& notes;
    std::vector<std::unique_ptr<SiloWorker>>& workers;
    /// Reads into memory of its own, behind all that readers wait for; see Checks.
    std::function<void(const Fetch&, std::uint32_t silo, std::function<void(FillDone)>)> read_silo;
    std::function<std::vector<PinHolder>(std::uint64_t line)> holders;
    std::function<std::vector<ReaderProcess>()> processes;
    std::string arena_name;
    SecondTier* tier;             // nullptr: none
    WriteDesk* writes = nullptr;  // where files are written
};

}  // namespace fabricd
