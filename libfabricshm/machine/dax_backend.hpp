// The DAX pool: arenas are ranges of one device, or of several that they are striped over, entered
// in a catalogue on it or on the first.
//
// There is no isolation inside a device: every client that gets its descriptor can map all of it.
// So one device serves one user, or several that trust each other (docs/pool.md).

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libfabricshm/machine/dax_devices.hpp"
#include "libfabricshm/machine/pool_backend.hpp"

namespace fabricshm {

struct DaxOptions {
    std::vector<std::string> devices;  // "/dev/dax0.0", in the order that they were formatted in
    std::string uuid;                  // refuse another pool than this; "": any
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
///   kNotFound  another UUID than wanted, or none on a blank device; other devices than the
///              catalogue says, or in another order
///   kDenied    a pool of another host (take_over overrides that)
///   kExists    it holds other data, or it is blank and another one is not
///   kVersion   a later version's catalogue
///   kBusy      another daemon of this host has it
/// or as DaxDevice::open().
Result<std::unique_ptr<PoolBackend>> make_dax_backend(DaxOptions options);

}  // namespace fabricshm
