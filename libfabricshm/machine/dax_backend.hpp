// The DAX pool: arenas are ranges of one device, entered in a catalogue on it.
//
// There is no isolation inside a device: every client that gets its descriptor can map all of it.
// So one device serves one user, or several that trust each other (docs/pool.md).

#pragma once

#include <functional>
#include <memory>
#include <string>

#include "libfabricshm/machine/dax_device.hpp"
#include "libfabricshm/machine/pool_backend.hpp"

namespace fabricshm {

struct DaxOptions {
    std::string device;      // "/dev/dax0.0"
    std::string uuid;        // refuse another pool than this; "": any
    bool format = false;     // start afresh, whatever the device holds, unless it is another host's
    bool take_over = false;  // take a pool from the host that it belongs to, which must be dead
    bool is_shared = false;  // other hosts use it, too, as guests of this daemon
    Bytes capacity = 0;      // of all arenas together; 0: what the device has
    HostFiles files;
    // Lets the time pass in which another host that also found the device blank would write to it.
    // Tests have something happen instead.
    std::function<void()> settle;
};

/// Formats a blank device by itself, but never one that holds anything, unless asked to. Fails, and
/// leaves the device as it is, with
///   kCorrupt   its catalogue is damaged, or does not fit its size or alignment
///   kNotFound  another UUID than wanted, or none on a blank device
///   kDenied    a pool of another host (take_over overrides that)
///   kExists    it holds other data
///   kVersion   a later version's catalogue
///   kBusy      another daemon of this host has it
/// or as DaxDevice::open().
Result<std::unique_ptr<PoolBackend>> make_dax_backend(DaxOptions options);

}  // namespace fabricshm
