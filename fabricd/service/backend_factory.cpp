#include "fabricd/service/backend_factory.hpp"

#include <unistd.h>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/machine/backend_choice.hpp"
#include "libfabricshm/machine/dax_backend.hpp"
#include "libfabricshm/machine/emu_backend.hpp"
#include "libfabricshm/machine/far_node.hpp"
#include "libfabricshm/machine/numa_backend.hpp"

namespace fabricd {

using fabricshm::BackendChoice;
using fabricshm::Discovery;
using fabricshm::HostFiles;
using fabricshm::HugePages;
using fabricshm::PoolBackend;

namespace {

using Made = fabricshm::Result<std::unique_ptr<PoolBackend>>;

// The table of keys lets no other words through.
HugePages huge_pages(const Config& config) {
    if (config.pool.huge_pages == "reserved") return HugePages::kReserved;
    return config.pool.huge_pages == "off" ? HugePages::kOff : HugePages::kTransparent;
}

// One line for all that can go wrong in a backend: what it said, and the keys that it can have been
// about.
ErrorMessage taken(Made made, const Config& config, const std::string& keys,
                   std::unique_ptr<PoolBackend>& pool) {
    if (!made.ok()) {
        ErrorMessage error_message = error_message_of(made.error(), keys);
        // What the host has not got at all it will not have later. What is taken now may be by
        // arenas of the daemon before, and comes back.
        const auto host_bytes = static_cast<Bytes>(::sysconf(_SC_PHYS_PAGES)) *
                                static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
        if (config.pool.capacity > host_bytes) error_message.is_of_host = false;
        return error_message;
    }
    pool = std::move(made).value();
    return {};
}

// In the host's ordinary memory. There is nothing to be found, so it always works where there is
// room.
ErrorMessage make_emu(const Config& config, const HostFiles& files,
                      std::unique_ptr<PoolBackend>& pool) {
    fabricshm::EmuOptions options;
    options.capacity = config.pool.capacity;
    options.huge_pages = huge_pages(config);
    options.reserved_page_bytes = config.pool.reserved_page_bytes;
    options.files = files;
    return taken(fabricshm::make_emu_backend(options), config, "pool.capacity, pool.huge_pages",
                 pool);
}

// `node` is the configured one, else the one that discovery chose; a negative one when there is
// none to choose.
ErrorMessage make_numa(const Config& config, int node, const HostFiles& files,
                       std::unique_ptr<PoolBackend>& pool) {
    if (node < 0) {
        return std::string("there is no CPU-less memory node: name one (pool.numa_node)");
    }
    fabricshm::NumaOptions options;
    options.node = node;
    options.capacity = config.pool.capacity;
    options.huge_pages = huge_pages(config);
    options.reserved_page_bytes = config.pool.reserved_page_bytes;
    options.files = files;
    return taken(fabricshm::make_numa_backend(options), config,
                 "pool.numa_node, pool.capacity, pool.huge_pages", pool);
}

// A dax device is never guessed among several: the wrong one may hold data.
ErrorMessage make_dax(const Config& config, const Discovery& found, const HostFiles& files,
                      std::unique_ptr<PoolBackend>& pool) {
    fabricshm::DaxOptions options;
    options.devices = config.pool.devices();
    if (options.devices.empty() && found.dax.size() == 1) options.devices = {found.dax[0].path};
    if (options.devices.empty()) {
        return "there are " + std::to_string(found.dax.size()) +
               " DAX devices: name one (pool.dax_device)";
    }
    // One of several that is wrong is named by the reason.
    const std::string key =
        options.devices.size() == 1 ? "pool.dax_device " + options.devices[0] : "pool.dax_devices";
    options.uuid = config.pool.dax_uuid;
    options.format = config.pool.dax_format;
    options.take_over = config.pool.dax_take_over;
    options.is_shared = config.pool.hosts > 1;
    options.capacity = config.pool.capacity;
    options.files = files;
    return taken(fabricshm::make_dax_backend(options), config,
                 key + ", pool.dax_uuid, pool.capacity, --format", pool);
}

}  // namespace

ErrorMessage make_backend(const Config& config, const HostFiles& files,
                          std::unique_ptr<PoolBackend>& pool) {
    // Also for a named backend: its node or device may be left to us.
    const Discovery found = fabricshm::discover(files);
    const BackendChoice choice = fabricshm::choose_backend(found);
    const bool is_free = config.pool.backend == "auto";
    // The name that is used is the configured one or the chosen one, never a mixture.
    const std::string backend = is_free ? choice.backend : config.pool.backend;
    if (is_free) {
        fabricshm::log(fabricshm::LogLevel::kInfo, "pool.backend auto takes %s: %s",
                       choice.backend.c_str(), choice.why.c_str());
    }
    // A machine that is emulated gets memory that is really farther away, where there is some.
    if (is_free && backend == "emu" && !config.emulate.machine.empty()) {
        if (const auto far = fabricshm::find_far_node(found, files)) {
            fabricshm::log(fabricshm::LogLevel::kInfo,
                           "the pool is on the far node %d (distance %d): run ranks on the "
                           "processors of node %d",
                           far->node, far->distance, far->near_node);
            return make_numa(config, far->node, files, pool);
        }
    }
    // What was configured wins over what was found.
    const int node =
        config.pool.numa_node >= 0 ? static_cast<int>(config.pool.numa_node) : choice.node;
    if (backend == "dax") return make_dax(config, found, files, pool);
    if (backend == "numa") return make_numa(config, node, files, pool);
    return make_emu(config, files, pool);
}

}  // namespace fabricd
