// The size of the largest group, which bitmaps, pages and messages of all layers are laid out for.

#pragma once

namespace fabricshm {

/// Ranks of a group at most.
inline constexpr int kWorldMax = 256;

}  // namespace fabricshm
