// How many connections the descriptors of this process are enough for.

#pragma once

namespace fabricd {

/// Raises the soft limit of open files to the hard one and returns it. The usual soft limit of 1024
/// is made for select(); a failure leaves it as it was.
long raise_descriptor_limit() noexcept;

/// Open now, about.
long open_descriptors() noexcept;

/// What of `limit` stays for other things: arenas, the admin API, metrics, vGPUs, and a packet of a
/// client with as many descriptors as there can be in one. Half of what is free where that is less.
constexpr long kDescriptorsApart = 768;

/// `wanted`, or as many as there are descriptors for when `limit` is too low: a connection takes
/// its socket and the pidfd of its session's process.
int connections_for(long limit, long in_use, int wanted) noexcept;

}  // namespace fabricd
