// fabricctl jobs remove: the folders of jobs that have ended.

#pragma once

#include "fabricd/ctl/ctl_options.hpp"

namespace fabricd {

/// Jobs by number or by a name that one job has, or those whose end was that long ago. Exit code 1:
/// one could not be removed, for which there is a line; the others are.
CtlExit remove_jobs(const CtlOptions& options);

}  // namespace fabricd
