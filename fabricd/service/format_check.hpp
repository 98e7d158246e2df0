// Whether a device may be formatted: not while sessions of before write to it. docs/pool.md.

#pragma once

#include "fabricd/config/config.hpp"

namespace fabricd {

/// Nothing without --format. Otherwise no session that the journal (state.dir) has in an arena of a
/// device may live: its process would go on writing to a pool that is others' by then. Processes
/// of other hosts can't be asked, and count as alive. A damaged journal names none, and is no
/// reason: --format is the way out of it. Asks the kernel for each process; changes nothing.
ErrorMessage check_format(const Config& config);

}  // namespace fabricd
