// Sizes of messages between a task manager and its agents.

#pragma once

namespace fabricd {

/// The arguments and the environment of 1024 ranks, as large as the kernel takes them in practice.
inline constexpr int kMaxJobMessage = 256 << 20;

/// Of a rank's output in one message.
inline constexpr int kMaxOutputBytes = 16 << 10;

}  // namespace fabricd
