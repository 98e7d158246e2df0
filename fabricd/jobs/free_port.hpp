// The port at which the ranks of an attempt find each other.

#pragma once

namespace fabricd {

/// One that no process listens at now; another may come first, as with torchrun.
unsigned free_port();

}  // namespace fabricd
