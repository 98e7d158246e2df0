#include "libfabricshm/machine/processors.hpp"

#include <hwloc.h>

namespace fabricshm {

Processors read_processors() {
    Processors result;
    hwloc_topology_t topology = nullptr;
    if (::hwloc_topology_init(&topology) != 0) return result;
    if (::hwloc_topology_load(topology) == 0) {
        result.packages = ::hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE);
        result.cores = ::hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
        result.threads = ::hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
        if (const hwloc_obj_t cache = ::hwloc_get_obj_by_type(topology, HWLOC_OBJ_L3CACHE, 0)) {
            result.last_level_cache = cache->attr->cache.size;
        }
    }
    ::hwloc_topology_destroy(topology);
    return result;
}

}  // namespace fabricshm
