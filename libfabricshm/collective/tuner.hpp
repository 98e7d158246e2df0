// The tuner: measures on this machine which tuning makes allreduce fast. For `fabricctl tune`.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/collective/tuning.hpp"
#include "libfabricshm/shm/link_page.hpp"

namespace fabricshm {

/// One operation to time: `bytes` of f32 per rank, in the arena or outside; from rank 0 where the
/// kind has a root.
struct TuneProbe {
    Bytes bytes = 0;
    bool in_arena = true;
    Kind kind = Kind::kAllreduce;
};

struct TuneOptions {
    int world = 2;
    int rounds = 3;                                    // candidates take turns this often
    Duration sample = std::chrono::milliseconds(10);   // time spent on a probe in one turn
    const LinkImage* links = nullptr;                  // of a machine to emulate; nullptr: none
    std::function<void(const std::string&)> progress;  // a line for people after each step
};

/// Nanoseconds that each probe takes with `tuning`, the median of a few batches. Starts `world`
/// processes over anonymous memory (no daemon, nothing left behind) and waits for them: kPeer when
/// one ends badly, kTimeout after half a minute. For programs without other threads: it forks.
Result<std::vector<double>> time_probes(const TuneOptions& options, const Tuning& tuning,
                                        const std::vector<TuneProbe>& probes);

/// Goes through the values one after the other, keeping what is fastest (the geometric mean over
/// the probes of that value, best of the rounds). A value changes only if it wins by more than 3 %.
/// Takes some ten seconds per world size.
Result<Tuning> measure_tuning(const TuneOptions& options);

/// Whether save_tuning() can write there: kInvalid for what is no plain file (a device would be
/// replaced), else as the system says. Makes the folder.
Result<void> check_tuning_file(const std::string& path);

/// Puts the lines of `tuning` into the file, in place of those of its world size; other lines stay.
/// Written next to it and renamed: a reader sees the old file or the new one.
Result<void> save_tuning(const std::string& path, const Tuning& tuning, int world);

}  // namespace fabricshm
