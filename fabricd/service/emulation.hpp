// The machine that this daemon emulates, if any: found at start, compared with the memory that the
// pool really is, and checked against itself.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "emu/memory/figures.hpp"
#include "fabricd/config/config.hpp"
#include "libfabricshm/machine/host_files.hpp"
#include "libfabricshm/machine/pool_backend.hpp"
#include "libfabricshm/shm/link_page.hpp"

namespace fabricd {

/// Filled in two steps, since the pool is made in between: plan_emulation() sets `links` and
/// `rated`, calibrate() the rest.
struct Emulation {
    fabricshm::LinkImage links;
    emu::Figures own;                   // of the pool's memory as it is, ranks on all processors
    emu::Figures rated;                 // of the machine, and
    emu::Figures measured;              // ... as the model shows it; slow motion taken out of both
    std::string summary;                // one line: for status and pools
    std::vector<std::string> warnings;  // what of it this machine can't show
};

/// The machine that the configuration names, or nothing when it names none. Not yet measured. Apart
/// from measuring, which needs the pool.
ErrorMessage plan_emulation(const Config& config, std::optional<Emulation>& emulation);

/// What it is and how near the model comes, to the log.
/// One line per warning, at the level of warnings: a machine that this host cannot show must not be
/// mistaken for one that it can.
void log_emulation(const Emulation& emulation);

/// Measures the pool's memory and the model on a piece of it; takes about a quarter of a second.
/// Before the daemon owns the pool. The piece is given back.
ErrorMessage calibrate(fabricshm::PoolBackend& pool, const fabricshm::HostFiles& files,
                       Emulation& emulation);

}  // namespace fabricd
